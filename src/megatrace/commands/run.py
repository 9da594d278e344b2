"""`megatrace run -- CMD`: starts a job as it is, with the recording switched on around it.

Sets three variables, writes down what the job is told to be, starts the command and gets out of its way:
signals and the exit code pass through, standard output is untouched. When the job has ended its recordings
are moved from shared memory into the folder of the run. Whatever goes wrong with the recording is one line
on stderr; the job is started all the same.

Diagnoses nothing; the last line says which command does.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from megatrace.collect import launch
from megatrace.collect.capture import capture, job_file, refine, sourced, with_unobserved
from megatrace.collect.port_log import PortLog
from megatrace.collect.run_settings import surroundings
from megatrace.collect.standby import Standby, Watcher
from megatrace.collect.supervise import supervise
from megatrace.collect.watching import Stillness
from megatrace.commands import command, output
from megatrace.errors import MegatraceError, UsageError
from megatrace.model.job import JobConfig
from megatrace.units import NS_PER_S, parse_duration

RUNS = Path("megatrace-runs")
"""Where runs go when nobody names a folder."""


@command(
    "run",
    summary="starts a job with the recording switched on",
    examples=[
        "megatrace run -- torchrun --nproc-per-node 8 train.py",
        "srun megatrace run --dir /shared/runs/$SLURM_JOB_ID -- python train.py",
        'eval "$(megatrace run --print-env)"',
    ],
    order=20,
)
def run(
    command_line: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND…", help="The job, as it is started without.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder of the run (default: megatrace-runs/ and the time)."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job (default: Slurm's, or the time).")] = None,
    rings: Annotated[
        Path | None, typer.Option(help="Folder of the ring files while the job runs (default: /dev/shm).")
    ] = None,
    verbs: Annotated[bool, typer.Option("--verbs", help="Also record RDMA work requests.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Also record when NCCL's kernels start and end.")
    ] = False,
    network: Annotated[
        bool,
        typer.Option("--network", help="Also record the requests of NCCL's proxy to the network."),
    ] = False,
    no_preload: Annotated[bool, typer.Option("--no-preload", help="Leave LD_PRELOAD alone.")] = False,
    no_plugin: Annotated[bool, typer.Option("--no-plugin", help="Leave NCCL_PROFILER_PLUGIN alone.")] = False,
    no_torch: Annotated[bool, typer.Option("--no-torch", help="Leave torch.distributed alone.")] = False,
    suspect: Annotated[
        str,
        typer.Option(
            "--suspect-after", help="Take evidence when no call was recorded for so long; off: never."
        ),
    ] = "60s",
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Print what to export, and start nothing.")
    ] = False,
) -> int:
    """Records every communication call of an unchanged job.

    The exit code is the command's own, or 128 + N where signal N ended it. Nothing of the recording can keep
    the job from starting: what does not work is one line on stderr.
    """
    wanted = launch.Wanted(not no_preload, not no_plugin, not no_torch, verbs, kernels, network)
    after_s = math.inf if suspect == "off" else parse_duration(suspect) / NS_PER_S
    if print_env:
        return _print_environment(wanted, rings)
    if not command_line:
        raise UsageError("no command: write it behind two dashes, as in megatrace run -- python train.py")
    job = name or _job_name(os.environ)
    place = folder or RUNS / job
    # A folder of its own for each launcher: with srun there are several on a node, and they end one by one.
    rings = rings or launch.SHARED_MEMORY / f"megatrace-{os.getuid()}" / job / str(os.getpid())
    change: dict[str, str] = {}
    config = JobConfig()
    try:
        launch.make_folders(place, rings)
        places = {
            launch.RING_DIR: str(rings.resolve()),
            launch.RUN_DIR: str(place.resolve()),
            launch.JOB: job,
        }
        change, notes = launch.environment_of(os.environ, launch.parts(), wanted, places)
        config = _write_down(place, command_line, job, notes)
        if split := launch.parallel(config):
            change[launch.PARALLEL] = split
    except MegatraceError as error:
        _say(f"the job is started without recording: {error}")
    beside = _Beside(config, place)
    watcher = Watcher(Standby(place.resolve(), Stillness(after_s), _say, beside.hidden), rings)
    watcher.standby.ports = PortLog(rings)
    code = supervise(command_line, {**os.environ, **change}, watcher.begin)
    watcher.end()
    _put_away(rings, place)
    beside.refine()
    if watcher.standby.stillness.taken:
        _say(f"the job stood; next: megatrace attach {_evidence(place)}")
    return code


class _Beside:
    """The ``job.yaml`` of a run while more becomes known of the job."""

    def __init__(self, config: JobConfig, place: Path) -> None:
        self.config, self.place = config, place

    def hidden(self, found: dict[str, str]) -> None:
        """Blind spots (word → source) that were found in a process."""
        self._write(with_unobserved(self.config, sourced(found)))

    def refine(self) -> None:
        """Adds what the arguments of a rank say and a script that started it did not show."""
        for path in sorted((self.place / "rings").glob("groups-*.json"))[:1]:
            with suppress(OSError, ValueError, KeyError, TypeError, MegatraceError):
                told = json.loads(path.read_text("utf-8"))
                size = {"WORLD_SIZE": str(told["world_size"])}
                self._write(refine(self.config, [str(word) for word in told["argv"]], size, Path.cwd()))

    def _write(self, config: JobConfig) -> None:
        if config != self.config:
            self.config = config
            with suppress(OSError):
                output.write_whole(self.place / "job.yaml", job_file(config))


def _evidence(place: Path) -> Path:
    """The folder of evidence that was written last."""
    return max(place.glob("evidence-*"), key=lambda path: path.stat().st_mtime_ns, default=place)


def _say(text: str) -> None:
    print(f"megatrace: {text}", file=sys.stderr)


def _job_name(environment: os._Environ[str]) -> str:
    """The scheduler's number of the job, else the time: a second run must not mix with the first."""
    slurm = environment.get("SLURM_JOB_ID")
    if slurm:
        restart = environment.get("SLURM_RESTART_COUNT", "0")
        return f"slurm-{slurm}" if restart == "0" else f"slurm-{slurm}-{restart}"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"


