"""What would be normal: arithmetic against the peak, earlier runs, and jobs that were never fast."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis import baseline
from megatrace.analysis.baseline import EarlierRun, Expected, compare, expected_iteration, model_flops
from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.gpu_types import gpu_type
from megatrace.commands.earlier import read_earlier_run
from megatrace.errors import UsageError
from megatrace.model.finding import Finding, JobSummary, Kind, Severity, StageTimes, Verdict
from megatrace.model.job import JobConfig, ScheduleKind, Sourced
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Schedule
from megatrace.model.trace import Trace
from megatrace.reports.jsonfile import to_dict
from megatrace.simulator import Scenario, SlowGpu, observe, simulate


def said(value: int) -> Sourced[int]:
    return Sourced(value, "job.yaml")


# GPT-3 175B as trained for the SC'21 paper: 1,024 A100, TP 8, PP 8, batch 1,536.
GPT3 = JobConfig(
    layers=said(96),
    hidden=said(12288),
    sequence_length=said(2048),
    vocabulary=said(51200),
    global_batch=said(1536),
    gpu_type=Sourced("A100 SXM", "job.yaml: gpu"),
)
GPT3_JOB = JobSummary(
    ranks=1024,
    ranks_seen=1024,
    layout=ParallelLayout(tp=8, pp=8, dp=16),
    schedule=Schedule(ScheduleKind.ONE_F_ONE_B, 8, 96),
    micro_batches=96,
    iterations=10,
    first_time=0,
    baseline="own past + peers",
)


def test_model_flops_agree_with_the_parameters() -> None:
    # 6 FLOPs a parameter and token, plus attention and output layer: for GPT-3 a few per cent more.
    tokens = 1536 * 2048
    flops = model_flops(96, 12288, 2048, 51200, 1536)
    assert flops / (6 * 175e9 * tokens) == pytest.approx(1.03, abs=0.02)
    # The published formula with recomputation, 96 · B · s · l · h² · (1 + s/6h + V/16lh), is a forward more.
    recomputed = 96 * tokens * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    forward = 24 * tokens * 96 * 12288**2 * (1 + 2048 / (6 * 12288))
    assert flops + forward == pytest.approx(recomputed, rel=1e-9)


def test_a_published_run_lies_in_the_band() -> None:
    band = expected_iteration(GPT3, GPT3_JOB)
    assert isinstance(band, Expected)
    # The paper reports 140 TFLOP/s a GPU at 1,024 GPUs for its arithmetic with recomputation: 3/4 of it is
    # the model's.
    seconds = band.flops / (0.75 * 140e12 * 1024)
    recomputing = replace(GPT3, features=Sourced(("full_recompute",), "job.yaml: features"))
    with_recompute = expected_iteration(recomputing, GPT3_JOB)
    assert isinstance(with_recompute, Expected)
    assert with_recompute.fast_s < seconds < with_recompute.slow_s
    assert band.mfu(band.fast_s) == pytest.approx(band.fast_mfu)
    assert band.slow_s < with_recompute.slow_s


def test_large_bubbles_are_expected_to_cost() -> None:
    shallow = replace(GPT3_JOB, schedule=Schedule(ScheduleKind.ONE_F_ONE_B, 8, 8), micro_batches=8)
    band, normal = (expected_iteration(GPT3, job) for job in (shallow, GPT3_JOB))
    assert isinstance(band, Expected)
    assert isinstance(normal, Expected)
    assert band.slow_mfu == pytest.approx(0.35 * (8 / 15) / 0.9)
    assert normal.slow_mfu == 0.35


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100 SXM", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100-pcie", "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("H200", "H200 SXM"),
        ("NVIDIA GB200", "GB200"),
        ("H1000", None),
        ("TPU v5", None),
    ],
)
def test_gpus_go_by_many_names(name: str, found: str | None) -> None:
    kind = gpu_type(name)
    assert (kind.name if kind else None) == found


def test_dense_peaks_not_the_sparse_ones() -> None:
    peaks = {name: gpu_type(name) for name in ("A100", "H100", "H200", "B200")}
    values = {name: kind.peak / 1e12 for name, kind in peaks.items() if kind}
    assert values == {"A100": 312, "H100": 989.5, "H200": 989.5, "B200": 2250}


def test_what_is_missing_is_named() -> None:
    lacking = replace(GPT3, hidden=None, global_batch=None)
    assert expected_iteration(lacking, GPT3_JOB) == "job.yaml lacks model.hidden, batch.global"
    odd = replace(GPT3, gpu_type=Sourced("X9", "job.yaml: gpu"))
    assert "'X9' is none of V100 SXM" in str(expected_iteration(odd, GPT3_JOB))
    experts = replace(GPT3, expert=said(8))
    assert expected_iteration(experts, GPT3_JOB) == "the arithmetic of a mixture of experts is not declared"
    narrow = replace(GPT3, hidden=said(1024))
    assert expected_iteration(narrow, GPT3_JOB) == "no band is known for models narrower than 2048"


def test_the_micro_batches_seen_replace_an_undeclared_batch() -> None:
    declared = expected_iteration(GPT3, GPT3_JOB)
    seen = expected_iteration(replace(GPT3, global_batch=None, micro_batch=said(1)), GPT3_JOB)
    assert seen == declared  # 1 · 96 micro-batches · 16 replicas = 1,536


def test_healthy_says_against_what() -> None:
    band = expected_iteration(GPT3, GPT3_JOB)
    assert isinstance(band, Expected)
    outcome = compare(GPT3, GPT3_JOB, band.slow_s * 0.9, ())
    assert outcome.finding is None
    assert outcome.against is not None
    assert outcome.against.startswith(
        "own past, peers and what the model should take (39 % of the peak of A100 SXM"
    )
    assert compare(JobConfig(), GPT3_JOB, 5.0, ()).against == "own past + peers"
    partly = compare(replace(GPT3, layers=None), GPT3_JOB, 5.0, ())
    assert (
        partly.against
        == "own past + peers; not with what the model should take (job.yaml lacks model.layers)"
    )


def test_slower_than_the_arithmetic_allows() -> None:
    band = expected_iteration(GPT3, GPT3_JOB)
    assert isinstance(band, Expected)
    finding = compare(GPT3, GPT3_JOB, band.slow_s * 1.5, ()).finding
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.SLOW_UNIFORM, Severity.P2)
    assert "23 % of the peak of A100 SXM" in finding.summary
    assert finding.impact.slowdown == pytest.approx(1.5)
    assert finding.window is not None
    assert finding.window.first_iteration == 0
    assert finding.culprits.ranks == ()


def earlier(**changes: object) -> EarlierRun:
    run = EarlierRun(
        "monday.json", 4000.0, 1024, (8, 8, 16, 1), 96, stages=(StageTimes(0, 10.0, 20.0, None, None),)
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def test_slower_than_the_run_before() -> None:
    now = (StageTimes(0, 15.0, 30.0, None, None),)
    outcome = compare(JobConfig(), GPT3_JOB, 6.0, (), now, earlier())
    assert outcome.finding is not None
    assert "iteration 6.00 s, 4.00 s in the run of monday.json (1.5×)" in outcome.finding.summary
    assert [item.value for item in outcome.finding.evidence] == [1.5, 1.5, 1.5]
    assert outcome.finding.impact.seconds_lost == pytest.approx(20.0)
    same = compare(JobConfig(), GPT3_JOB, 4.7, (), now, earlier())
    assert same.finding is None  # 1.18×
    assert same.against == "own past, peers and the run of monday.json (its iterations took 4.00 s)"


def test_another_configuration_is_not_compared() -> None:
    for changes, words in (
        ({"layout": (4, 8, 32, 1)}, "TP 4 instead of 8"),
        ({"ranks": 512}, "512 ranks instead of 1024"),
        ({"micro_batches": 48}, "48 micro-batches instead of 96"),
        ({"verdict": Verdict.HANG}, "the verdict hang"),
    ):
        outcome = compare(JobConfig(), GPT3_JOB, 9.0, (), (), earlier(**changes))
        assert outcome.finding is None
        assert outcome.against == f"own past + peers; not with the run of monday.json, which had {words}"


def test_where_somebody_stands_out_the_job_is_not_uniformly_slow() -> None:
    guilty = Finding(Kind.SLOW_COMPUTE, Severity.P1, "rank 3 computed slower")
    assert compare(JobConfig(), GPT3_JOB, 6.0, (guilty,), (), earlier()).finding is None
    note = replace(guilty, severity=Severity.P3)
    assert compare(JobConfig(), GPT3_JOB, 6.0, (note,), (), earlier()).finding is not None


JOB = {
    "tp": 2,
    "pp": 4,
    "dp": 2,
    "ranks_per_node": 4,
    "micro_batches": 8,
    "layers_per_stage": 4,
    "iterations": 8,
    "seed": 11,
}
SLOWER = {"layer_forward_ms": 4.5, "layer_backward_ms": 9.9}


def job(**changes: object) -> Trace:
    return observe(simulate(Scenario.model_validate({**JOB, **changes})).trace, "ring")


def truth(**changes: object) -> list[float]:
    """ms of each iteration"""
    times = simulate(Scenario.model_validate({**JOB, **changes})).truth.iteration_ms
    return [float(value) for value in times]


def test_a_job_that_was_never_fast_is_told_by_its_run_before(tmp_path: Path) -> None:
    before = diagnose(job())
    assert before.verdict is Verdict.HEALTHY
    path = tmp_path / "tuesday.json"
    path.write_text(json.dumps(to_dict(before)), encoding="utf-8")
    run = read_earlier_run(path)
    assert run.layout == (2, 4, 2, 1)
    again = diagnose(job(seed=12), earlier=run)
    assert again.verdict is Verdict.HEALTHY
    assert again.job.baseline is not None
    assert "peers and the run of tuesday.json" in again.job.baseline
    slow = diagnose(job(**SLOWER), earlier=run)
    assert slow.verdict is Verdict.SLOW
    assert slow.exit_code == 10
    (finding,) = slow.findings
    assert finding.kind is Kind.SLOW_UNIFORM
    ratio = np.median(truth(**SLOWER)[1:]) / np.median(truth()[1:])
    assert ratio > 1.3
    assert finding.impact.slowdown == pytest.approx(ratio, rel=0.02)
    assert (
        diagnose(job(**SLOWER)).verdict is Verdict.HEALTHY
    )  # nothing to compare with: its own past is as slow


def test_a_job_that_was_never_fast_is_told_by_its_arithmetic() -> None:
    # 35 and 55 % of the peak, less the bubble: 8 of 11 steps are full where 9 of 10 usually are.
    normal, slow = job(), job(**{name: 3 * value for name, value in SLOWER.items()})
    for trace, verdict in ((normal, Verdict.HEALTHY), (slow, Verdict.SLOW)):
        config = replace(trace.job, gpu_type=Sourced("H100 SXM", "job.yaml: gpu"))
        diagnosis = diagnose(trace.with_job(config))
        assert diagnosis.verdict is verdict, diagnosis.headline
        assert diagnosis.job.baseline is not None
        assert "% of the peak of H100 SXM, usual 28–44 %" in diagnosis.job.baseline
    assert [finding.kind for finding in diagnosis.findings] == [Kind.SLOW_UNIFORM]


def test_a_culprit_goes_before_the_yardstick() -> None:
    run = EarlierRun("fast.json", 500.0, 16, (2, 4, 2, 1), 8)
    fault = SlowGpu(rank=5, factor=2.0)
    diagnosis = diagnose(job(faults=(fault,)), earlier=run)
    assert diagnosis.findings[0].culprits.ranks == (5,)
    assert Kind.SLOW_UNIFORM not in [finding.kind for finding in diagnosis.findings]


REPORT = {"schema": "megatrace.diagnosis/1", "verdict": "slow"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "not JSON"),
        ("[]", "the whole file is missing or wrong"),
        ('{"schema": "other/1"}', "schema is missing or wrong"),
        (
            json.dumps({**REPORT, "job": {"ranks": 4, "iteration_ms": {"median": None}}}),
            "job.iteration_ms.median is missing or wrong",
        ),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_diagnosis_gets_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="megatrace diagnose PATH") as caught:
        read_earlier_run(path)
    assert words in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_earlier_run(tmp_path / "none.json")


def test_thresholds_stand_where_the_text_says() -> None:
    assert (baseline.MFU_SLOW, baseline.MFU_FAST, baseline.SLOWER) == (0.35, 0.55, 1.2)
