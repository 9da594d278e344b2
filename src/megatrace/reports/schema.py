"""The shape of the JSON report, written once: types that check the code and make the JSON Schema.

Every key is always there; what is not known is null. Keys may be added under ``megatrace.diagnosis/1``; a
key that is removed or changes its meaning makes ``/2``. The published copy is
``docs/reference/diagnosis.schema.json``.

Does not build a report (``jsonfile``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

SCHEMA_NAME: Literal["megatrace.diagnosis/1"] = "megatrace.diagnosis/1"

RANGES = r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$"

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
RankRanges = Annotated[str, Field(pattern=RANGES, description='A set of ranks, "0-1,4-7"; "" for none.')]
Seconds = Annotated[float, Field(description="Seconds after clock.t0_ns.")]
Duration = Annotated[float, Field(ge=0)]
KindName = Literal[
    "slow_compute",
    "slow_host",
    "slow_network",
    "slow_storage",
    "slow_uniform",
    "imbalance",
    "jitter",
    "hang_host",
    "hang_device",
    "hang_network",
    "hang_group",
    "mismatch",
    "missing_call",
    "deadlock",
    "dead_rank",
    "hardware",
    "configuration",
    "software",
    "resource",
]
VerdictName = Literal["healthy", "slow", "hang", "failed", "undecidable"]
SeverityName = Literal["P0", "P1", "P2", "P3", "INFO"]
StatusName = Literal["ongoing", "recovered", "intermittent"]
PhaseName = Literal["forward", "backward", "sync", "other"]


class InputJson(TypedDict):
    """One input as it was read."""

    path: str
    reader: str
    observables: list[str]
    ranks: Count


class ClockJson(TypedDict):
    """Time zero of all seconds in this report, and how well the nodes' clocks are aligned."""

    t0_ns: Annotated[
        str, Field(pattern=r"^-?\d+$", description="ns since the Unix epoch; a string: it exceeds 2^53.")
    ]
    reference: str | None
    error_us: float | None
    unaligned_nodes: list[str]


class LayoutJson(TypedDict):
    """Sizes of the parallel axes and their order (leftmost fastest)."""

    tp: Positive
    pp: Positive
    dp: Positive
    cp: Positive
    ep: Positive
    vpp: Positive
    order: str
    source: Literal["inferred", "config"] | None


class IterationMsJson(TypedDict):
    """Duration of an iteration in ms over all that were seen."""

    median: Duration | None
    p95: Duration | None


class JobJson(TypedDict):
    """The job as it was seen."""

    ranks: Count
    ranks_seen: Count
    nodes: Count | None
    layout: LayoutJson | None
    schedule: Literal["1f1b", "interleaved", "gpipe"] | None
    micro_batches: Count | None
    iterations: Count | None
    iteration_numbering: Literal["absolute", "relative"]
    iteration_ms: IterationMsJson
    span_s: Annotated[list[Seconds], Field(min_length=2, max_length=2)] | None
    baseline: str | None


class EndpointJson(TypedDict):
    """One end of a link."""

    rank: Count | None
    node: str | None
    device: str | None
    port: int | None


class LinkJson(TypedDict):
    """A path from one end to another."""

    src: EndpointJson
    dst: EndpointJson


class DeviceJson(TypedDict):
    """A GPU, NIC or other part of a node."""

    node: str | None
    device: str | None


class CulpritsJson(TypedDict):
    """Who did it; all empty where nobody in particular did (jitter, imbalance)."""

    ranks: list[Count]
    nodes: list[str]
    devices: list[DeviceJson]
    links: list[LinkJson]


class VictimsJson(TypedDict):
    """Who only waited."""

    ranks: RankRanges


class WhereJson(TypedDict):
    """Where in the job; all indices from 0."""

    stage: Count | None
    iteration: Count | None
    training_step: Count | None
    micro_batch: Count | None
    phase: PhaseName | None
    op: str | None
    communicator: str | None
    seq: Count | None
    peer: Count | None


class WindowJson(TypedDict):
    """From when to when; end_s null while it lasts. Iterations inclusive."""

    start_s: Seconds | None
    end_s: Seconds | None
    first_iteration: Count | None
    last_iteration: Count | None


class ImpactJson(TypedDict):
    """slowdown: factor of the iteration time, 1 = none; seconds of the job; GPU-hours of all its ranks."""

    slowdown: Duration | None
    seconds_lost: float | None
    gpu_hours_lost: float | None


class EvidenceJson(TypedDict):
    """One reason to believe a finding."""

    text: str
    value: float | None
    unit: str | None


class FindingJson(TypedDict):
    """One thing that is wrong."""

    id: str
    fingerprint: str
    kind: KindName
    kind_alternatives: list[KindName]
    severity: SeverityName
    status: StatusName
    summary: str
    confidence: Annotated[float, Field(ge=0, le=1)] | None
    ambiguous: bool
    caused_by: list[str]
    culprits: CulpritsJson
    victims: VictimsJson
    where: WhereJson
    window: WindowJson | None
    impact: ImpactJson
    evidence: list[EvidenceJson]
    exonerated: list[str]
    chain: list[str]
    remedy: str


class StageJson(TypedDict):
    """Medians of one stage in ms: forward and backward of a micro-batch, work and wait of an iteration."""

    stage: Count
    forward_ms: Duration | None
    backward_ms: Duration | None
    work_ms: Duration | None
    wait_ms: Duration | None


class NextStepJson(TypedDict):
    """What to run next."""

    command: str
    why: str


class RankPlaceJson(TypedDict):
    """Where a rank runs."""

    rank: Count
    node: str | None
    local_rank: Count | None
    device: str | None


class GapJson(TypedDict):
    """A stretch of one rank's calls that the recording lost."""

    rank: Count
    start_s: Seconds | None
    end_s: Seconds | None
    records_lost: Count | None


class CoverageJson(TypedDict):
    """What the inputs lack."""

    ranks_missing: RankRanges
    gaps: list[GapJson]
    lines: Count
    bad_lines: Count
    torn_tails: RankRanges
    spans_cut: Count
    notes: list[str]


class DiagnosisJson(TypedDict):
    """Everything that MegaTrace knows after looking at the recordings of one job."""

    schema: Literal["megatrace.diagnosis/1"]
    tool_version: str
    generated_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None
    verdict: VerdictName
    headline: str
    inputs: list[InputJson]
    clock: ClockJson
    job: JobJson
    findings: list[FindingJson]
    stages: list[StageJson]
    alternatives: list[str]
    next_steps: list[NextStepJson]
    warnings: list[str]
    ranks_map: list[RankPlaceJson] | None
    coverage: CoverageJson


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the JSON report."""
    body = _without_titles(TypeAdapter(DiagnosisJson).json_schema(mode="serialization"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:megatrace:diagnosis:1",
        "title": SCHEMA_NAME,
        **body,
    }


def _without_titles(node: Any) -> Any:
    """Without the titles that pydantic makes up from the keys: they repeat the key and say nothing."""
    if isinstance(node, dict):
        return {key: _without_titles(value) for key, value in node.items() if key != "title"}
    return [_without_titles(item) for item in node] if isinstance(node, list) else node
