"""Communication that nobody recorded: how it is found, and what a verdict is worth beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.analysis.blind_spots import HANG_CONFIDENCE, SLOW_CONFIDENCE, with_blind_spots
from megatrace.collect import blind_spots as signs
from megatrace.collect.capture import capture, job_file, refine
from megatrace.collect.jobconfig import parse_job_config
from megatrace.model.blind_spots import BlindSpot, Unobserved
from megatrace.model.events import Events
from megatrace.model.finding import Culprits, Diagnosis, Finding, JobSummary, Kind, Severity, Verdict
from megatrace.model.job import JobConfig, Sourced
from megatrace.model.layout import ParallelLayout
from megatrace.model.trace import Coverage, Trace

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


def hang(kind: Kind = Kind.HANG_HOST, others: tuple[Kind, ...] = (Kind.HANG_DEVICE,)) -> Diagnosis:
    finding = Finding(
        kind,
        Severity.P0,
        "rank 5 stopped calling",
        confidence=0.99,
        kind_alternatives=others,
        culprits=Culprits(ranks=(5,)),
        victims=(0, 1, 2, 3, 4, 6, 7),
        exonerated=("not the network: all transfers completed",),
        id="f1",
    )
    return Diagnosis(
        Verdict.HANG,
        finding.summary,
        JobSummary(8, 8, layout=LAYOUT),
        findings=(finding,),
    )


def beside(diagnosis: Diagnosis, *hidden: Unobserved, job: JobConfig | None = None) -> Diagnosis:
    trace = Trace(Events.empty(), coverage=Coverage(unobserved=hidden), job=job or JobConfig())
    return with_blind_spots(diagnosis, trace)


def test_without_a_blind_spot_nothing_changes() -> None:
    assert beside(hang()).findings == hang().findings


def test_a_host_that_may_wait_in_userbuffers_is_accused_with_its_tensor_group() -> None:
    job = JobConfig(features=Sourced(("tp_comm_overlap",), "argv --tp-comm-overlap"))
    judged = beside(hang(), job=job)
    (finding,) = judged.findings
    assert finding.kind is Kind.HANG_GROUP
    assert finding.culprits.ranks == (4, 5)
    assert finding.ambiguous
    assert finding.confidence <= HANG_CONFIDENCE
    assert finding.victims == (0, 1, 2, 3, 6, 7)
    assert judged.headline == finding.summary
    assert "rank 5 made no further call that is recorded" in finding.summary
    assert any("userbuffers" in note for note in judged.coverage.notes)


def test_where_the_unseen_edge_may_lead_anywhere_nobody_is_named() -> None:
    judged = beside(hang(), Unobserved(BlindSpot.NVSHMEM, "loaded nvshmem_transport_ibrc.so"))
    (finding,) = judged.findings
    assert judged.verdict is Verdict.HANG
    assert finding.kind is not Kind.HANG_HOST
    assert finding.culprits.ranks == ()
    assert "any rank" in judged.headline


def test_an_unseen_group_of_others_accuses_nobody_else() -> None:
    judged = beside(hang(), Unobserved(BlindSpot.MISSING_CALLS, "torch", (0, 1)))
    (finding,) = judged.findings
    assert finding.kind is Kind.HANG_HOST
    assert finding.culprits.ranks == (5,)
    assert finding.confidence <= HANG_CONFIDENCE
    own = beside(hang(), Unobserved(BlindSpot.MISSING_CALLS, "torch", (1, 5)))
    assert own.findings[0].culprits.ranks == (1, 5)


def test_a_rank_that_went_on_without_a_call_waits_nowhere_and_keeps_its_name() -> None:
    went_on = hang(Kind.MISSING_CALL, (Kind.HANG_HOST, Kind.MISMATCH))
    (finding,) = beside(went_on, Unobserved(BlindSpot.NVSHMEM, "x")).findings
    assert finding.kind is Kind.MISSING_CALL
    assert finding.culprits.ranks == (5,)
    stands = hang(Kind.MISSING_CALL, (Kind.HANG_HOST, Kind.HANG_DEVICE))
    assert beside(stands, Unobserved(BlindSpot.NVSHMEM, "x")).findings[0].culprits.ranks == ()


def test_rdma_by_gpus_hides_no_call_but_nothing_clears_the_network() -> None:
    (finding,) = beside(hang(), Unobserved(BlindSpot.GPU_RDMA, "x")).findings
    assert (finding.kind, finding.culprits.ranks, finding.confidence) == (Kind.HANG_HOST, (5,), 0.99)
    assert finding.exonerated == ()


def test_slowness_keeps_its_name_with_less_confidence() -> None:
    before = hang()
    slow = replace(before.findings[0], kind=Kind.SLOW_COMPUTE, severity=Severity.P1)
    (finding,) = beside(replace(before, findings=(slow,)), Unobserved(BlindSpot.DEEPEP, "x")).findings
    assert (finding.kind, finding.culprits.ranks) == (Kind.SLOW_COMPUTE, (5,))
    assert finding.confidence == SLOW_CONFIDENCE


@pytest.mark.parametrize(
    ("variable", "value", "spot"),
    [
        ("NVSHMEM_IB_ENABLE_IBGDA", "1", "gpu_rdma"),
        ("NVSHMEM_REMOTE_TRANSPORT", "ibrc", "nvshmem"),
        ("NCCL_GIN_TYPE", "3", "gpu_rdma"),
    ],
)
def test_variables_tell(variable: str, value: str, spot: str) -> None:
    assert signs.of_environment({variable: value})[spot] == f"environment {variable}"


@pytest.mark.parametrize(
    "environment", [{"NCCL_GIN_TYPE": "2"}, {"NVSHMEM_IB_ENABLE_IBGDA": "0", "PATH": "/deepep"}]
)
def test_variables_that_switch_nothing_on(environment: dict[str, str]) -> None:
    assert "gpu_rdma" not in signs.of_environment(environment)


MAPS = """
7f0000000000-7f0000001000 r-xp 00000000 08:01 11 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000002000-7f0000003000 r-xp 00000000 08:01 12 /opt/venv/nvidia/nccl/lib/libnccl.so.2
7f0000004000-7f0000005000 r-xp 00000000 08:01 13 /opt/venv/nvidia/nvshmem/lib/libnvshmem_host.so.3
"""


def line(path: str) -> str:
    return f"7f0000006000-7f0000007000 r-xp 00000000 08:01 14 {path}\n"


def test_loaded_libraries_tell_and_those_that_torch_always_loads_do_not() -> None:
    assert signs.of_libraries(MAPS, {}) == {}
    deepep = line("/x/deep_ep_cpp.cpython-312-x86_64-linux-gnu.so")
    assert set(signs.of_libraries(MAPS + deepep, {})) == {"deepep"}
    gda = line("/x/nvshmem_transport_ibgda.so.103.0.0")
    assert set(signs.of_libraries(MAPS + gda, {})) == {"gpu_rdma", "nvshmem"}


def test_nccl_by_name_is_out_of_reach_of_the_preloaded_library_alone() -> None:
    cupy = MAPS + line("/x/cupy_backends/cuda/libs/nccl.cpython-312-x86_64-linux-gnu.so")
    assert set(signs.of_libraries(cupy, {})) == {"dlopen_nccl"}
    plugin = {"NCCL_PROFILER_PLUGIN": "/x/libnccl-profiler-megatrace.so"}
    assert signs.of_libraries(cupy, plugin) == {}


def test_what_is_hidden_stands_in_the_configuration_of_the_run(tmp_path: Path) -> None:
    argv = ["torchrun", "train.py", "--tp-comm-overlap"]
    job, _ = capture(argv, {"NVSHMEM_IB_ENABLE_IBGDA": "1"}, tmp_path)
    assert job.unobserved is not None
    assert set(job.unobserved.value) == {"gpu_rdma", "nvshmem", "userbuffers"}
    read = parse_job_config(job_file(job))
    assert read.unobserved is not None
    assert read.unobserved.value == job.unobserved.value
    later = refine(job, ["train.py", "--moe-enable-deepep"], {}, tmp_path)
    assert later.unobserved is not None
    assert set(later.unobserved.value) == {"deepep", "gpu_rdma", "nvshmem", "userbuffers"}
