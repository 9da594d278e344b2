"""What follows from a declared configuration: layout, schedule, and where it contradicts itself.

A configuration is written by hand and copied from job to job, so it can be wrong, and a wrong one must not
stop a diagnosis in the middle of an incident: contradictions are sentences for a person, and what cannot be
made of a contradictory configuration is None. Whether the calls agree with it is ``analysis.infer_layout``'s
business.
"""

from __future__ import annotations

from megatrace.model.job import JobConfig, ScheduleKind, Sourced
from megatrace.model.layout import DEFAULT_ORDER, ParallelLayout
from megatrace.model.schedule import Schedule


def _value(item: Sourced[int] | None, default: int = 1) -> int:
    return default if item is None else item.value


def layout_of(job: JobConfig) -> ParallelLayout | None:
    """The declared layout: tensor and pipeline must be declared, and data or the world size; the rest is 1.

    None where too little is declared or where it is impossible (see ``contradictions``).
    """
    if job.tensor is None or job.pipeline is None or (job.data is None and job.world_size is None):
        return None
    replica = job.tensor.value * job.pipeline.value * _value(job.context)
    data, rest = (job.data.value, 0) if job.data else divmod(_value(job.world_size), replica)
    if rest or data < 1:
        return None
    if job.world_size is not None and job.world_size.value != replica * data:
        return None
    try:
        return ParallelLayout(
            tp=job.tensor.value,
            pp=job.pipeline.value,
            dp=data,
            cp=_value(job.context),
            ep=_value(job.expert),
            vpp=_value(job.virtual),
            order=job.order.value if job.order else DEFAULT_ORDER,
        )
    except ValueError:
        return None


def schedule_of(job: JobConfig, layout: ParallelLayout | None = None) -> Schedule | None:
    """The declared schedule; needs both batch sizes and a layout (default: the declared one). None otherwise.

    Undeclared, the schedule is interleaved where there are virtual stages and 1F1B where there are not.
    """
    layout = layout or layout_of(job)
    if layout is None or job.micro_batch is None or job.global_batch is None:
        return None
    micro_batches, rest = divmod(job.global_batch.value, job.micro_batch.value * layout.dp)
    default = ScheduleKind.INTERLEAVED if layout.vpp > 1 else ScheduleKind.ONE_F_ONE_B
    kind = job.schedule.value if job.schedule else default
    if rest:
        return None
    try:
        return Schedule(kind, layout.pp, micro_batches, layout.vpp)
    except ValueError:
        return None


def contradictions(job: JobConfig) -> tuple[str, ...]:
    """Sentences that say where a configuration cannot be right, whatever the calls show. Empty where it
    can."""
    found = [*_sizes(job), *_batches(job)]
    if job.schedule is not None and job.virtual is not None:
        interleaved = job.schedule.value is ScheduleKind.INTERLEAVED
        if interleaved != (job.virtual.value > 1):
            found.append(
                f"{job.schedule.source} is {job.schedule.value.value}, "
                f"but {job.virtual.source} is {job.virtual.value}; only interleaved has virtual stages."
            )
    return tuple(found)


def _sizes(job: JobConfig) -> list[str]:
    found = []
    parts = {"tensor": job.tensor, "pipeline": job.pipeline, "data": job.data, "context": job.context}
    declared = {name: item.value for name, item in parts.items() if item is not None}
    product = 1
    for value in declared.values():
        product *= value
    text = " · ".join(f"{name} {value}" for name, value in declared.items())
    world = job.world_size
    if world is not None and declared:
        complete = {"tensor", "pipeline", "data"} <= declared.keys()
        if complete and world.value != product:
            found.append(f"{world.source} is {world.value}, but {text} = {product}.")
        elif world.value % product:
            found.append(f"{world.source} is {world.value}, no multiple of {text} = {product}.")
    if job.expert is not None and job.data is not None:
        both = job.data.value * _value(job.context)
        if both % job.expert.value:
            found.append(
                f"{job.expert.source} is {job.expert.value}, which does not divide data · context = {both}."
            )
    return found


def _batches(job: JobConfig) -> list[str]:
    micro, whole = job.micro_batch, job.global_batch
    if micro is None or whole is None:
        return []
    layout = layout_of(job)
    replicas = layout.dp if layout else _value(job.data)
    if whole.value % (micro.value * replicas):
        return [f"{whole.source} is {whole.value}, no multiple of micro · data = {micro.value * replicas}."]
    return []
