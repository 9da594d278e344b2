"""When everybody who takes part in a coalesced exchange had come to it.

An interleaved stage exchanges with both its neighbours in one batch (``batch_isend_irecv``), and its host
goes on when the whole batch is done: an input may wait for the neighbour on the other side. A transfer has
begun only when all of them have posted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.model.graph import IterationGraph
from megatrace.model.schedule import Action, Phase, Schedule, Step, Task

F8 = NDArray[np.float64]


def all_posted(schedule: Schedule, send: F8, recv: F8) -> F8:
    """[K, S, D, M, T]: when the last peer posted in the batch of each task's Recv; NaN without one.

    ``send`` and ``recv`` likewise: when each task's Send and Recv were posted. Peers that were not seen are
    left out.
    """
    graph = IterationGraph.of(schedule)
    stages, tasks = schedule.pp, graph.tasks
    sender, receiver = graph.sender.reshape(stages, tasks), graph.receiver.reshape(stages, tasks)
    posted = np.full_like(recv, np.nan)
    for stage in range(stages):
        index = {task: i for i, task in enumerate(schedule.tasks(stage))}
        batches: dict[int, list[tuple[Step, int]]] = {}
        for step in schedule.program(stage):
            if not step.action.is_compute:
                batches.setdefault(step.batch, []).append((step, index[_task(step)]))
        for batch in batches.values():
            last = np.full(recv.shape[:1] + recv.shape[2:4], np.nan)
            for step, task in batch:
                peer = receiver[stage, task] if step.action.is_send else sender[stage, task]
                if peer >= 0:
                    times = recv if step.action.is_send else send
                    last = np.fmax(last, times[:, peer // tasks, :, :, peer % tasks])
            for step, task in batch:
                if not step.action.is_send:
                    posted[:, stage, :, :, task] = last
    return posted


def _task(step: Step) -> Task:
    forward = step.action in (Action.SEND_FORWARD, Action.RECV_FORWARD)
    return Task(Phase.FORWARD if forward else Phase.BACKWARD, step.micro_batch, step.chunk)
