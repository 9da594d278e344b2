"""The parallel layout from the names that a framework gives its groups.

Megatron-LM describes every group ("TENSOR_MODEL_PARALLEL_GROUP"), a device mesh names its dimensions
("mesh_tp"). With members known, the layout that these groups are slices of follows without looking at calls.

Does not believe names alone: a layout has to explain the members of the groups.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from megatrace.analysis.groups import Group, fit_layouts
from megatrace.analysis.roles import Role
from megatrace.model.layout import ParallelLayout
from megatrace.model.trace import Communicator

BELIEVED = 0.99
"""Share of the named groups that a layout must explain: names and members are exact, so nothing may be left
over."""
_NAMES = {
    Role.TENSOR: r"^TENSOR_MODEL_PARALLEL_GROUP\b|^(mesh_)?tp\b|tensor_parallel",
    Role.PIPELINE: r"^PIPELINE_MODEL_PARALLEL_GROUP\b|^(mesh_)?pp\b|pipe(line)?_parallel",
    Role.DATA: r"^DATA_PARALLEL_GROUP(_WITH_CP)?\b|^(mesh_)?dp(_replicate|_shard)?\b",
    Role.CONTEXT: r"^CONTEXT_PARALLEL_GROUP\b|^(mesh_)?cp\b",
}


def layout_of_names(communicators: Sequence[Communicator], world: int) -> ParallelLayout | None:
    """The layout that explains all groups with a telling name, None where there is none."""
    groups = []
    for communicator in communicators:
        name = communicator.name or ""
        role = next((role for role, said in _NAMES.items() if re.search(said, name, re.IGNORECASE)), None)
        if role is not None and communicator.members and len(communicator.members) > 1:
            groups.append(Group(communicator.members, role, 1))
    fits = fit_layouts(groups, world, np.arange(world, dtype=np.int32)) if groups else []
    return fits[0].layout if fits and fits[0].score >= BELIEVED else None
