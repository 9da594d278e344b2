"""Adds to findings what the processes themselves said of where they were: training step, micro-batch.

Iterations that are inferred from calls count from the first that was seen, and a job without a pipeline shows
no micro-batches in its calls. Marks of the optimizer and of the framework (``model.marks``) are the job's own
numbers. They complete a finding and never change whom it names.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megatrace.model.finding import Diagnosis, Evidence, Finding, Verdict
from megatrace.model.marks import MarkKind, Marks
from megatrace.model.schedule import Phase
from megatrace.model.trace import Trace

_PHASES = {MarkKind.FORWARD: Phase.FORWARD, MarkKind.BACKWARD: Phase.BACKWARD}


def with_marks(diagnosis: Diagnosis, trace: Trace) -> Diagnosis:
    """The diagnosis with the training step of each finding, and of a hang the micro-batch."""
    marks = trace.marks
    if marks is None or not len(marks):
        return diagnosis
    return replace(diagnosis, findings=tuple(_placed(item, marks) for item in diagnosis.findings))


def _placed(finding: Finding, marks: Marks) -> Finding:
    if finding.window is None:
        return finding
    known = set(marks.rank.tolist())
    rank = next((rank for rank in finding.culprits.ranks if rank in known), min(known))
    mine = marks.of_rank(rank)
    # Who stands has made its last call before the step that it stands in, and marks that step later.
    stands = finding.kind.verdict is Verdict.HANG and rank in finding.culprits.ranks
    before = np.ones(len(mine), np.bool_) if stands else mine.time <= finding.window.start
    steps = mine.number[before & (mine.kind == MarkKind.STEP)]
    if not len(steps) and mine.kind[0] == MarkKind.STEP:
        return finding  # the ring has lost what came before
    step = int(steps[-1]) + 1 if len(steps) else int(mine.step[0])
    where = replace(finding.where, training_step=step)
    text = f"rank {rank} was in training step {step} by its optimizer"
    tasks = np.flatnonzero(before & np.isin(mine.kind, list(_PHASES)))
    if stands and len(tasks):
        last = int(tasks[-1])
        phase, number = _PHASES[MarkKind(int(mine.kind[last]))], int(mine.number[last])
        if int(mine.step[last]) == step:
            text += f", and had begun the {phase.value} of micro-batch {number}"
            if where.micro_batch is None and where.phase in (None, phase):
                where = replace(where, micro_batch=number, phase=phase)
    return replace(finding, where=where, evidence=(*finding.evidence, Evidence(text, step, "steps")))
