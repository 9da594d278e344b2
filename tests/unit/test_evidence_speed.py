"""Training logs and tables of times: onset of a slowdown, what part of a step, and when nobody can be named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from megatrace.model.finding import Kind, Verdict
from tests.unit.log_cases import judged, said


def megatron(seconds: Sequence[float]) -> str:
    return "".join(
        f" iteration {100 + i}/ 1000 | elapsed time per iteration (ms): {1000 * s:.1f} | throughput per GPU (TFLOP/s/GPU): {400 / s:.1f} | lm loss: 2.1{i}E+00 |\n"
        for i, s in enumerate(seconds)
    )


def test_the_onset_of_a_lasting_slowdown_is_found_and_nobody_named(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, train__log=megatron([1.00, 1.01, 0.99, 1.00, 1.01, 1.30, 1.31, 1.29, 1.30]))
    assert diagnosis.verdict is Verdict.SLOW
    assert "between iterations 104 and 105" in diagnosis.headline
    assert diagnosis.findings[0].impact.slowdown == pytest.approx(1.3, abs=0.02)
    assert diagnosis.findings[0].culprits.ranks == ()
    assert "the loss is normal" in said(diagnosis)


@pytest.mark.parametrize(
    "times",
    [[1.00, 1.01, 0.99, 1.00, 1.01, 1.00, 0.99, 1.0], [1.3, 1.3, 1.3, 1.0, 1.0, 1.0, 1.0]],
    ids=["steady", "faster"],
)
def test_a_steady_pace_or_a_faster_one_is_no_slowdown(tmp_path: Path, times: list[float]) -> None:
    assert judged(tmp_path, train__log=megatron(times)).verdict is Verdict.HEALTHY


def test_data_that_takes_the_time_is_told_from_compute_by_current_values(tmp_path: Path) -> None:
    rows = [(0.2, 0.05)] * 5 + [(8.7, 8.6), (8.9, 8.8), (8.6, 8.5)]
    text = "".join(
        f"Epoch: [1][{20 * i}/5005]\tTime {t:.3f} (0.3)\tData {d:.3f} (0.2)\tLoss 1.0 (1.0)\n"
        for i, (t, d) in enumerate(rows)
    )
    (finding,) = judged(tmp_path, train__log=text).findings
    assert finding.kind is Kind.SLOW_STORAGE
    assert "between iterations 80 and 100" in finding.summary
    assert any("not the GPU" in item for item in finding.exonerated)


def test_throughput_alone_shows_a_slowdown_too(tmp_path: Path) -> None:
    text = "".join(
        f"[rank0]:2025-01-01 00:00:{10 + i} - root - INFO - step: {i * 10} loss: 8.1 memory: 40GiB tps: {5000 if i < 6 else 3100} mfu: 30%\n"
        for i in range(12)
    )
    assert "5,000 → 3,100" in judged(tmp_path, train__log=text).headline


def test_the_part_that_takes_most_of_a_step_is_named(tmp_path: Path) -> None:
    text = "time (ms) | forward: 410.20 | backward: 869.80 | optimizer: 14720.00 | batch generator: 3.10\n"
    diagnosis = judged(tmp_path, timers__log=text)
    assert "optimizer = 14.7 s of about 16 s (92 %)" in diagnosis.headline


@pytest.mark.parametrize(
    ("column", "values", "verdict", "ranks"),
    [
        ("forward_ms", (100.1, 100.3, 180.2, 99.9), Verdict.SLOW, (2,)),
        ("allreduce_wait_ms", (90.0, 10.0, 91.0, 90.5), Verdict.SLOW, (1,)),
        ("backward_ms", (293.0, 292.2, 293.0, 293.1), Verdict.UNDECIDABLE, ()),
        ("forward_ms", (100.1, 100.3, 100.2, 99.9), Verdict.HEALTHY, ()),
        ("forward_ms", (100.0, 120.0, 140.0, 160.0), Verdict.UNDECIDABLE, ()),
    ],
    ids=["longest", "shortest-wait", "synchronised", "even", "spread"],
)
def test_times_of_ranks(
    tmp_path: Path, column: str, values: tuple[float, ...], verdict: Verdict, ranks: tuple[int, ...]
) -> None:
    table = f"rank,{column}\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values))
    diagnosis = judged(tmp_path, t__csv=table)
    assert diagnosis.verdict is verdict
    assert tuple(rank for item in diagnosis.findings for rank in item.culprits.ranks) == ranks
