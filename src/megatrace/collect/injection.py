"""Faults for practice, on a job of one's own: a stopped rank, a Recv held back, load, a late network.

Each is a context that begins the fault and always undoes it: at the end of its time, at Ctrl-C, at SIGTERM. A
helper process undoes it where this one is killed outright. A target is named by whoever asks; nothing here
looks for one.

Breaks nothing for good: no process is ended, no setting outlives the time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from megatrace.collect import processes, torch_ring
from megatrace.errors import UsageError

LONGEST_S = 3600.0
"""An hour: longer than any watchdog; who needs more wants something else than practice."""
_GUARD = """
import os, signal, subprocess, sys
# Waits until the pipe from the one who injects closes, however that one ends, and undoes the fault.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
sys.stdin.buffer.read()
if sys.argv[1] == "clear":
    try:
        with open(sys.argv[2], "r+b", buffering=0) as file:
            file.seek(int(sys.argv[3]))
            file.write(bytes(8))
    except OSError:
        pass
elif sys.argv[1] == "resume":
    for word in sys.argv[2:]:
        try:
            os.kill(int(word), signal.SIGCONT)
        except OSError:
            pass
else:
    subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


@contextmanager
def guarded(*undo: str) -> Iterator[None]:
    """Runs the block; whatever becomes of this process, ``undo`` is done when it is over.

    ``undo`` is ``resume PID…``, ``clear FILE OFFSET`` or ``run COMMAND…``.
    """
    guard = subprocess.Popen([sys.executable, "-c", _GUARD, *undo], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


@contextmanager
def paused(pids: Sequence[int]) -> Iterator[None]:
    """Stops processes (SIGSTOP) for the time of the block. Raises UsageError where that is not allowed."""
    for pid in pids:
        if pid in (os.getpid(), os.getppid(), 1):
            raise UsageError(
                f"process {pid} is no rank: it is this command, its shell, or the system's first"
            )
        try:
            os.kill(pid, 0)
        except OSError as error:
            raise UsageError(f"process {pid} cannot be stopped: {error.strerror}") from None
    with guarded("resume", *map(str, pids)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield


@contextmanager
def receiving_nothing(pid: int, seconds: float) -> Iterator[None]:
    """Keeps a process from posting a Recv for the time of the block, and for ``seconds`` at most: the hook of
    torch.distributed in it looks into the head of its ring. The Recv is posted afterwards, so no message is
    lost. Raises UsageError where the process has no such ring."""
    rings = [Path(path) for path in processes.rings_of(pid) if Path(path).name.startswith("torch-")]
    if not rings:
        raise UsageError(
            f"process {pid} has no ring of torch.distributed: it is not recorded, or made no call yet"
        )
    ring = str(rings[0])
    until = time.monotonic_ns() + int(seconds * 1e9)
    with guarded("clear", ring, str(torch_ring.HELD_AT)):
        try:
            with open(ring, "r+b", buffering=0) as file:  # noqa: PTH123
                file.seek(torch_ring.HELD_AT)
                file.write(until.to_bytes(8, "little"))
        except OSError as error:
            raise UsageError(f"the ring of process {pid} cannot be written: {error.strerror}") from None
        yield


_GPU = """
import os, sys
try:
    import torch
except ImportError:
    sys.exit("PyTorch is not installed in " + sys.executable)
if not torch.cuda.is_available():
    sys.exit("there is no GPU that PyTorch can use")
device, parent = int(sys.argv[1]), os.getppid()
if device >= torch.cuda.device_count():
    sys.exit(f"there is no GPU {device}; PyTorch sees {torch.cuda.device_count()}")
with torch.no_grad():
    a = torch.randn(4096, 4096, device=f"cuda:{device}")
    print("ready", flush=True)
    while os.getppid() == parent:
        for _ in range(10):
            a @ a
        torch.cuda.synchronize(device)
"""


@contextmanager
def busy_gpu(device: int, python: str) -> Iterator[None]:
    """Keeps a GPU busy with products of matrices, from a process of ``python``, which has PyTorch. Raises
    UsageError where there is none, or no such GPU."""
    words = [python, "-c", _GPU, str(device)]
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise UsageError(f"{python} cannot be started: {error.strerror}") from None
    with process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if process.stdout.readline() != "ready\n":
                said = process.stderr.read().strip().splitlines()
                raise UsageError(f"gpu: {said[-1] if said else 'the process ended at once'}")
            yield
        finally:
            process.kill()


@contextmanager
def busy(workers: int, cpus: Sequence[int]) -> Iterator[None]:
    """Keeps processors busy with ``workers`` processes, bound to ``cpus`` where any are named."""
    code = "import os, sys\ncpus = {int(word) for word in sys.argv[1:]}\n"
    code += "if cpus: os.sched_setaffinity(0, cpus)\nparent = os.getppid()\n"
    code += "while os.getppid() == parent:\n    sum(range(200_000))\n"  # ends when this process does, too
    words = [sys.executable, "-c", code, *map(str, cpus)]
    started = [subprocess.Popen(words) for _ in range(workers)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def delayed(interface: str, delay_ms: float) -> Iterator[None]:
    """Delays what leaves an interface. Raises UsageError where there is no ``tc``, no right to, or where the
    interface has a queueing discipline of somebody's own already, which would be lost."""
    program = shutil.which("tc") or shutil.which("tc", path="/usr/sbin:/sbin")
    if program is None:
        raise UsageError("network delay needs tc (package iproute2), which is not installed")
    shown = _tc([program, "qdisc", "show", "dev", interface, "root"])
    if any(word in shown for word in ("netem", "htb", "tbf", "hfsc", "cbq", "prio")):
        raise UsageError(f"{interface} has a queueing discipline of its own ({shown.split()[1]}); left alone")
    with guarded("run", program, "qdisc", "del", "dev", interface, "root", "netem"):
        _tc([program, "qdisc", "add", "dev", interface, "root", "netem", "delay", f"{delay_ms}ms"])
        yield


def _tc(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise UsageError(f"tc: {said[-1] if said else 'failed'}")
    return done.stdout


def wait(seconds: float) -> bool:
    """Lets the time go by; False where SIGTERM or Ctrl-C ended it early. Either way it returns, so that the
    contexts around it undo what they did."""
    ended: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _: ended.append(received))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        deadline = time.monotonic() + seconds
        while not ended and time.monotonic() < deadline:
            time.sleep(min(0.05, max(deadline - time.monotonic(), 0)))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return not ended
