"""A real Slurm on the loopback: one munged, one slurmctld, several slurmd that each claim to be a node.

Nothing of the machine is used or changed: key, socket, state and configuration stand in the folder of the
test, ports are free ones. SLURM_CONF in the environment is all that a client needs (`Slurm.environment`).
"""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components.daemons import connects, free_port, installed, running, wait_until

NODES = 4
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=1
SelectType=select/cons_tres
SlurmdTimeout=20
ResumeTimeout=30
RebootProgram=/bin/true
SchedulerParameters=sched_interval=1,defer,batch_sched_delay=0
MinJobAge=300
JobRequeue=1
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmdSpoolDir={place}/spool.%n
StateSaveLocation={place}/state
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=500\n"


@dataclass(frozen=True, slots=True)
class Slurm:
    """A cluster that answers; ``place`` holds its files, ``nodes`` their names."""

    place: Path
    nodes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to talk to this Slurm and to no other."""
        return {**os.environ, "SLURM_CONF": str(self.place / "slurm.conf")}

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 120,
    ) -> str:
        """What a client prints (sinfo, sbatch, scontrol …). Raises CalledProcessError with its words."""
        done = subprocess.run(
            list(argv), cwd=cwd or self.place, env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode, argv, done.stdout, f"{done.stdout}{done.stderr}"
            )
        return done.stdout

    def state_of(self, node: str) -> str:
        """As sinfo says it: idle, mixed, drained …"""
        return self.run(["sinfo", "--noheader", "--nodes", node, "--format", "%T"]).split("\n")[0].strip()

    def wait_for(self, node: str, state: str) -> None:
        """Returns once the node is in the state. Raises NotReady."""
        wait_until(lambda: self.state_of(node) == state, f"{node} {state}")


def _configure(place: Path) -> tuple[str, ...]:
    names = tuple(f"n{number}" for number in range(1, NODES + 1))
    ports = [free_port() for _ in range(NODES + 1)]
    text = CONFIGURATION.format(user=getpass.getuser(), controller=ports[0], place=place)
    text += "".join(NODE.format(name=name, port=port) for name, port in zip(names, ports[1:], strict=True))
    (place / "slurm.conf").write_text(text)
    (place / "state").mkdir()
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    return names


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A cluster of four nodes. Use it with the markers `slurm` and `xdist_group("slurm")`."""
    munged = installed("munged", package="munge")
    controller = installed("slurmctld", package="slurmctld")
    daemon = installed("slurmd", package="slurmd")
    installed("sbatch", package="slurm-client")
    place = tmp_path_factory.mktemp("slurm")
    found = Slurm(place, _configure(place))
    port = int(found.run(["grep", "-oP", r"(?<=SlurmctldPort=)\d+", "slurm.conf"]))
    environment = {"SLURM_CONF": str(place / "slurm.conf")}
    socket = place / "munge.socket"
    keep = [f"--key-file={place / 'munge.key'}", f"--socket={socket}", f"--pid-file={place / 'munge.pid'}"]
    keep += [f"--log-file={place / 'munged.log'}", f"--seed-file={place / 'munge.seed'}", "--num-threads=2"]
    with ExitStack() as stack:
        # --force: a folder below /tmp is not one of those that munge trusts without being told so.
        start = [munged, "--foreground", "--force", *keep]
        stack.enter_context(running(start, socket.exists, place / "munged.out"))
        start = [controller, "-D", "-i"]
        stack.enter_context(running(start, lambda: connects(port), place / "controller.out", environment))
        for node in found.nodes:
            log = place / f"{node}.out"
            stack.enter_context(running([daemon, "-D", "-N", node], lambda: True, log, environment))
        for node in found.nodes:
            found.wait_for(node, "idle")
        yield found
