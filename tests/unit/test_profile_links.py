"""Bandwidth of collectives against what the GPUs' links carry and against groups like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.analysis.gpu_types import GPU_TYPES, gpu_type
from megatrace.analysis.profile_collectives import Call, Machine, collectives
from megatrace.analysis.profiling import profile
from megatrace.model.events import Op
from megatrace.model.profile import Collective
from megatrace.reports import ReportOptions
from megatrace.reports.profile_text import render
from tests.unit.profile_cases import profiled, tiny

MS = 1_000_000


@pytest.mark.parametrize(
    ("gpus", "name", "link"),
    [(8, "NVIDIA H100 80GB HBM3", 450e9), (2, "NVIDIA H100 80GB HBM3", None), (8, "Unheard Of", None)],
    ids=["one machine", "two machines", "unknown GPU"],
)
def test_a_group_within_a_machine_is_held_against_its_links(
    tmp_path: Path, gpus: int, name: str, link: float | None
) -> None:
    one = profiled(tmp_path, tiny(), deviceProperties=[{"name": name}] * gpus)
    assert one.gpus == gpus
    (row,) = profile([one]).collectives
    assert row.bus == pytest.approx(7.5e9)  # 1 MB in 200 µs among four: 5 GB/s × 2 × 3/4
    assert row.link == link
    assert ("2% of link" in render(profile([one]), ReportOptions())) is (link is not None)


def kernels(group: str, ranks: tuple[int, ...], ms: int, elements: int = 1_000_000) -> list[Call]:
    said = Collective(Op.ALL_REDUCE, group=group, ranks=ranks, group_size=len(ranks), element=4,
                      elements_in=elements)  # fmt: skip
    return [Call(ranks[0], said, nth * 100 * MS, nth * 100 * MS + ms * MS, 0, nth) for nth in range(3)]


def test_groups_of_one_kind_are_held_against_each_other() -> None:
    found = [
        kernels("a", (0, 1), 1),
        kernels("b", (2, 3), 1),
        kernels("slow", (4, 5), 4),
        kernels("other size", (6, 7), 1, elements=7),
        kernels("other width", (0, 1, 2, 3), 1),
    ]
    alike = {row.group: row.alike for row in collectives(found)}
    assert alike == {
        "a": pytest.approx((4e9 + 1e9) / 2),
        "b": pytest.approx((4e9 + 1e9) / 2),
        "slow": pytest.approx(4e9),
        "other size": None,
        "other width": None,
    }


def test_ranks_are_counted_machine_by_machine() -> None:
    assert Machine(8).holds((8, 15))
    assert not Machine(8).holds((7, 8))
    assert not Machine(8).holds((3,))
    assert not Machine(0).holds((0, 1))


def test_links_are_one_way() -> None:
    assert {kind.name: kind.link for kind in GPU_TYPES if kind.link}["H100 SXM"] == 450e9
    exported = gpu_type("NVIDIA H800")
    assert exported is not None
    assert exported.link == 200e9
    bridged = gpu_type("NVIDIA A100-PCIE-40GB")
    assert bridged is not None
    assert bridged.link is None
