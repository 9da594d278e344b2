"""Call logs read by a real Slurm array and by a real Dask cluster: the verdict of the text, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatrace.commands.demo import small
from megatrace.commands.engines import Workers
from megatrace.readers.opening import open_trace
from megatrace.simulator import simulate
from megatrace.simulator.emit import write_text
from tests.components.daemons import ROOT
from tests.components.dask_cluster import Dask
from tests.components.slurm_cluster import Slurm
from tests.unit.test_reduced_logs import assert_same

SCRIPT = ROOT / "deploy" / "slurm" / "megatrace-reduce.sh"
MEGATRACE = Path(sys.executable).with_name("megatrace")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of a job with a slow GPU."""
    folder = tmp_path_factory.mktemp("job") / "logs"
    write_text(simulate(small()).trace, folder)
    return folder


def verdict(*words: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "megatrace", "diagnose", "--format", "json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 10, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told | {"generated_at": None}


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
def test_a_slurm_array_gives_the_same_verdict(slurm: Slurm, logs: Path, tmp_path: Path) -> None:
    partials = tmp_path / "partials"
    words = ["sbatch", "--wait", "--array=0-2", f"--output={tmp_path}/task-%a.out", str(SCRIPT)]
    slurm.run([*words, str(logs), str(partials)], environment={"MEGATRACE": str(MEGATRACE)})
    assert len(list(partials.iterdir())) == 3
    assert verdict(str(partials)) == verdict(str(logs))


@pytest.mark.dask
@pytest.mark.xdist_group("dask")
def test_a_dask_cluster_gives_the_same_verdict(dask: Dask, logs: Path) -> None:
    there = verdict(str(logs), "--engine", "dask", "--scheduler", dask.address)
    assert there == verdict(str(logs))


@pytest.mark.dask
@pytest.mark.xdist_group("dask")
def test_a_dask_worker_killed_in_the_middle_changes_nothing(dask: Dask, logs: Path) -> None:
    from distributed import Client

    whole = open_trace([logs])
    with Client(dask.address, timeout="15s", set_as_default=False) as client:
        workers = _Killing(client, dask)
        assert_same(open_trace([logs], ahead=workers), whole)
    assert dask.workers[0].poll() is not None


class _Killing(Workers):
    """Kills the first worker with SIGKILL when the third file is asked for."""

    def __init__(self, client: Any, dask: Dask) -> None:
        super().__init__(lambda: client.get_executor(pure=False), 4, batch_bytes=1)
        self._dask, self._asked = dask, 0

    def get(self, path: str) -> Any:
        self._asked += 1
        if self._asked == 3:
            self._dask.workers[0].kill()
            self._dask.workers[0].wait()
        return super().get(path)
