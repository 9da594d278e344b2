"""The trace for Perfetto: parsed with Perfetto's own schema, and queried where its processor is installed."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.infer_layout import resolve
from megatrace.analysis.timeline_cut import choose
from megatrace.model.events import UNSEEN, Op
from megatrace.model.finding import Diagnosis, Finding
from megatrace.model.schedule import Phase
from megatrace.model.timeline import Timeline
from megatrace.reports import ReportOptions
from megatrace.reports.perfetto import report
from megatrace.reports.perfetto_bytes import varint
from megatrace.simulator import Scenario, SlowGpu, StuckKernelBefore, observe, simulate
from tests.unit.report_cases import CASES, hang

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/reports"
SHELL = os.environ.get("MEGATRACE_TRACE_PROCESSOR") or shutil.which("trace_processor_shell") or ""


@dataclass
class Slice:
    """A slice or an instant as Perfetto shows it; times in ns, ``end`` None where it never ended."""

    track: int
    name: str
    start: int
    end: int | None
    arguments: dict[str, Any]
    leaves: int = 0
    arrives: int = 0


@dataclass
class Parsed:
    tracks: dict[int, tuple[str, int]] = field(default_factory=dict)
    """number → (name, parent)"""
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)
    wall: int = 0

    def path(self, track: int) -> str:
        name, parent = self.tracks[track]
        return f"{self.path(parent)}/{name}" if parent else name

    def on(self, pattern: str) -> list[Slice]:
        found = [item for item in self.slices + self.instants if re.fullmatch(pattern, self.path(item.track))]
        assert found, pattern
        return found


def parse(content: bytes, *, nested: bool = False) -> Parsed:
    """Reads a trace with the classes that Perfetto generates from its schema, and checks what they do not:
    every number refers to a name, slices nest, times of a track ascend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of protobuf's own import
        name = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
        schema = pytest.importorskip(name, reason="the Python package perfetto is absent")
    trace = schema.Trace()
    trace.ParseFromString(content)
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == len(content)  # every field is one that Perfetto knows
    names: dict[int, str] = {}
    keys: dict[int, str] = {}
    out = Parsed()
    stack: dict[int, list[Slice]] = {}
    last: dict[int, int] = {}
    for packet in trace.packet:
        names |= {item.iid: item.name for item in packet.interned_data.event_names}
        keys |= {item.iid: item.name for item in packet.interned_data.debug_annotation_names}
        for clock in packet.clock_snapshot.clocks:
            out.wall = clock.timestamp if clock.clock_id == 1 else out.wall
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            assert described.uuid not in out.tracks
            out.tracks[described.uuid] = (described.name, described.parent_uuid)
        if packet.HasField("track_event"):
            _event(schema, packet, names, keys, out, stack, last)
            assert nested or all(len(open_) < 2 for open_ in stack.values()), "a slice begins inside another"
    assert {0, *out.tracks} >= {parent for _, parent in out.tracks.values()}
    return out


def _event(
    schema: Any, packet: Any, names: dict[int, str], keys: dict[int, str], out: Parsed,
    stack: dict[int, list[Slice]], last: dict[int, int],
) -> None:  # fmt: skip
    event, time = packet.track_event, packet.timestamp
    assert event.track_uuid in out.tracks
    assert time >= last.get(event.track_uuid, 0), out.path(event.track_uuid)
    last[event.track_uuid] = time
    if event.type == schema.TrackEvent.TYPE_SLICE_END:
        stack[event.track_uuid].pop().end = time
        return
    values = {}
    for item in event.debug_annotations:
        values[keys[item.name_iid]] = (
            [entry.string_value for entry in item.array_values] or item.string_value or item.int_value
        )
    made = Slice(event.track_uuid, names[event.name_iid], time, None, values)
    made.leaves = event.flow_ids[0] if event.flow_ids else 0
    made.arrives = event.terminating_flow_ids[0] if event.terminating_flow_ids else 0
    if event.type == schema.TrackEvent.TYPE_INSTANT:
        out.instants.append(made)
        return
    stack.setdefault(event.track_uuid, []).append(made)
    out.slices.append(made)


def written(diagnosis: Diagnosis) -> bytes:
    made = report(diagnosis, ReportOptions())
    assert isinstance(made, bytes)
    return made


@cache
def diagnosed(fault: str, source: str) -> Diagnosis:
    faults: dict[str, SlowGpu | StuckKernelBefore] = {
        "slow": SlowGpu(rank=2, factor=2.5, first_iteration=6, last_iteration=9),
        "stuck": StuckKernelBefore(rank=2, iteration=8, micro_batch=1, phase=Phase.FORWARD, call=1),
    }
    scenario = Scenario(
        name="job", seed=3, tp=2, pp=2, dp=1, ranks_per_node=4, micro_batches=4, iterations=14,
        layers_per_stage=2, faults=(faults[fault],),
    )  # fmt: skip
    return diagnose(observe(simulate(scenario).trace, source), timeline=True)