def _print_environment(wanted: launch.Wanted, rings: Path | None) -> int:
    places = {} if rings is None else {launch.RING_DIR: str(rings.resolve())}
    change, notes = launch.environment_of(os.environ, launch.parts(), wanted, places)
    for note in notes:
        _say(note)
    for variable, value in change.items():
        print(f"export {variable}={shlex.quote(value)}")
    return 0


def _write_down(place: Path, command_line: list[str], job: str, notes: tuple[str, ...]) -> JobConfig:
    """``job.yaml`` and ``run.json`` of the run; of several launchers of one job the first writes them."""
    config, more = capture(command_line, os.environ, Path.cwd())
    for note in (*notes, *more):
        _say(note)
    declared = {
        key: {"value": getattr(said.value, "value", said.value), "source": said.source}
        for key, said in config.declared().items()
    }
    told = {
        "schema": "megatrace.run/1",
        "job": job,
        "command": command_line,
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_at_ns": str(time.time_ns()),
        "config": declared,
        **surroundings(os.environ, Path.cwd()),
    }
    if not (place / "run.json").exists():
        output.write_whole(place / "job.yaml", job_file(config))
        output.write_whole(place / "run.json", json.dumps(told, indent=1) + "\n")
    return config


def _put_away(rings: Path, place: Path) -> None:
    """Moves the rings of a job that has ended out of shared memory, and says what to do next."""
    try:
        files = sorted(path for path in rings.iterdir() if path.is_file())
        kept = place / "rings"
        if files:
            kept.mkdir(parents=True, exist_ok=True)
        for path in files:
            shutil.move(path, kept / path.name)
        rings.rmdir()
        if rings.is_relative_to(launch.SHARED_MEMORY):
            with suppress(OSError):  # the folder of the job, while another launcher of it still runs here
                rings.parent.rmdir()
    except OSError as error:
        _say(f"the recordings stay in {rings}: {error.strerror or error}")
        return
    if files:
        _say(f"{len(files)} recordings in {kept}; next: megatrace diagnose {kept} --config {place}/job.yaml")
    else:
        _say("nothing was recorded: no process of the job made a call that the recorder can see")
