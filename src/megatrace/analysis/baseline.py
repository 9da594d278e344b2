"""What would be normal for a job, so that one that is slow from its first iteration on can be told.

A job's own past and its peers show what changed; they are silent about a job that was never fast. Two
yardsticks from outside speak then:

* an earlier run of the same configuration (a diagnosis in JSON): its median iteration;
* the model's arithmetic against the GPUs': the share of the peak that a job reaches (model FLOPs utilisation,
  MFU) lies in a known band for dense models of useful size.

Model FLOPs of an iteration, from Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM" (SC'21, arXiv 2104.04473), equation 3 without the recomputed forward:

    72 · B · s · l · h² · (1 + s / 6h + V / 12lh)

(B sequences of s tokens, l layers, hidden size h, vocabulary V; a dense transformer with an MLP of 4h). It
knows no experts: of a mixture nothing is said.

Compares times alone. Who is slow is ``slow``'s business, and where somebody stands out nothing is said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatrace.analysis.gpu_types import GPU_TYPES, GpuType, gpu_type
from megatrace.model.finding import (
    Evidence,
    Finding,
    Impact,
    JobSummary,
    Kind,
    Severity,
    StageTimes,
    Status,
    Verdict,
    Window,
)
from megatrace.model.job import JobConfig

# Shares of the peak that dense models reach in bfloat16 over a whole iteration. Published: Megatron-LM on
# A100 44–52 % (SC'21) and on H100 41–48 % (its README), Llama 3 on H100 38–43 % (arXiv 2407.21783), MegaScale
# 55 % on 12,288 GPUs (NSDI'24). 35 % leaves room for the ones that were not worth publishing.
MFU_SLOW, MFU_FAST = 0.35, 0.55
# Those jobs' pipelines stood empty for about a tenth of the time; a job with larger bubbles reaches as much
# less.
USUAL_FULLNESS = 0.9
# Full recomputation runs every forward twice: four thirds of the arithmetic, of which one third is not the
# model's.
RECOMPUTED = 0.75
# Kernels of narrower models do not fill a GPU, and no band is known for them.
NARROWEST = 2048
# Bytes that Adam in mixed precision moves for a parameter: master, two moments and gradient read, three
# written, and the bfloat16 copy. At half of the memory bandwidth. Only matters where an iteration has few
# tokens.
ADAM_BYTES, ADAM_SHARE = 30, 0.5
# Runs of one configuration on the same machines differ by a few per cent; 1.2 is a difference that people ask
# about.
SLOWER = 1.2


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """What an earlier diagnosis says of its job. Times in ms; ``name`` as a person would call the run."""

    name: str
    iteration_ms: float
    ranks: int
    layout: tuple[int, int, int, int] | None = None
    """tensor, pipeline, data, context"""
    micro_batches: int | None = None
    verdict: Verdict = Verdict.HEALTHY
    stages: tuple[StageTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """A band of iteration times in seconds, fast end first, and the share of the peak at each end."""

    fast_s: float
    slow_s: float
    fast_mfu: float
    slow_mfu: float
    flops: float
    """of the model in one iteration"""
    gpu: GpuType
    ranks: int

    def mfu(self, seconds: float) -> float:
        """Share of the GPUs' peak that an iteration of this length means."""
        return self.flops / (seconds * self.gpu.peak * self.ranks)


@dataclass(frozen=True, slots=True)
class Compared:
    """``against``: words for "compared with …", None where nothing was compared; ``finding`` where it is too
    slow.
    """

    against: str | None
    finding: Finding | None = None


def model_flops(layers: int, hidden: int, sequence: int, vocabulary: int, sequences: int) -> float:
    """FLOPs that the model itself needs in one iteration, forward and backward."""
    relative = 1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden)
    return 72.0 * sequences * sequence * layers * hidden**2 * relative


