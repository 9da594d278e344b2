"""Reads the diagnosis of an earlier run, for ``megatrace diagnose --baseline``.

The file is a report of this tool (``--format json``), perhaps of another version and perhaps edited:
untrusted input, of which only what the comparison needs is looked at. Is no verb.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from megatrace.analysis.baseline import EarlierRun
from megatrace.errors import UsageError
from megatrace.model.finding import StageTimes, Verdict

MAX_BYTES = 64 << 20
"""A report of ten thousand ranks with a row for each has a few megabytes."""

Ms = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Times(_Part):
    median: Ms


class _Layout(_Part):
    tp: Size
    pp: Size
    dp: Size
    cp: Size


class _Job(_Part):
    ranks: Size
    layout: _Layout | None = None
    micro_batches: Size | None = None
    iteration_ms: _Times


class _Stage(_Part):
    stage: Annotated[int, Field(ge=0)]
    forward_ms: float | None = None
    backward_ms: float | None = None


class _Report(_Part):
    schema_name: Annotated[Literal["megatrace.diagnosis/1"], Field(alias="schema")]
    verdict: Verdict
    job: _Job
    stages: tuple[_Stage, ...] = ()


def read_earlier_run(path: Path) -> EarlierRun:
    """What the comparison needs of a diagnosis. ``UsageError`` where the file is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB; this is no diagnosis")
    try:
        report = _Report.model_validate(json.loads(content))
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole file"
        raise UsageError(
            f"{path}: no diagnosis to compare with ({key} is missing or wrong); "
            "write one with: megatrace diagnose PATH --format json"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"{path}: not JSON; write a diagnosis with: megatrace diagnose PATH --format json"
        ) from None
    job, layout = report.job, report.job.layout
    return EarlierRun(
        name=path.name,
        iteration_ms=job.iteration_ms.median,
        ranks=job.ranks,
        layout=(layout.tp, layout.pp, layout.dp, layout.cp) if layout else None,
        micro_batches=job.micro_batches,
        verdict=report.verdict,
        stages=tuple(
            StageTimes(item.stage, item.forward_ms, item.backward_ms, None, None) for item in report.stages
        ),
    )
