"""Six diagnoses written by hand, as an analysis would make them: the material of all tests of reports."""

from __future__ import annotations

from megatrace.model.finding import (
    ClockInfo,
    Culprits,
    Device,
    Diagnosis,
    Endpoint,
    Evidence,
    Finding,
    Impact,
    JobSummary,
    Kind,
    Link,
    NextStep,
    Severity,
    StageTimes,
    Status,
    Verdict,
    Where,
    Window,
)
from megatrace.model.job import ScheduleKind
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Phase, Schedule
from megatrace.model.trace import Coverage, Gap, InputInfo, Observable, RankPlace

S = 1_000_000_000
T0 = 1_755_590_104_248_717_000
HANG_T0 = 1_796_004_780_000_000_000  # 2026-11-30 02:13:00 UTC
CALLLOG = frozenset({Observable.ENQUEUE, Observable.COUNT, Observable.STREAM})
RING = frozenset({*CALLLOG, Observable.START, Observable.END, Observable.COMPLETION, Observable.PEER})


def at(seconds: float) -> int:
    """A time so many seconds after t0."""
    return T0 + round(seconds * S)


def _small_job() -> JobSummary:
    return JobSummary(
        ranks=8,
        ranks_seen=8,
        nodes=1,
        layout=ParallelLayout(tp=2, pp=4, dp=1),
        layout_source="inferred",
        schedule=Schedule(ScheduleKind.ONE_F_ONE_B, 4, 8),
        micro_batches=8,
        iterations=41,
        iteration_numbering="absolute",
        iteration_median_ms=1612.0,
        iteration_p95_ms=3252.0,
        first_time=at(0),
        last_time=at(116.2),
        baseline="own past and peers",
    )


def slow_window() -> Diagnosis:
    """One GPU computed slower for a while."""
    sentence = (
        "rank 2 (stage 1, TP 0) computed 2.5× slower in iterations 21–31: "
        "iteration 1.61 → 3.25 s, 17.1 s of the job's time, recovered"
    )
    finding = Finding(
        kind=Kind.SLOW_COMPUTE,
        severity=Severity.P1,
        summary=sentence,
        status=Status.RECOVERED,
        confidence=0.97,
        kind_alternatives=(Kind.SLOW_HOST,),
        culprits=Culprits(ranks=(2,)),
        victims=(0, 1, 4, 5, 6, 7),
        where=Where(stage=1),
        window=Window(at(66.8), at(101.0), 21, 31),
        impact=Impact(slowdown=2.02, seconds_lost=17.1, gpu_hours_lost=0.038),
        evidence=(
            Evidence("stage 1 worked 2,553 ms an iteration, before and after 1,043 ms", 2.45, "x"),
            Evidence("forward 42 → 103 ms and backward 87 → 215 ms a micro-batch: both, so not one kernel"),
            Evidence(
                "rank 2 came 4.51 ms later than rank 3 to the TP all-reduces (before: 0.1 ms)", 4.51, "ms"
            ),
        ),
        exonerated=("not stages 0, 2 and 3: their own work stayed within ±5 %",),
        remedy="Look at the clocks and the temperature of rank 2's GPU in that window.",
        fingerprint="slow_compute:2",
        id="f1",
    )
    return Diagnosis(
        verdict=Verdict.SLOW,
        headline=sentence,
        job=_small_job(),
        findings=(finding,),
        clock=ClockInfo(t0=T0, reference="node0", error_us=38.0),
        inputs=(InputInfo("logs/megatron_rank2_slow", "calllog", CALLLOG, 8),),
        stages=(
            StageTimes(0, 42.5, 86.3, 1030.3, 580.0),
            StageTimes(1, 42.0, 88.4, 1043.0, 566.1),
            StageTimes(2, 41.5, 86.2, 1021.3, 590.5),
            StageTimes(3, 43.9, 89.0, 1063.4, 548.2),
        ),
        next_steps=(NextStep("megatrace diagnose --verbose logs/megatron_rank2_slow", "all the evidence"),),
        coverage=Coverage(
            observables=CALLLOG,
            gaps=(
                *(Gap(rank, at(30.4), at(62.0), 5000) for rank in (2, 3, 4, 5)),
                *(Gap(rank, at(30.4), at(36.1), 900) for rank in (0, 1)),
                *(Gap(rank, at(30.4), at(39.3), 1400) for rank in (6, 7)),
            ),
            lines=114_097,
            torn_tails=(7,),
        ),
        warnings=(
            "job.yaml says parallel.tensor = 4, but the log's groups have 2 members each: the log counts",
        ),
    )


