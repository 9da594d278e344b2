"""Runs a command as if MegaTrace were not there: its signals, its terminal, its exit code.

The launcher stays the parent, because recordings are put away when the job has ended; so every signal that is
meant for the job is passed on, orphans are reaped (in a container the launcher is process 1), and what the
command returned is returned. Ctrl-C is not passed on a second time: the terminal has sent it to the whole
foreground group already, and launchers take a second one for "kill at once".

Knows nothing of recording.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from megatrace.errors import UsageError

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGALRM,
    signal.SIGXCPU,
)
"""What a scheduler or a person sends to a job. Slurm warns with USR1 or USR2 before its time is up."""
FROM_KERNEL = 0x80
"""``si_code`` of a signal that nobody sent with kill(2): the terminal did."""
SIGNALLED = 128
"""What shells add to the number of the signal that ended a process."""


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    begun: Callable[[int], None] = lambda _: None,
) -> int:
    """Runs the command to its end and returns its exit code, 128 + N where signal N ended it.

    ``begun`` is told the number of its process while it runs; a thread that it starts gets none of the
    signals. Raises UsageError where the command cannot be started.
    """
    waited = {*FORWARDED, signal.SIGCHLD}
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an inherited "ignore" would lose the exit code
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)

    def as_before() -> None:
        signal.signal(signal.SIGCHLD, children)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        with _started(command, environment, as_before) as process:
            begun(process.pid)
            process.returncode = _wait(process.pid, waited)
        return process.returncode
    finally:
        as_before()


def _started(
    command: Sequence[str], environment: Mapping[str, str], as_before: Callable[[], None]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), env=dict(environment), preexec_fn=as_before)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None


def _wait(pid: int, waited: set[signal.Signals]) -> int:
    while True:
        status = _reaped(pid)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else SIGNALLED - code
        received = signal.sigwaitinfo(waited)
        if received.si_signo == signal.SIGCHLD or received.si_code == FROM_KERNEL:
            continue
        with suppress(ProcessLookupError):
            os.kill(pid, received.si_signo)


def _reaped(pid: int) -> int | None:
    """The wait status of ``pid`` if it has ended. As process 1 also collects the orphans of others."""
    while True:
        child, status = os.waitpid(-1 if os.getpid() == 1 else pid, os.WNOHANG)
        if child == 0:
            return None
        if child == pid:
            return status
