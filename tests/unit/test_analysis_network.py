"""Which path is sick, stands, or has nothing to carry, from series made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.analysis.network import DRAWN, STALL_NS, diagnose_network, judge_network
from megatrace.model.events import Events
from megatrace.model.finding import Kind, Status, Verdict
from megatrace.model.series import Series, SeriesKind
from megatrace.model.trace import Trace

STEP = 50_000_000
T0 = 1_700_000_000_000_000_000


def path(
    name: str, bandwidth: list[float], outstanding: list[float], depth: list[float] | None = None
) -> list[Series]:
    """Three series at 50 ms a sample."""
    times = T0 + STEP * np.arange(len(bandwidth), dtype=np.int64)
    depth = depth or [min(value, 8.0) for value in outstanding]
    values = {
        SeriesKind.BANDWIDTH: bandwidth,
        SeriesKind.OUTSTANDING_BYTES: outstanding,
        SeriesKind.QUEUE_DEPTH: depth,
    }
    return [Series(kind, name, 0, "n0", "mlx5_0", times, np.array(column)) for kind, column in values.items()]


def healthy(name: str, samples: int = 60) -> list[Series]:
    return path(name, [10e9] * samples, [4e6] * samples)


def test_a_path_that_is_slow_while_data_waits_is_sick() -> None:
    slow = [10e9] * 20 + [2e9] * 40
    series = healthy("a → b") + healthy("a → c") + path("a → d", slow, [4e6] * 60)
    (finding,) = judge_network(series, (), None).findings
    assert finding.kind is Kind.SLOW_NETWORK
    assert finding.culprits.links[0].dst.device == "d"
    assert finding.status is Status.ONGOING
    assert finding.window is not None
    assert finding.window.start == T0 + 20 * STEP


def test_a_path_that_is_slow_with_an_empty_queue_has_nothing_to_send() -> None:
    """What little there is goes out a message at a time: low bandwidth, and nothing waits."""
    series = healthy("a → b") + healthy("a → c") + path("a → d", [2e9] * 60, [0.0] * 60)
    assert judge_network(series, (), None).findings == ()


def test_a_path_that_became_well_again_is_told_so() -> None:
    slow = [10e9] * 20 + [2e9] * 20 + [10e9] * 20
    series = healthy("a → b") + healthy("a → c") + path("a → d", slow, [4e6] * 60)
    (finding,) = judge_network(series, (), None).findings
    assert finding.status is Status.RECOVERED


def test_all_paths_slow_alike_blame_none() -> None:
    series = [item for name in "bcd" for item in path(f"a → {name}", [2e9] * 60, [4e6] * 60)]
    assert judge_network(series, (), None).findings == ()


@pytest.mark.parametrize("samples", [5, 9])
def test_a_short_fall_is_a_burst_that_met_another(samples: int) -> None:
    slow = [10e9] * 30 + [2e9] * samples + [10e9] * 30
    n = len(slow)
    series = healthy("a → b", n) + healthy("a → c", n) + path("a → d", slow, [4e6] * n)
    assert judge_network(series, (), None).findings == ()


def test_a_queue_that_holds_data_and_does_not_move_stands() -> None:
    stalled = path("a → d", [10e9] * 20, [4e6] * 20)
    last = T0 + 19 * STEP
    series = healthy("a → b") + stalled
    (finding,) = judge_network(series, (), last + STALL_NS).findings
    assert finding.kind is Kind.HANG_NETWORK
    assert finding.culprits.links[0].dst.device == "d"
    assert judge_network(series, (), last + STALL_NS - 1).findings == ()


def test_an_empty_queue_looks_upstream() -> None:
    idle = path("a → d", [10e9] * 20, [4e6] * 19 + [0.0])
    found = judge_network(idle, (), T0 + 20 * STEP + 2 * STALL_NS)
    assert found.findings == ()
    assert found.exonerated[0].startswith("not the network: 1 of 1 recorded paths")
    trace = Trace(Events.empty(), series=tuple(idle))
    diagnosis = diagnose_network(trace, T0 + 20 * STEP + 2 * STALL_NS)
    assert diagnosis.verdict is Verdict.HEALTHY
    assert "were not recorded" in diagnosis.headline


def test_the_blamed_path_is_drawn_first_and_not_all_are() -> None:
    many = [item for at in range(40) for item in healthy(f"a → {at}")]
    sick = path("a → x", [10e9] * 20 + [2e9] * 40, [4e6] * 60)
    diagnosis = diagnose_network(Trace(Events.empty(), series=tuple(many + sick)), None)
    drawn = diagnosis.pictures.series
    assert [item.name for item in drawn[:3]] == ["a → x"] * 3
    assert len(drawn) == 3 * DRAWN
