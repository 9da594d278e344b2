"""The Slurm that tests use is a real one: jobs run on its nodes, and a drained node takes none."""

from __future__ import annotations

import pytest

from tests.components.slurm_cluster import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def test_a_job_array_runs_on_its_nodes(slurm: Slurm) -> None:
    out = slurm.place / "array-%a.out"
    script = 'echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT on $SLURMD_NODENAME"'
    slurm.run(["sbatch", "--wait", "--array=0-2", f"--output={out}", f"--wrap={script}"])
    said = [(slurm.place / f"array-{task}.out").read_text().split() for task in range(3)]
    assert [words[:3] for words in said] == [[str(task), "of", "3"] for task in range(3)]
    assert {words[-1] for words in said} <= set(slurm.nodes)


def test_a_drained_node_comes_back(slurm: Slurm) -> None:
    node = slurm.nodes[-1]
    slurm.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"])
    slurm.wait_for(node, "drained")
    slurm.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    slurm.wait_for(node, "idle")