def hang() -> Diagnosis:
    """A rank of a large job never posted its Recv; the recording shows completion."""
    sentence = (
        "rank 1505 (node188 gpu1) never posted Recv from rank 809: "
        "stage 2, forward of micro-batch 2, iteration 6"
    )
    finding = Finding(
        kind=Kind.MISSING_CALL,
        severity=Severity.P0,
        summary=sentence,
        confidence=0.994,
        culprits=Culprits(ranks=(1505,), nodes=("node188",), devices=(Device("node188", "gpu1"),)),
        victims=tuple(rank for rank in range(3480) if rank != 1505),
        where=Where(
            stage=2, iteration=6, micro_batch=2, phase=Phase.FORWARD, op="RECV", peer=809, seq=4711,
            communicator="PP group 105",
        ),
        window=Window(HANG_T0 + 41_207_000_000, None, 6, None),
        impact=Impact(),
        evidence=(
            Evidence(
                "last call 02:13:41.204: ALL_REDUCE #4,711 of TP group 188, completed; nothing pending: "
                "its host stopped calling"
            ),
            Evidence(
                "its TP peers 1504 and 1506–1511 posted the same Recv at 02:13:41.205–.209, "
                "then ALL_REDUCE #4,712, which it never joined"
            ),
            Evidence("rank 809 posted the matching Send at 02:13:41.198"),
        ),
        exonerated=("not the network: all other transfers on node188's NICs completed",),
        chain=(
            "rank 0 waits for rank 696 in RECV (backward of micro-batch 0)",
            "rank 696 waits for rank 1392 in RECV (backward of micro-batch 0)",
            "rank 1504 waits for rank 1505 in ALL_REDUCE #4,712 of TP group 188",
        ),
        remedy="Take the stacks of rank 1505 before the watchdog kills the job, then drain node188.",
        fingerprint="missing_call:1505",
        id="f1",
    )  # fmt: skip
    return Diagnosis(
        verdict=Verdict.HANG,
        headline=sentence,
        job=JobSummary(
            ranks=3480,
            ranks_seen=3480,
            nodes=435,
            layout=ParallelLayout(tp=8, pp=5, dp=87),
            layout_source="inferred",
            schedule=Schedule(ScheduleKind.ONE_F_ONE_B, 5, 8),
            micro_batches=8,
            iterations=6,
            iteration_median_ms=6510.4,
            iteration_p95_ms=6602.0,
            first_time=HANG_T0,
            last_time=HANG_T0 + 41_209_000_000,
        ),
        findings=(finding,),
        clock=ClockInfo(t0=HANG_T0, reference="node0", error_us=38.0),
        inputs=(InputInfo("/shared/traces/job-8812", "ring", RING, 3480),),
        next_steps=(
            NextStep("megatrace bundle --nodes node188", "stacks, kernel log, counters"),
            NextStep(
                "scontrol update nodename=node188 state=drain reason=megatrace",
                "then requeue from the checkpoint",
            ),
        ),
        places=tuple(RankPlace(rank, f"node{rank // 8}", rank % 8, f"gpu{rank % 8}") for rank in range(3480)),
        coverage=Coverage(observables=RING, lines=2_401_233),
    )


