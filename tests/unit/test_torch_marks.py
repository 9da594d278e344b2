"""Steps and micro-batches that the processes of a job mark themselves, and what findings gain by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from megatrace.analysis.marks import with_marks
from megatrace.collect import torch_marks, torch_ring, torch_watch
from megatrace.collect.torch_marks import BACKWARD, FORWARD, MARK, STEP, Marks
from megatrace.model import marks as model
from megatrace.model.events import Events, Op
from megatrace.model.finding import Culprits, Diagnosis, Finding, JobSummary, Kind, Severity, Verdict, Window
from megatrace.model.marks import MarkKind
from megatrace.model.ringformat import parse_ring
from megatrace.model.schedule import Phase
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from megatrace.readers.torch_ring import MARK as READ
from megatrace.readers.torch_ring import marks_of


class Kept(Marks):
    """Marks that keep what they would write: (what, number, step)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, int, int]] = []
        self.in_use = lambda: True
        self.put = self.keep

    def keep(self, tail: bytes, comm: bytes, number: int, step: int, peer: int) -> int:
        kind, what, *_ = torch_ring.TAIL.unpack(tail)
        assert kind == MARK
        self.lines.append((what, number, step))
        return len(self.lines)


def test_steps_and_micro_batches_are_counted_by_step() -> None:
    marks, optimizer = Kept(), object()
    for _ in range(2):
        for _ in range(2):
            marks.micro_batch(FORWARD)
            marks.micro_batch(BACKWARD)
        marks.stepped_by(optimizer)
    one = [(FORWARD, 0), (BACKWARD, 0), (FORWARD, 1), (BACKWARD, 1)]
    expected = [(what, number, 0) for what, number in one] + [(STEP, 0, 0)]
    expected += [(what, number, 1) for what, number in one] + [(STEP, 1, 1)]
    assert marks.lines == expected


def test_optimizers_that_are_chained_make_one_step() -> None:
    marks, first, second = Kept(), object(), object()
    for _ in range(3):
        marks.stepped_by(first)
        marks.stepped_by(second)
    assert marks.lines == [(STEP, 0, 0), (STEP, 1, 1), (STEP, 2, 2)]


def test_nothing_is_written_before_a_group_was_used() -> None:
    marks = Kept()
    marks.in_use = lambda: False
    marks.micro_batch(FORWARD)
    assert marks.lines == []


def test_an_error_of_ours_ends_the_marks_and_not_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    marks = Kept()

    def broken(*_: Any) -> int:
        raise OSError("no room")

    marks.put = broken
    marks.micro_batch(FORWARD)
    marks.micro_batch(FORWARD)
    assert capsys.readouterr().err.count("no longer marked") == 1


def test_functions_and_methods_are_found_by_name_and_do_what_they_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept()
    monkeypatch.setattr(torch_marks, "MARKS", kept)
    module = ModuleType("torch.distributed.pipelining.stage")

    class _PipelineStageBase:
        def forward_one_chunk(self, chunk: int, *, extra: int = 0) -> int:
            """Runs one."""
            return chunk + extra

    module._PipelineStageBase = _PipelineStageBase  # type: ignore[attr-defined]
    torch_marks.watch_micro_batches(module)
    assert _PipelineStageBase().forward_one_chunk(3, extra=4) == 7
    assert _PipelineStageBase.forward_one_chunk.__doc__ == "Runs one."
    megatron = ModuleType("megatron.core.pipeline_parallel.schedules")
    megatron.forward_step = lambda: "forward"  # type: ignore[attr-defined]
    torch_marks.watch_micro_batches(megatron)
    assert megatron.forward_step() == "forward"
    assert kept.lines == [(FORWARD, 0, 0), (FORWARD, 1, 0)]


def test_both_lists_of_places_are_the_same() -> None:
    assert tuple(torch_marks.PLACES) == torch_watch.PLACES
    assert torch_marks.OPTIMIZER == torch_watch.OPTIMIZER
    assert READ == MARK
    assert [int(kind) for kind in MarkKind] == [STEP, FORWARD, BACKWARD]


def test_marks_come_back_from_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    ring = torch_ring.Ring(str(tmp_path), 64)
    marks = Kept()
    marks.put = lambda *values: ring.put(*values)
    ring.put(torch_ring.tail_of(Op.ALL_REDUCE, 7), b"12345678", 0, 4, -1)
    marks.micro_batch(FORWARD)
    marks.stepped_by(marks)
    trace = open_trace([tmp_path])
    assert len(trace.events) == 1, "a mark is no call"
    assert trace.marks is not None
    assert trace.marks.rank.tolist() == [3, 3]
    assert trace.marks.kind.tolist() == [FORWARD, STEP]
    again = marks_of(parse_ring(Path(ring.path).read_bytes(), "r"), 3)
    assert (again.time == trace.marks.time).all()


def marked(*lines: tuple[int, int, int, int, int]) -> Trace:
    """(rank, time, what, number, step)."""
    columns = [np.array(column) for column in zip(*lines, strict=True)]
    kinds = (np.int32, np.int64, np.uint8, np.int64, np.int64)
    made = model.Marks(*(column.astype(kind) for column, kind in zip(columns, kinds, strict=True)))
    return Trace(Events.empty(), marks=made)


HANG = Finding(
    Kind.HANG_HOST, Severity.P0, "rank 5 stopped", culprits=Culprits(ranks=(5,)), window=Window(100, None)
)


def placed(trace: Trace, finding: Finding = HANG) -> Finding:
    diagnosis = Diagnosis(Verdict.HANG, finding.summary, JobSummary(8, 8), findings=(finding,))
    return with_marks(diagnosis, trace).findings[0]


def test_a_hang_gets_the_step_and_the_micro_batch_of_its_culprit() -> None:
    trace = marked(
        (4, 90, STEP, 11, 11),
        (5, 50, STEP, 6, 6), (5, 60, FORWARD, 0, 7), (5, 150, FORWARD, 1, 7),
    )  # fmt: skip
    finding = placed(trace)
    assert (finding.where.training_step, finding.where.micro_batch) == (7, 1)
    assert finding.where.phase is Phase.FORWARD
    assert finding.culprits == HANG.culprits
    assert "training step 7 by its optimizer, and had begun the forward of micro-batch 1" in (
        finding.evidence[-1].text
    )


def test_slowness_is_placed_at_its_beginning() -> None:
    trace = marked((5, 50, STEP, 6, 6), (5, 60, FORWARD, 0, 7), (5, 150, STEP, 7, 7))
    finding = placed(trace, replace(HANG, kind=Kind.SLOW_COMPUTE))
    assert (finding.where.training_step, finding.where.micro_batch) == (7, None)
    assert placed(trace).where.training_step == 8, (
        "who stands has gone on to the next step since its last call"
    )


def test_where_the_calls_say_the_micro_batch_they_are_believed() -> None:
    where = replace(HANG.where, micro_batch=3, phase=Phase.BACKWARD)
    trace = marked((5, 50, STEP, 6, 6), (5, 60, FORWARD, 0, 7))
    assert placed(trace, replace(HANG, where=where)).where.micro_batch == 3


def test_a_ring_that_lost_the_marks_before_tells_no_step() -> None:
    slow = replace(HANG, kind=Kind.SLOW_COMPUTE)
    assert placed(marked((5, 150, STEP, 9, 9)), slow).where.training_step is None
    assert placed(marked((5, 150, FORWARD, 0, 9))).where.training_step == 9