def expected_iteration(config: JobConfig, job: JobSummary) -> Expected | str:
    """The band for a job, or a sentence that says why there is none."""
    shape = _shape(config, job)
    if isinstance(shape, str):
        return shape
    gpu = gpu_type(shape.gpu)
    if gpu is None:
        known = ", ".join(kind.name for kind in GPU_TYPES)
        return f"the GPU {shape.gpu!r} is none of {known}"
    if shape.hidden < NARROWEST:
        return f"no band is known for models narrower than {NARROWEST}"
    if config.expert is not None and config.expert.value > 1:
        return "the arithmetic of a mixture of experts is not declared"
    flops = model_flops(shape.layers, shape.hidden, shape.sequence, shape.vocabulary, shape.sequences)
    share = min(_fullness(job) / USUAL_FULLNESS, 1.0) * (RECOMPUTED if _recomputes(config) else 1.0)
    parameters = 12 * shape.layers * shape.hidden**2 + shape.vocabulary * shape.hidden
    split = job.layout.tp * job.layout.pp if job.layout else 1
    adam = parameters / split * ADAM_BYTES / (gpu.bandwidth * ADAM_SHARE)
    peak = gpu.peak * job.ranks
    return Expected(
        fast_s=flops / (peak * MFU_FAST * share),
        slow_s=flops / (peak * MFU_SLOW * share) + adam,
        fast_mfu=MFU_FAST * share,
        slow_mfu=MFU_SLOW * share,
        flops=flops,
        gpu=gpu,
        ranks=job.ranks,
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    layers: int
    hidden: int
    sequence: int
    vocabulary: int
    sequences: int
    gpu: str


def _shape(config: JobConfig, job: JobSummary) -> _Shape | str:
    """What job.yaml says of the model, or what it would have to say."""
    layers, hidden, sequence = config.layers, config.hidden, config.sequence_length
    vocabulary, gpu, sequences = config.vocabulary, config.gpu_type, _sequences(config, job)
    if layers and hidden and sequence and vocabulary and gpu and sequences:
        return _Shape(layers.value, hidden.value, sequence.value, vocabulary.value, sequences, gpu.value)
    wanted = {
        "model.layers": layers,
        "model.hidden": hidden,
        "model.sequence_length": sequence,
        "model.vocabulary": vocabulary,
        "gpu": gpu,
        "batch.global": sequences or None,
    }
    return f"job.yaml lacks {', '.join(key for key, value in wanted.items() if value is None)}"


def _sequences(config: JobConfig, job: JobSummary) -> int:
    """Sequences of an iteration; 0 where neither declared nor to be worked out."""
    if config.global_batch is not None:
        return config.global_batch.value
    if config.micro_batch is None or job.micro_batches is None or job.layout is None:
        return 0
    return config.micro_batch.value * job.micro_batches * job.layout.dp


def _fullness(job: JobSummary) -> float:
    """Share of the time in which a stage has something to do: the rest is the pipeline's bubble."""
    if job.schedule is None or job.schedule.pp < 2:
        return 1.0
    steps = job.schedule.micro_batches * job.schedule.vpp
    return steps / (steps + job.schedule.pp - 1)


def _recomputes(config: JobConfig) -> bool:
    return config.features is not None and any("recompute" in name for name in config.features.value)


def compare(
    config: JobConfig,
    job: JobSummary,
    usual_s: float | None,
    findings: Sequence[Finding],
    stages: Sequence[StageTimes] = (),
    earlier: EarlierRun | None = None,
) -> Compared:
    """Compares the usual iteration (seconds, None unknown) with the yardsticks from outside.

    ``job.baseline`` says what was compared inside the job. A finding only where nobody stands out: else the
    job is slow because of who does.
    """
    against = [job.baseline] if job.baseline else []
    if usual_s is None:
        return Compared(job.baseline)
    found: list[Finding] = []
    if earlier is not None:
        different = _different(earlier, job)
        if different is not None:
            against.append(f"not with the run of {earlier.name}, which had {different}")
        else:
            against.append(
                f"the run of {earlier.name} (its iterations took {earlier.iteration_ms / 1e3:.2f} s)"
            )
            if usual_s * 1e3 > SLOWER * earlier.iteration_ms:
                found.append(_slower_than_before(earlier, job, usual_s, stages))
    expected = expected_iteration(config, job)
    if isinstance(expected, str):
        if _speaks_of_the_model(config):
            against.append(f"not with what the model should take ({expected})")
    else:
        against.append(f"what the model should take ({_band(expected, usual_s)})")
        if usual_s > expected.slow_s:
            found.append(_slower_than_it_should(expected, job, usual_s))
    stands_out = any(finding.severity <= Severity.P2 for finding in findings)
    words = _joined(against)
    return Compared(words, _merged(found) if found and not stands_out else None)


def _joined(parts: Sequence[str]) -> str | None:
    """ "own past + peers", "own past, peers and the run of …"; what was not compared comes last."""
    positive = [part for part in parts if not part.startswith("not with")]
    negative = [part for part in parts if part.startswith("not with")]
    if len(positive) > 1:
        positive = [*positive[0].split(" + "), *positive[1:]]
        text = ", ".join(positive[:-1]) + " and " + positive[-1]
    else:
        text = "".join(positive)
    return "; ".join([*([text] if text else []), *negative]) or None


def _speaks_of_the_model(config: JobConfig) -> bool:
    """Whether somebody meant the model to be compared: they named the GPU."""
    return config.gpu_type is not None


def _different(earlier: EarlierRun, job: JobSummary) -> str | None:
    """In what an earlier run was another job; None where it was the same."""
    if earlier.verdict in (Verdict.HANG, Verdict.FAILED):
        return f"the verdict {earlier.verdict.value}"
    if earlier.ranks != job.ranks:
        return f"{earlier.ranks} ranks instead of {job.ranks}"
    if earlier.layout is not None and job.layout is not None:
        own = (job.layout.tp, job.layout.pp, job.layout.dp, job.layout.cp)
        for name, was, now in zip(("TP", "PP", "DP", "CP"), earlier.layout, own, strict=True):
            if was != now:
                return f"{name} {was} instead of {now}"
    batches = job.micro_batches
    if earlier.micro_batches is not None and batches is not None and earlier.micro_batches != batches:
        return f"{earlier.micro_batches} micro-batches instead of {batches}"
    return None


def _band(expected: Expected, usual_s: float) -> str:
    return (
        f"{100 * expected.mfu(usual_s):.0f} % of the peak of {expected.gpu.name}, usual "
        f"{100 * expected.slow_mfu:.0f}–{100 * expected.fast_mfu:.0f} %"
    )


def _slower_than_before(
    earlier: EarlierRun, job: JobSummary, usual_s: float, stages: Sequence[StageTimes]
) -> Finding:
    before = earlier.iteration_ms / 1e3
    ratio = usual_s / before
    evidence = [
        Evidence(f"iterations took {before:.2f} s in the run of {earlier.name}", round(ratio, 3), "×")
    ]
    for phase in ("forward_ms", "backward_ms"):
        pairs = [
            (getattr(was, phase), getattr(now, phase))
            for was, now in zip(earlier.stages, stages, strict=False)
            if getattr(was, phase) and getattr(now, phase) and was.stage == now.stage
        ]
        if pairs:
            grown = sorted(now / was for was, now in pairs)
            text = f"a {phase.removesuffix('_ms')} takes {grown[0]:.2f}× to {grown[-1]:.2f}× as long as then"
            evidence.append(Evidence(f"{text}, over the stages", round(grown[len(grown) // 2], 3), "×"))
    summary = (
        "the whole job has been slow since its first iteration, no rank in particular: "
        f"iteration {usual_s:.2f} s, "
        f"{before:.2f} s in the run of {earlier.name} ({ratio:.1f}×)"
    )
    return _finding(job, usual_s, before, summary, tuple(evidence), 0.9)


def _slower_than_it_should(expected: Expected, job: JobSummary, usual_s: float) -> Finding:
    mfu = expected.mfu(usual_s)
    summary = (
        "the whole job has been slow since its first iteration, no rank in particular: "
        f"iteration {usual_s:.2f} s is "
        f"{100 * mfu:.0f} % of the peak of {expected.gpu.name}; such jobs take "
        f"{expected.fast_s:.2f}–{expected.slow_s:.2f} s"
    )
    evidence = (
        Evidence(f"{_band(expected, usual_s)} for such a job (MFU)", round(100 * mfu, 2), "%"),
        Evidence("model FLOPs of an iteration", round(expected.flops / 1e12, 1), "TFLOP"),
        Evidence("throughput", round(expected.flops / usual_s / job.ranks / 1e12, 1), "TFLOP/s a GPU"),
    )
    # The formula knows neither unusual layers nor what the user switched on: a likely fault, not a proven
    # one.
    return _finding(job, usual_s, expected.slow_s, summary, evidence, 0.6)


def _finding(
    job: JobSummary,
    usual_s: float,
    normal_s: float,
    summary: str,
    evidence: tuple[Evidence, ...],
    sure: float,
) -> Finding:
    count = job.iterations or 0
    lost = (usual_s - normal_s) * count
    window = None
    if job.first_time is not None and count:
        window = Window(job.first_time, None, 0, count - 1)
    return Finding(
        kind=Kind.SLOW_UNIFORM,
        severity=Severity.P2,
        status=Status.ONGOING,
        summary=summary,
        confidence=sure,
        window=window,
        impact=Impact(
            slowdown=round(usual_s / normal_s, 3),
            seconds_lost=round(lost, 3),
            gpu_hours_lost=round(lost * job.ranks / 3600, 4),
        ),
        evidence=evidence,
        exonerated=("no rank, path or stage is slower than the others",),
        remedy="compare GPU clocks and power limits, driver, NCCL version and environment, and batch "
        "settings with a run that was fast",
        fingerprint="slow_uniform:from_start",
    )


def _merged(found: Sequence[Finding]) -> Finding:
    """Both yardsticks say the same: the surer sentence, the evidence of both."""
    lead = max(found, key=lambda finding: finding.confidence)
    extra = tuple(item for finding in found if finding is not lead for item in finding.evidence)
    return replace(lead, evidence=lead.evidence + extra)
