"""The report for programs: a `Diagnosis` as JSON, schema ``megatrace.diagnosis/1``.

Times become seconds after ``clock.t0_ns``, because ns since the epoch do not fit a double; rank sets become
range strings, because a hang of ten thousand ranks has ten thousand victims. Numbers are rounded to what they
can mean (times to 1 µs, milliseconds to 1 µs, factors to 0.001). NaN and infinities become null.

The shape itself is declared in ``schema``; this file fills it. It does not read JSON back.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

from megatrace import __version__
from megatrace.model.finding import Device, Diagnosis, Endpoint, Finding, JobSummary, Kind, StageTimes, Window
from megatrace.model.schedule import Phase
from megatrace.model.trace import Coverage, InputInfo
from megatrace.reports import ReportOptions, reports
from megatrace.reports.schema import (
    SCHEMA_NAME,
    CoverageJson,
    CulpritsJson,
    DeviceJson,
    DiagnosisJson,
    EndpointJson,
    FindingJson,
    InputJson,
    JobJson,
    KindName,
    LayoutJson,
    PhaseName,
    SeverityName,
    StageJson,
    WhereJson,
    WindowJson,
    schema,
)
from megatrace.reports.wording import finite, plain, seconds_after, significant
from megatrace.units import NS_PER_S, format_ranks

__all__ = ["schema", "to_dict", "to_json"]


@reports.register(
    "json", summary="for programs: schema megatrace.diagnosis/1", file="diagnosis.json", format=True
)
def report(diagnosis: Diagnosis, options: ReportOptions) -> str:
    """The JSON report; of the options only ``generated_at`` matters."""
    return to_json(diagnosis, generated_at=options.generated_at)


def to_json(diagnosis: Diagnosis, *, generated_at: int | None = None) -> str:
    """The diagnosis as indented JSON with a final newline. ``generated_at`` in ns since the epoch."""
    data = to_dict(diagnosis, generated_at=generated_at)
    fields = [f"  {json.dumps(key)}: {_indented(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _indented(value: object) -> str:
    """JSON with two blanks a level; a list of flat objects gets one line an object (ten thousand ranks)."""
    if isinstance(value, list) and value and all(_is_flat(item) for item in value):
        rows = ",\n".join(f"    {_dump(item)}" for item in value)
        return f"[\n{rows}\n  ]"
    return _dump(value, indent=2).replace("\n", "\n  ")


def _is_flat(item: object) -> bool:
    return isinstance(item, dict) and not any(isinstance(value, dict | list) for value in item.values())


def _dump(value: object, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def to_dict(diagnosis: Diagnosis, *, generated_at: int | None = None) -> DiagnosisJson:
    """The same as a dictionary."""
    t0 = diagnosis.clock.t0
    clock = diagnosis.clock
    return {
        "schema": SCHEMA_NAME,
        "tool_version": __version__,
        "generated_at": None if generated_at is None else _utc(generated_at),
        "verdict": diagnosis.verdict.value,
        "headline": plain(diagnosis.headline),
        "inputs": [_input(item) for item in diagnosis.inputs],
        "clock": {
            "t0_ns": str(int(t0)),
            "reference": _text(clock.reference),
            "error_us": finite(clock.error_us, 1),
            "unaligned_nodes": [plain(node) for node in clock.unaligned_nodes],
        },
        "job": _job(diagnosis.job, t0),
        "findings": [_finding(item, index, t0) for index, item in enumerate(diagnosis.findings, start=1)],
        "stages": [_stage(item) for item in diagnosis.stages],
        "alternatives": [plain(text) for text in diagnosis.alternatives],
        "next_steps": [
            {"command": plain(step.command), "why": plain(step.why)} for step in diagnosis.next_steps
        ],
        "warnings": [plain(text) for text in diagnosis.warnings],
        "ranks_map": [
            {
                "rank": int(place.rank),
                "node": _text(place.node),
                "local_rank": _int(place.local_rank),
                "device": _text(place.device),
            }
            for place in diagnosis.places
        ]
        or None,
        "coverage": _coverage(diagnosis.coverage, t0),
    }


def _utc(time: int) -> str:
    return f"{datetime.fromtimestamp(time // NS_PER_S, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _text(text: str | None) -> str | None:
    return None if text is None else plain(text)


def _int(value: int | None) -> int | None:
    """A plain int: numpy integers are no JSON."""
    return None if value is None else int(value)


def _input(item: InputInfo) -> InputJson:
    return {
        "path": plain(item.path),
        "reader": plain(item.reader),
        "observables": sorted(observable.value for observable in item.observables),
        "ranks": int(item.ranks),
    }


def _job(job: JobSummary, t0: int) -> JobJson:
    first, last = seconds_after(job.first_time, t0), seconds_after(job.last_time, t0)
    return {
        "ranks": int(job.ranks),
        "ranks_seen": int(job.ranks_seen),
        "nodes": _int(job.nodes),
        "layout": _layout(job),
        "schedule": job.schedule.kind.value if job.schedule else None,
        "micro_batches": _int(job.micro_batches),
        "iterations": _int(job.iterations),
        "iteration_numbering": "absolute" if job.iteration_numbering == "absolute" else "relative",
        "iteration_ms": {
            "median": finite(job.iteration_median_ms, 3),
            "p95": finite(job.iteration_p95_ms, 3),
        },
        "span_s": None if first is None or last is None else [first, last],
        "baseline": _text(job.baseline),
    }


def _layout(job: JobSummary) -> LayoutJson | None:
    layout = job.layout
    if layout is None:
        return None
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "cp": layout.cp,
        "ep": layout.ep,
        "vpp": layout.vpp,
        "order": layout.order,
        "source": "config" if job.layout_source == "config" else "inferred" if job.layout_source else None,
    }


_SEVERITIES: tuple[SeverityName, ...] = ("P0", "P1", "P2", "P3", "INFO")


def _finding(finding: Finding, index: int, t0: int) -> FindingJson:
    impact = finding.impact
    return {
        "id": plain(finding.id) or f"f{index}",
        "fingerprint": plain(finding.fingerprint),
        "kind": _kind(finding.kind),
        "kind_alternatives": [_kind(kind) for kind in finding.kind_alternatives],
        "severity": _SEVERITIES[finding.severity],
        "status": finding.status.value,
        "summary": plain(finding.summary),
        "confidence": finite(finding.confidence, 3),
        "ambiguous": bool(finding.ambiguous),
        "caused_by": [plain(item) for item in finding.caused_by],
        "culprits": _culprits(finding),
        "victims": {"ranks": format_ranks(finding.victims)},
        "where": _where(finding),
        "window": _window(finding.window, t0),
        "impact": {
            "slowdown": finite(impact.slowdown, 3),
            "seconds_lost": finite(impact.seconds_lost, 3),
            "gpu_hours_lost": finite(impact.gpu_hours_lost, 4),
        },
        "evidence": [
            {"text": plain(item.text), "value": significant(item.value), "unit": _text(item.unit)}
            for item in finding.evidence
        ],
        "exonerated": [plain(item) for item in finding.exonerated],
        "chain": [plain(item) for item in finding.chain],
        "remedy": plain(finding.remedy),
    }


def _kind(kind: Kind) -> KindName:
    return kind.value


def _phase(phase: Phase | None) -> PhaseName | None:
    return None if phase is None else phase.value


def _culprits(finding: Finding) -> CulpritsJson:
    culprits = finding.culprits
    return {
        "ranks": sorted(int(rank) for rank in culprits.ranks),
        "nodes": [plain(node) for node in culprits.nodes],
        "devices": [_device(device) for device in culprits.devices],
        "links": [{"src": _endpoint(link.src), "dst": _endpoint(link.dst)} for link in culprits.links],
    }


def _device(device: Device) -> DeviceJson:
    return {"node": _text(device.node), "device": _text(device.device)}


def _endpoint(end: Endpoint) -> EndpointJson:
    return {
        "rank": _int(end.rank),
        "node": _text(end.node),
        "device": _text(end.device),
        "port": _int(end.port),
    }


def _where(finding: Finding) -> WhereJson:
    where = finding.where
    return {
        "stage": _int(where.stage),
        "iteration": _int(where.iteration),
        "training_step": _int(where.training_step),
        "micro_batch": _int(where.micro_batch),
        "phase": _phase(where.phase),
        "op": _text(where.op),
        "communicator": _text(where.communicator),
        "seq": _int(where.seq),
        "peer": _int(where.peer),
    }


def _window(window: Window | None, t0: int) -> WindowJson | None:
    if window is None:
        return None
    return {
        "start_s": seconds_after(window.start, t0),
        "end_s": seconds_after(window.end, t0),
        "first_iteration": _int(window.first_iteration),
        "last_iteration": _int(window.last_iteration),
    }


def _stage(stage: StageTimes) -> StageJson:
    return {
        "stage": int(stage.stage),
        "forward_ms": finite(stage.forward_ms, 3),
        "backward_ms": finite(stage.backward_ms, 3),
        "work_ms": finite(stage.work_ms, 3),
        "wait_ms": finite(stage.wait_ms, 3),
    }


def _coverage(coverage: Coverage, t0: int) -> CoverageJson:
    return {
        "ranks_missing": format_ranks(coverage.ranks_missing),
        "gaps": [
            {
                "rank": int(gap.rank),
                "start_s": seconds_after(gap.start, t0),
                "end_s": seconds_after(gap.end, t0),
                "records_lost": _int(gap.records_lost),
            }
            for gap in coverage.gaps
        ],
        "lines": int(coverage.lines),
        "bad_lines": int(coverage.bad_lines),
        "torn_tails": format_ranks(coverage.torn_tails),
        "spans_cut": int(coverage.spans_cut),
        "notes": [plain(note) for note in coverage.notes],
    }
