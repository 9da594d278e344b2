"""Dumps of simulated jobs: what they hold, and the verdict on them, with a pipeline and rolled buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.commands.main import main
from megatrace.model.finding import Diagnosis, Kind, Verdict
from megatrace.model.schedule import Phase
from megatrace.readers.opening import open_trace
from megatrace.simulator import (
    Capture,
    DeadLink,
    Fault,
    MissingRecv,
    Scenario,
    StuckHost,
    StuckKernelBefore,
    simulate,
)
from megatrace.simulator.emit_flight_recorder import Dumps, write_dumps

JOB: dict[str, Any] = {"seed": 1, "tp": 2, "pp": 4, "dp": 2, "micro_batches": 4, "layers_per_stage": 2}


def judged(
    folder: Path, scenario: Scenario, entries: int, *, as_json: bool = False, timing: bool = True
) -> Diagnosis:
    write_dumps(simulate(scenario).trace, folder, entries=entries, as_json=as_json, timing=timing)
    return diagnose(open_trace([folder]))


@pytest.mark.parametrize("timing", [True, False])
@pytest.mark.parametrize("entries", [400, 60])
@pytest.mark.parametrize(
    ("fault", "kinds", "ranks"),
    [
        (StuckHost(rank=5, iteration=2, micro_batch=1, phase=Phase.BACKWARD, call=1), {Kind.HANG_HOST}, (5,)),
        (
            StuckKernelBefore(rank=5, iteration=2, micro_batch=1, phase=Phase.FORWARD, call=1),
            {Kind.HANG_DEVICE},
            (5,),
        ),
        (MissingRecv(rank=5, iteration=2, micro_batch=1), {Kind.MISSING_CALL, Kind.HANG_HOST}, (5,)),
        (DeadLink(src=1, dst=5, iteration=2), {Kind.HANG_NETWORK}, (1, 5)),
    ],
)
def test_faults_of_a_pipeline_are_found(
    tmp_path: Path, fault: Fault, kinds: set[Kind], ranks: tuple[int, ...], entries: int, timing: bool
) -> None:
    diagnosis = judged(tmp_path, Scenario(**JOB, iterations=4, faults=(fault,)), entries, timing=timing)
    (finding,) = diagnosis.findings
    if finding.ambiguous:  # without starts, a stuck device and a dead link look like their group
        assert not timing
        assert finding.kind is Kind.HANG_GROUP
        assert set(ranks) <= set(finding.culprits.ranks) <= {1, 4, 5}
    else:
        assert finding.culprits.ranks == ranks
        assert finding.kind in kinds
    assert diagnosis.job.layout is not None
    assert (diagnosis.job.layout.tp, diagnosis.job.layout.pp, diagnosis.job.layout.dp) == (2, 4, 2)


@pytest.mark.parametrize("timing", [True, False])
@pytest.mark.parametrize("cut", [0.7, 0.9, 1.1, 1.4, 1.7, 2.0])
def test_a_job_that_moves_accuses_nobody_even_if_file_times_are_lost(
    tmp_path: Path, cut: float, timing: bool
) -> None:
    scenario = Scenario(**JOB, iterations=8, capture=Capture(cut_at_s=cut))
    diagnosis = judged(tmp_path, scenario, 400, timing=timing)
    assert diagnosis.findings == ()
    assert diagnosis.verdict is not Verdict.HANG


def test_json_says_the_same(tmp_path: Path) -> None:
    fault = StuckHost(rank=5, iteration=2, micro_batch=1, phase=Phase.BACKWARD, call=1)
    scenario = Scenario(**JOB, iterations=4, faults=(fault,))
    pickled = judged(tmp_path / "pickle", scenario, 100)
    as_json = judged(tmp_path / "json", scenario, 100, as_json=True)
    assert pickled.findings == as_json.findings


def test_missing_dumps_of_a_few_ranks_leave_the_verdict_but_not_its_confidence(tmp_path: Path) -> None:
    fault = StuckHost(rank=5, iteration=2, micro_batch=1, phase=Phase.BACKWARD, call=1)
    write_dumps(simulate(Scenario(**JOB, iterations=4, faults=(fault,))).trace, tmp_path, entries=200)
    (tmp_path / "nccl_trace_rank_12").unlink()
    diagnosis = diagnose(open_trace([tmp_path]))
    assert diagnosis.coverage.ranks_missing == (12,)
    assert diagnosis.findings[0].culprits.ranks == (5,)


def test_a_dump_looks_like_the_recorders(tmp_path: Path) -> None:
    dumps = Dumps(simulate(Scenario(**JOB, iterations=2)).trace, entries=50)
    value = dumps.value(3)
    assert len(value["entries"]) == 50
    numbers = [entry["record_id"] for entry in value["entries"]]
    assert numbers == list(range(numbers[0], numbers[0] + 50))
    names = {entry["profiling_name"].split(" ")[0] for entry in value["entries"]}
    assert names <= {
        "nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:broadcast",
        "nccl:send", "nccl:recv",
    }  # fmt: skip
    assert all("3" in item["ranks"] for item in value["pg_config"].values())


def test_the_command_writes_dumps_that_the_command_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "dumps"
    assert main(["simulate", "stuck-host", "--out", str(out), "--dialect", "flight-recorder"]) == 0
    assert len(list(out.iterdir())) == 32
    assert (out / "nccl_trace_rank_3").stat().st_mtime > 1_755_590_104 + 600
    capsys.readouterr()
    assert main(["diagnose", str(out)]) == 10
    assert "HANG  rank 13" in capsys.readouterr().out
