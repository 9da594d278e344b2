"""``profile``: the recordings of a profiler in, everything that is to be said of them out.

The order of the parts and nothing else: each is a module ``profile_*`` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from megatrace.analysis import profile_overlap, profile_tables, profile_times
from megatrace.analysis.profile_collectives import bubble, calls, collectives, machine_of
from megatrace.analysis.profile_job_path import job_path, why_not
from megatrace.analysis.profile_path import Window, critical_path, windows
from megatrace.analysis.profile_queues import memory, queues
from megatrace.model.profile import Activity, RankProfile, work_of
from megatrace.model.profile_result import CriticalPath, ProfileInput, ProfileResult, StepTime

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
STEP = "ProfilerStep"
"""How PyTorch's profiler marks a step that its schedule has counted."""


def profile(
    profiles: Sequence[RankProfile], notes: Sequence[str] = (), window: str | None = None
) -> ProfileResult:
    """What the profiles of one run, ascending by rank and at least one, say of its time.

    ``window`` is a part of a name: critical paths go through each host activity of such a name instead of
    through everything.
    """
    host, device = profile_tables.tables(profiles)
    communication = [calls(one) for one in profiles]
    return ProfileResult(
        source="kineto",
        inputs=tuple(
            ProfileInput(one.path, one.rank, len(one.activities), one.device_name) for one in profiles
        ),
        ranks=tuple(
            replace(time, bubble=bubble(one, found))
            for one, found in zip(profiles, communication, strict=True)
            if (time := profile_overlap.rank_time(one)) is not None
        ),
        streams=tuple(time for one in profiles for time in profile_overlap.stream_times(one)),
        steps=tuple(step for one in profiles for step in steps(one)),
        operators=profile_times.operators(host),
        shapes=profile_times.by_shape(host),
        modules=profile_times.modules(host),
        kernels=profile_times.kernels(device, {name: work_of(name) for name in device.names}),
        paths=tuple(path for one in profiles for path in paths(one, window)),
        job_path=job_path(profiles, communication),
        collectives=collectives(communication, machine_of(profiles)),
        queues=tuple(queue for one in profiles for queue in queues(one)),
        memory=tuple(use for one in profiles for use in memory(one)),
        flame=profile_times.flame(host),
        graphs=sum(graph_launches(one) for one in profiles),
        world_size=max((one.world_size for one in profiles if one.world_size is not None), default=None),
        notes=tuple(filter(None, (*notes, why_not(profiles, communication)))),
    )


def paths(one: RankProfile, window: str | None) -> tuple[CriticalPath, ...]:
    """The critical path of one rank, or those through every window of a name."""
    wanted: Sequence[Window | None] = [None] if window is None else windows(one, window)
    return tuple(path for place in wanted if (path := critical_path(one, place)) is not None)


def graph_launches(one: RankProfile) -> int:
    """How many CUDA (HIP) graphs were launched."""
    named = [number for number, name in enumerate(one.names) if name in GRAPH_LAUNCHES]
    return int(np.isin(one.activities.name, named).sum())


def steps(one: RankProfile) -> tuple[StepTime, ...]:
    """The training steps that the profiler marked, in order."""
    activities = one.activities
    found = [
        StepTime(one.rank, one.names[name], start, end)
        for kind, name, start, end in zip(
            activities.kind.tolist(),
            activities.name.tolist(),
            activities.start.tolist(),
            activities.end.tolist(),
            strict=True,
        )
        if kind == Activity.ANNOTATION and one.names[name].startswith(STEP)
    ]
    return tuple(sorted(found, key=lambda step: step.start))
