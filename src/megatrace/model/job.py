"""What a job was told to be: sizes, batch, schedule, features, each value with where it was read.

A declared value may be wrong (a copied job.yaml); the analysis checks it against what the calls show and
believes the calls. So every value carries its source, and absent means "nobody said".
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value and where it was read ("job.yaml: parallel.tensor", "argv --tensor-model-parallel-size")."""

    value: T
    source: str


class ScheduleKind(Enum):
    """Pipeline schedules known to ``model.schedule``."""

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    GPIPE = "gpipe"


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The declared configuration. Counts are positive ints; ``None`` where nothing was declared."""

    world_size: Sourced[int] | None = None
    ranks_per_node: Sourced[int] | None = None
    tensor: Sourced[int] | None = None
    pipeline: Sourced[int] | None = None
    data: Sourced[int] | None = None
    context: Sourced[int] | None = None
    expert: Sourced[int] | None = None
    virtual: Sourced[int] | None = None
    order: Sourced[str] | None = None
    micro_batch: Sourced[int] | None = None
    global_batch: Sourced[int] | None = None
    schedule: Sourced[ScheduleKind] | None = None
    layers: Sourced[int] | None = None
    hidden: Sourced[int] | None = None
    sequence_length: Sourced[int] | None = None
    vocabulary: Sourced[int] | None = None
    gpu_type: Sourced[str] | None = None
    features: Sourced[tuple[str, ...]] | None = None
    unobserved: Sourced[tuple[str, ...]] | None = None
    """Words of ``model.blind_spots``: communication that is not recorded"""
    hosts: tuple[str, ...] = field(default=())
    """Node names in order of rank, where a host file was given."""

    def declared(self) -> dict[str, Sourced[object]]:
        """Every declared value by field name."""
        values = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: value for name, value in values if isinstance(value, Sourced)}
