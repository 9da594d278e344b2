"""A real training over gloo, recorded by `megatrace run` and diagnosed: eight processes, TP 2 × PP 2 × DP 2.

Needs PyTorch (2.13.0 is what it was written with) in this environment, or in the one whose Python
MEGATRACE_TORCH_PYTHON names. The ranks sleep where a GPU would compute, so that eight of them fit two cores;
what the machine does besides still shows, so the faults here are several times that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.collect.spool import Spool
from megatrace.model.events import Op
from megatrace.model.finding import Diagnosis, Kind, Verdict
from megatrace.model.schedule import Phase
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("gloo")]
SCRIPT = Path(__file__).resolve().parent.parent / "training" / "gloo_job.py"
LIMIT_S = 240
ATTEMPTS = 3
"""A machine that is busy with something else is slow in truth, and then it is right to say so."""


def python_with_torch() -> str:
    named = os.environ.get("MEGATRACE_TORCH_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch here (pip install torch==2.13.0, or name a Python that has it)")
    return sys.executable


def recorded(folder: Path, *arguments: str) -> Trace:
    """What was recorded of one run of the job."""
    run = folder / "run"
    command = [sys.executable, "-m", "megatrace", "run", "--dir", str(run), "--rings", str(folder / "rings")]
    job = [python_with_torch(), str(SCRIPT), "--store", str(folder / "store"), *arguments]
    done = subprocess.run(
        [*command, "--no-preload", "--no-plugin", "--", *job],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    stuck = "no-recv" in arguments
    assert done.returncode == (1 if stuck else 0), done.stderr
    return open_trace([run / "rings"])


def judged(trace: Trace) -> Diagnosis:
    diagnosis = diagnose(trace)
    layout = diagnosis.job.layout
    assert layout is not None
    assert (layout.tp, layout.pp, layout.dp) == (2, 2, 2)
    return diagnosis


def test_a_healthy_training_is_called_healthy(tmp_path: Path) -> None:
    said = []
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        diagnosis = judged(recorded(folder, "--iterations", "6"))
        assert diagnosis.job.micro_batches == 4
        assert diagnosis.job.ranks_seen == 8
        assert diagnosis.verdict in (Verdict.HEALTHY, Verdict.SLOW), diagnosis.headline
        said.append(diagnosis.headline)
        if diagnosis.verdict is Verdict.HEALTHY:
            return
    pytest.fail("; ".join(said))


def test_a_rank_that_sleeps_in_its_forward_is_named(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path, "--iterations", "8", "--fault", "slow", "--rank", "2", "--at", "4", "--seconds", "0.3"
    )
    diagnosis = judged(trace)
    assert diagnosis.verdict is Verdict.SLOW
    finding = diagnosis.findings[0]
    assert finding.culprits.ranks == (2,), diagnosis.headline
    assert finding.kind in (Kind.SLOW_COMPUTE, Kind.SLOW_HOST)
    assert (finding.where.stage, finding.where.phase) == (0, Phase.FORWARD)
    assert finding.impact.slowdown is not None
    assert finding.impact.slowdown > 1.2


def test_a_rank_that_never_posts_its_recv_is_named_with_stage_and_micro_batch(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path, "--iterations", "8", "--fault", "no-recv", "--rank", "5", "--at", "3", "--micro-batch", "2"
    )
    diagnosis = judged(trace)
    assert diagnosis.verdict is Verdict.HANG
    finding = diagnosis.findings[0]
    assert finding.culprits.ranks == (5,), diagnosis.headline
    where = finding.where
    assert (where.stage, where.micro_batch, where.phase, where.iteration) == (1, 2, Phase.FORWARD, 3)
    assert where.op is not None
    assert where.op.startswith("RECV")
    assert where.peer == 1
    assert where.training_step == 3, "its optimizer has made three steps"
    _compare_with_flight_recorder(trace, tmp_path)
    spool = Spool(tmp_path / "archive", 1 << 30)
    spool.round(sorted((tmp_path / "run" / "rings").glob("*.ring")))
    assert spool.pack_parts() == 8
    archived = judged(open_trace([tmp_path / "archive"]))
    assert archived.headline == diagnosis.headline
    assert archived.findings[0].culprits == finding.culprits


def test_ddp_computes_the_same_and_its_reductions_are_recorded(tmp_path: Path) -> None:
    script, python = SCRIPT.with_name("gloo_ddp.py"), python_with_torch()
    alone = subprocess.run(
        [python, script, tmp_path / "a"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    command = [sys.executable, "-m", "megatrace", "run", "--dir", str(tmp_path / "run")]
    watched = subprocess.run(
        [*command, "--no-preload", "--no-plugin", "--", python, script, tmp_path / "b"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert len(alone.stdout.splitlines()) == 3
    assert watched.stdout == alone.stdout
    events = open_trace([tmp_path / "run" / "rings"]).events
    assert events.ranks().tolist() == [0, 1]
    assert set(events.op.tolist()) == {Op.ALL_REDUCE}
    assert events.nbytes is not None
    parameters = 64 * 64 + 64 + 64 * 8 + 8
    for rank in (0, 1):
        assert int(events.nbytes[events.rows_of(rank)].sum()) == 3 * 4 * parameters
    assert events.end is not None
    assert bool((events.end > events.enqueue).all())


def _compare_with_flight_recorder(trace: Trace, folder: Path) -> None:
    """torch's own recorder saw the same collectives of every rank (of gloo it records no Send and Recv)."""
    for rank in range(8):
        dumped = json.loads((folder / f"store.flight-{rank}.json").read_text())
        entries = [entry for entry in dumped["entries"] if entry["profiling_name"] == "gloo:all_reduce"]
        theirs = Counter(entry["process_group"][0] for entry in entries)
        rows = trace.events.rows_of(rank)
        events = trace.events.take(rows)
        reductions = events.take(events.op == Op.ALL_REDUCE)
        assert reductions.comm is not None
        ours = Counter(reductions.comm.tolist())
        assert sorted(ours.values()) == sorted(theirs.values()), f"rank {rank}"
        # The culprit's host waits for nothing; the others of its stage wait for a collective or a message.
        assert events.end is not None
        unfinished = int((events.end == events.end.min()).sum()) if events.end.min() < 0 else 0
        assert unfinished == (0 if rank == 5 else 1), f"rank {rank}"