def timeline_of(diagnosis: Diagnosis) -> Timeline:
    assert diagnosis.timeline is not None
    return diagnosis.timeline


def first(diagnosis: Diagnosis) -> Finding:
    return diagnosis.findings[0]


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """Without a timeline: the findings and their reasons. The bytes as text, so that a change can be read."""
    trace = parse(written(CASES[name]()))
    lines = [f"{trace.path(number)}" for number in trace.tracks]
    for item in trace.instants + trace.slices:
        lines.append(f"{trace.path(item.track)} | {item.name} | {item.start} → {item.end}")
        lines += [f"    {key}: {value}" for key, value in item.arguments.items()]
    text = "\n".join(lines) + "\n"
    path = GOLDEN / f"{name}.perfetto.txt"
    if os.environ.get("MEGATRACE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "look at it, then run with MEGATRACE_UPDATE_GOLDEN=1"


def test_every_call_is_there_once_at_its_time() -> None:
    diagnosis = diagnosed("slow", "ring")
    trace, timeline = parse(written(diagnosis)), timeline_of(diagnosis)
    events = timeline.events
    calls = [item for item in trace.instants if trace.path(item.track).endswith("/calls")]
    assert sorted(item.start for item in calls) == sorted((events.enqueue - diagnosis.clock.t0).tolist())
    assert trace.wall == diagnosis.clock.t0
    words = Counter(item.name.split()[0] for item in calls)
    assert words == Counter(Op(op).name for op in events.op.tolist())


def test_device_work_is_a_slice_and_what_never_ended_has_no_end() -> None:
    diagnosis = diagnosed("stuck", "ring")
    events = timeline_of(diagnosis).events
    assert events.start is not None
    assert events.end is not None
    device = parse(written(diagnosis)).on(r".*/device, stream .*")
    started = events.start != UNSEEN
    assert len(device) == np.count_nonzero(started)
    open_ends = [item for item in device if item.end is None]
    assert len(open_ends) == np.count_nonzero(started & (events.end == UNSEEN))
    assert open_ends
    assert all(item.arguments["state"] == "started, not completed" for item in open_ends)
    closed = sorted(item.end for item in device if item.end is not None)
    assert closed == sorted((events.end[started & (events.end != UNSEEN)] - diagnosis.clock.t0).tolist())


def test_an_arrow_leads_from_each_send_to_its_receive() -> None:
    diagnosis = diagnosed("slow", "ring")
    trace, timeline = parse(written(diagnosis)), timeline_of(diagnosis)
    leaves = {item.leaves: item for item in trace.slices if item.leaves}
    arrives = {item.arrives: item for item in trace.slices if item.arrives}
    assert set(leaves) == set(arrives)
    assert len(leaves) == np.count_nonzero(timeline.events.op == Op.SEND)
    for number, sender in leaves.items():
        receiver = arrives[number]
        assert sender.name.startswith("SEND to rank")
        assert receiver.name.startswith("RECV from rank")
        source, target = (re.findall(r"rank (\d+)", trace.path(end.track))[0] for end in (sender, receiver))
        assert sender.name.endswith(f" {target}")
        assert receiver.name.endswith(f" {source}")
        assert sender.end is not None
        assert receiver.end is not None
        assert receiver.end >= sender.start  # nothing arrives before it left


def test_text_logs_get_arrows_between_their_calls() -> None:
    diagnosis = diagnosed("slow", "text")
    trace, timeline = parse(written(diagnosis)), timeline_of(diagnosis)
    assert not [item for item in trace.slices if "device" in trace.path(item.track)]
    leaves = [item for item in trace.instants if item.leaves]
    assert len(leaves) == np.count_nonzero(timeline.events.op == Op.SEND)


def test_phases_and_the_critical_path_show_the_slow_rank() -> None:
    diagnosis = diagnosed("slow", "ring")
    trace, timeline = parse(written(diagnosis)), timeline_of(diagnosis)
    assert first(diagnosis).culprits.ranks == (2,)
    own = [
        item
        for item in trace.on(r"culprit: rank 2 · [^/]*\(slow compute\)")
        if item.arguments["iteration"] == 7 and item.end is not None
    ]
    assert len(own) == 8  # 4 micro-batches, forward and backward
    usual = [
        item.end - item.start
        for item in trace.on(r"culprit: rank 2 · [^/]*")
        if item.arguments["iteration"] == 3 and item.end is not None
    ]
    slow = [item.end - item.start for item in own if item.end is not None]
    assert sum(slow) > 2 * sum(usual)
    critical = [item for item in trace.on("critical path") if item.arguments["iteration"] == 7]
    assert sum(item.name.startswith("stage 1 ") for item in critical) >= 4
    assert len({(item.name, item.arguments["iteration"]) for item in critical}) == len(critical)
    iterations = trace.on("iterations")
    assert [item.name for item in iterations] == [f"iteration {k}" for k in timeline.iteration.tolist()]


def test_what_a_hang_left_unfinished_is_open() -> None:
    diagnosis = diagnosed("stuck", "text")
    trace = parse(written(diagnosis))
    phases = [item for item in trace.slices if item.arguments.get("state") == "not finished"]
    assert {item.arguments["iteration"] for item in phases} == {8}
    waits = [item for item in trace.slices if item.name.startswith("waits since")]
    victims = set(first(diagnosis).victims)
    assert len(waits) == len(victims)
    assert all(item.end is None for item in waits)
    (finding,) = trace.on("findings/f1 .*")
    assert finding.end is None
    assert finding.name == first(diagnosis).summary


def test_a_long_job_is_cut_around_the_finding_and_says_so() -> None:
    diagnosis = diagnosed("slow", "ring")
    scenario = Scenario(
        name="job", seed=3, tp=2, pp=2, dp=2, ranks_per_node=4, micro_batches=4, iterations=14,
        layers_per_stage=2, faults=(SlowGpu(rank=2, factor=2.5, first_iteration=6, last_iteration=9),),
    )  # fmt: skip
    resolved = resolve(simulate(scenario).trace)
    events = resolved.trace.events
    window = first(diagnosis).window
    assert window is not None
    assert window.end is not None
    ends = np.linspace(int(events.enqueue.min()), int(events.enqueue.max()), 15).astype(np.int64)
    whole = choose(resolved, ends, diagnosis.findings)
    assert (whole.note, len(whole.ranks)) == ("", 8)
    half = choose(resolved, ends, diagnosis.findings, limit=len(events) // 2)
    assert half.start < window.start
    assert half.end > half.start
    assert len(half.ranks) == 8
    assert "calls of t = " in half.note
    few = choose(resolved, ends, diagnosis.findings, limit=len(events) // 40)
    assert 2 in few.ranks.tolist()
    assert set(few.ranks.tolist()) <= {2, 3, 0, 1}  # its tensor group before its pipeline, nobody else
    assert f"{len(few.ranks)} of 8 ranks" in few.note
    one = choose(resolved, ends, diagnosis.findings, limit=1)
    assert one.ranks.tolist() == [2]


def test_a_note_of_what_is_missing_is_the_first_thing_in_the_trace() -> None:
    diagnosis = diagnosed("slow", "ring")
    cut = replace(diagnosis, timeline=replace(timeline_of(diagnosis), note="cut to something"))
    trace = parse(written(cut))
    assert [item.name for item in trace.on("findings")][1] == "cut to something"


def test_names_from_outside_stay_text() -> None:
    nasty = "\x1b[2J\u202e<b>"
    trace = parse(written(replace(hang(), headline=nasty)))
    assert all(item.name.isprintable() for item in trace.instants)
    assert "\\u202e<b>" in trace.on("findings")[0].name


def test_numbers_are_written_as_protobuf_does() -> None:
    assert varint(0) == b"\x00"
    assert varint(300) == b"\xac\x02"
    assert varint(-1) == b"\xff" * 9 + b"\x01"


@pytest.mark.skipif(not SHELL, reason="no trace_processor_shell (MEGATRACE_TRACE_PROCESSOR names one)")
def test_perfetto_itself_opens_it(tmp_path: Path) -> None:
    """The real thing: imports without an error, and its SQL finds slices, arrows and open ends."""
    api = pytest.importorskip("perfetto.trace_processor", reason="the Python package perfetto is absent")
    diagnosis = diagnosed("stuck", "ring")
    content = written(diagnosis)
    path = tmp_path / "calls.perfetto-trace"
    path.write_bytes(content)
    parsed = parse(content)
    with api.TraceProcessor(trace=str(path), config=api.TraceProcessorConfig(bin_path=SHELL)) as processor:

        def count(query: str) -> int:
            return int(next(iter(processor.query(query))).n)

        assert count("select count(*) as n from slice") == len(parsed.slices) + len(parsed.instants)
        assert count("select count(*) as n from slice where dur = -1") == sum(
            item.end is None for item in parsed.slices
        )
        assert count("select count(*) as n from flow") == sum(item.leaves > 0 for item in parsed.slices)
        bad = "name like 'track_event%' and severity in ('error', 'data_loss') and value > 0"
        assert count(f"select count(*) as n from stats where {bad}") == 0