def hang_enqueue_only() -> Diagnosis:
    """A hang seen only by who stopped calling: the group is known, its member is not."""
    sentence = "the job stopped inside TP group 3 of stage 1: rank 6 or rank 7 never came back from it"
    finding = Finding(
        kind=Kind.HANG_GROUP,
        severity=Severity.P0,
        summary=sentence,
        confidence=0.8,
        ambiguous=True,
        culprits=Culprits(ranks=(6, 7)),
        victims=(0, 1, 2, 3, 4, 5),
        where=Where(stage=3, iteration=12, micro_batch=4, phase=Phase.BACKWARD, op="ALL_REDUCE", seq=902),
        window=Window(at(19.63), None, 12, None),
        evidence=(Evidence("nothing completed can be seen in this log; both posted the same last call"),),
        id="f1",
    )
    return Diagnosis(
        verdict=Verdict.HANG,
        headline=sentence,
        job=_small_job(),
        findings=(finding,),
        clock=ClockInfo(t0=T0),
        inputs=(InputInfo("logs", "calllog", CALLLOG, 8),),
        next_steps=(NextStep("py-spy dump --pid PID", "on ranks 6 and 7: whose stack is not in NCCL?"),),
        coverage=Coverage(observables=CALLLOG, lines=9_210, bad_lines=2),
    )


def intermittent() -> Diagnosis:
    """A link that is slow every now and then, and an imbalance that nobody in particular is to blame for."""
    slow = "the path rank 12 (node1 gpu4) → rank 44 (node5 gpu4) is 3.1× slower in 37 of 400 iterations"
    balance = "stage 3 has 18 % more work than the median stage in every iteration"
    src = Endpoint(12, "node1", "gpu4", 1)
    dst = Endpoint(44, "node5", "gpu4")
    return Diagnosis(
        verdict=Verdict.SLOW,
        headline=slow,
        job=JobSummary(
            ranks=64,
            ranks_seen=62,
            nodes=8,
            layout=ParallelLayout(tp=8, pp=4, dp=2),
            layout_source="config",
            schedule=Schedule(ScheduleKind.INTERLEAVED, 4, 16, vpp=2),
            micro_batches=16,
            iterations=400,
            iteration_median_ms=842.1,
            iteration_p95_ms=1011.7,
            first_time=at(0),
            last_time=at(350.0),
            baseline="own past",
        ),
        findings=(
            Finding(
                kind=Kind.SLOW_NETWORK,
                severity=Severity.P1,
                summary=slow,
                status=Status.INTERMITTENT,
                confidence=0.88,
                culprits=Culprits(links=(Link(src, dst),)),
                victims=tuple(rank for rank in range(64) if rank not in (12, 44)),
                where=Where(op="SEND", peer=44, phase=Phase.FORWARD),
                window=Window(at(12.0), at(344.5), 14, 391),
                impact=Impact(1.12, 41.9, 0.74),
                evidence=tuple(
                    Evidence(
                        f"iteration {k}: transfer {3.0 + k / 100:.2f} ms after both sides were ready",
                        3.1,
                        "ms",
                    )
                    for k in range(14, 30)
                ),
                id="f1",
            ),
            Finding(
                kind=Kind.IMBALANCE,
                severity=Severity.P2,
                summary=balance,
                confidence=0.99,
                where=Where(stage=3),
                impact=Impact(1.06, 20.0, 0.36),
                evidence=(Evidence("median work of stage 3: 702 ms, of the others: 595 ms"),),
                remedy="Move a layer from stage 3 to stage 1.",
                id="f2",
            ),
            Finding(
                kind=Kind.JITTER,
                severity=Severity.P3,
                summary="iterations vary by 4 % with no rank to blame",
                id="f3",
            ),
        ),
        clock=ClockInfo(t0=T0, reference="node0", error_us=1.2, unaligned_nodes=("node7",)),
        inputs=tuple(InputInfo(f"logs/rank_{rank}.log.zst", "calllog", CALLLOG, 1) for rank in range(62)),
        stages=tuple(StageTimes(stage, 11.9, 25.3, 595.0 + 107 * (stage == 3), 140.0) for stage in range(4)),
        next_steps=(NextStep("ethtool -S mlx5_4 | grep -i err", "on node1 and node5"),),
        coverage=Coverage(observables=CALLLOG, ranks_missing=(62, 63), lines=8_200_400),
    )


