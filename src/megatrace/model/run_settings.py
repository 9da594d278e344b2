"""What a run was told and what it ran on: the settings by which two runs are told apart.

Words as they were recorded, never interpreted: two runs are compared by them, and a person reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Area(Enum):
    """What a setting belongs to."""

    CONFIGURATION = "configuration"
    ENVIRONMENT = "environment"
    SOFTWARE = "software"
    PROFILER = "profiler"
    COMMIT = "commit"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that a run was told or that it ran on."""

    area: Area
    key: str
    value: str