def imbalance() -> Diagnosis:
    """The slowest stage makes the pipeline; no rank is to blame."""
    sentence = (
        "stage 3 has 22 % more work than the median stage: the pipeline runs at its pace, 0.21 s an iteration"
    )
    job = _small_job()
    return Diagnosis(
        verdict=Verdict.SLOW,
        headline=sentence,
        job=job,
        findings=(
            Finding(
                kind=Kind.IMBALANCE,
                severity=Severity.P2,
                summary=sentence,
                confidence=0.93,
                where=Where(stage=3),
                window=Window(at(0.0), at(116.2), 0, 40),
                impact=Impact(slowdown=1.15, seconds_lost=8.61, gpu_hours_lost=0.0191),
                evidence=(Evidence("median work: 1,041, 1,043, 1,037 and 1,270 ms an iteration"),),
                remedy="Give stage 3 fewer layers, or put the output layer's share on another stage.",
                id="f1",
            ),
        ),
        clock=ClockInfo(t0=0),
        inputs=(InputInfo("-", "calllog", CALLLOG, 8),),
        stages=(
            StageTimes(0, 42.5, 87.6, 1041.0, 569.0),
            StageTimes(1, 42.6, 87.8, 1043.0, 560.0),
            StageTimes(2, 42.4, 87.2, 1037.0, 571.0),
            StageTimes(3, 52.5, 106.2, 1270.0, 339.0),
        ),
        coverage=Coverage(observables=CALLLOG, lines=114_097),
    )


def healthy() -> Diagnosis:
    """Nothing wrong."""
    return Diagnosis(
        verdict=Verdict.HEALTHY,
        headline="nothing wrong in 41 iterations of 8 ranks",
        job=_small_job(),
        clock=ClockInfo(t0=T0),
        inputs=(InputInfo("logs", "calllog", CALLLOG, 8),),
        stages=(
            StageTimes(0, 42.5, 86.3, 1030.3, 580.0),
            StageTimes(1, 42.0, 88.4, 1043.0, 566.1),
            StageTimes(2, 41.5, 86.2, 1021.3, 590.5),
            StageTimes(3, 43.9, 89.0, 1063.4, 548.2),
        ),
        coverage=Coverage(observables=CALLLOG, lines=114_097),
    )


def cannot_tell() -> Diagnosis:
    """Two explanations fit, and what would decide is missing."""
    return Diagnosis(
        verdict=Verdict.UNDECIDABLE,
        headline="the job stopped, and two explanations fit: rank 12 (node1 gpu4) or the link node1 ↔ node5",
        job=JobSummary(ranks=64, ranks_seen=56, nodes=8, first_time=at(0), last_time=at(13.4)),
        clock=ClockInfo(t0=T0),
        inputs=(InputInfo("logs", "calllog", CALLLOG, 56),),
        alternatives=(
            "rank 12 (node1 gpu4) never entered ALL_REDUCE #77 of DP group 3",
            "the link node1 ↔ node5 lost a transfer of that call",
        ),
        next_steps=(
            NextStep("megatrace collect --nodes node5", "with these recordings one of the two falls away"),
            NextStep("ncclras -v", "on any node, while the job still stands"),
        ),
        coverage=Coverage(
            observables=CALLLOG,
            ranks_missing=tuple(range(40, 48)),
            lines=40_961,
            notes=("the recordings end at different times (13.1–13.4 s)",),
        ),
    )


CASES = {
    "hang": hang,
    "hang_enqueue_only": hang_enqueue_only,
    "slow_window": slow_window,
    "intermittent": intermittent,
    "imbalance": imbalance,
    "healthy": healthy,
    "cannot_tell": cannot_tell,
}
