"""Runs checks so that none of them can harm the machine, the others or whoever waits for the answer.

A recorded machine cannot hang: its checks run in this process. On a live one they run in a worker in a
process group of its own, one at a time, each with its time limit. A worker over its limit is killed with
everything it started; what stands in the kernel (state D) and cannot be killed is abandoned, never awaited,
and the check is not started again until it is gone. A check for which hanging *is* the fault (a driver, a
mount) then fails; any other is UNKNOWN.

A check can be switched off, or set to observe only, by its id.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.counters import Counters
from megatrace.bot.executing import Bench, execute
from megatrace.bot.look import Look
from megatrace.bot.recorded_system import Recording
from megatrace.bot.recording import recording_of
from megatrace.model.check import CheckResult, Outcome
from megatrace.model.check_json import decoded
from megatrace.model.system import System, Unreadable
from megatrace.registry import Registry

BOOT_ID = "/proc/sys/kernel/random/boot_id"
GRACE_S = 1.0
"""Seconds over a check's limit before its worker is killed, and after which a killed one is taken for
abandoned."""
MAX_ANSWER = 32 << 20
"""Bytes of one answer: a recording of a round has a kernel log and some XML."""
START_S = 20.0
"""Seconds for a worker to start on a machine that is busy with a job."""


@dataclass(frozen=True, slots=True)
class Switches:
    """Checks that are off, and those that only observe, by id."""

    off: frozenset[str] = frozenset()
    observe: frozenset[str] = frozenset()

    def applied(self, info: CheckInfo, result: CheckResult) -> CheckResult:
        """The result, marked where its check only observes."""
        return replace(result, observed=True) if info.observe or info.id in self.observe else result


def switched_off(info: CheckInfo) -> CheckResult:
    """The result of a check that is off."""
    return CheckResult(info.id, Outcome.SKIPPED, "switched off")


def run_inline(
    infos: Iterable[CheckInfo],
    system: System,
    registry: Registry[Any],
    *,
    counters: Counters | None = None,
    template: Mapping[str, object] | None = None,
    switches: Switches | None = None,
) -> list[CheckResult]:
    """All checks in this process: for recordings, which cannot hang."""
    counters = Counters() if counters is None else counters
    switches = switches or Switches()
    rebooted = counters.boot(_boot_id(system))
    bench = Bench(registry, system, counters, template or {}, rebooted=rebooted)
    return [
        switched_off(info) if info.id in switches.off else switches.applied(info, execute(info, bench).result)
        for info in infos
    ]


@dataclass(frozen=True, slots=True)
class Standing:
    """A process that cannot be killed; ``started`` in clock ticks since boot tells it from a later one."""

    pid: int
    started: str
    what: str

    @property
    def there(self) -> bool:
        """Whether it still is. Of a child that has ended, the entry in the table of processes is removed."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return _started(self.pid) == self.started


@dataclass
class WorkerRunner:
    """Runs rounds of checks on this machine. Not for several threads. ``recorded`` grows where it records."""

    package: str
    host: str = "/"
    counters: Counters = field(default_factory=Counters)
    template: Mapping[str, object] = field(default_factory=dict)
    switches: Switches = field(default_factory=Switches)
    record: bool = False
    recorded: Recording = field(default_factory=lambda: Recording(complete=False))
    _process: subprocess.Popen[bytes] | None = None
    _rest: bytes = b""
    _boot: str = ""
    _rebooted: bool = False
    _standing: dict[str, list[Standing]] = field(default_factory=dict)

    def round(self, infos: Iterable[CheckInfo], system: System) -> list[CheckResult]:
        """Each check once, in the order given. ``system`` tells the time and the boot; it is not looked at
        otherwise."""
        self._boot = _boot_id(system)
        self._rebooted = self.counters.boot(self._boot)
        if self._process is not None:
            self._send({"round": self._boot, "rebooted": self._rebooted})
        results = []
        for info in infos:
            if info.id in self.switches.off:
                results.append(switched_off(info))
            else:
                results.append(self.switches.applied(info, self._one(info, system)))
        return results

    def close(self) -> None:
        """Ends the worker."""
        self._end()

    def _one(self, info: CheckInfo, system: System) -> CheckResult:
        still = [item for item in self._standing.get(info.id, ()) if item.there]
        self._standing[info.id] = still
        if still:
            first = still[0]
            stands = f"the earlier probe still stands in the kernel (process {first.pid}: {first.what})"
            why = f"not started again: {stands}"
            return self._hung(info, system, why, first.what)
        if self._process is None and not self._start():
            return CheckResult(info.id, Outcome.UNKNOWN, "the process for probes does not start")
        begun = time.monotonic()
        self._send({"check": info.id})
        place = ""
        while True:
            left = begun + info.timeout_s + GRACE_S - time.monotonic()
            message = self._receive(left)
            if message is None:
                return self._lost(info, system, place, begun)
            if "at" in message:
                place = str(message["at"])
                continue
            return self._answer(info, message, system)

    def _answer(self, info: CheckInfo, message: Mapping[str, Any], system: System) -> CheckResult:
        try:
            for kind, name, value in message.get("readings", ()):
                self.counters.take(str(kind), str(name), value, system.now())
            for pid, what in message.get("abandoned", ()):
                self._abandon(info, int(pid), str(what))
            if "recorded" in message:
                taken = message["recorded"]
                self.recorded.update(recording_of(taken, taken["files"]))
            return decoded(message["result"])
        except (KeyError, TypeError, ValueError) as error:
            return CheckResult(info.id, Outcome.UNKNOWN, f"the probe answered nonsense ({error!r})"[:200])

    def _lost(self, info: CheckInfo, system: System, place: str, begun: float) -> CheckResult:
        """The worker did not answer in time, or is gone."""
        process = self._process
        code = process.poll() if process is not None else None
        seconds = time.monotonic() - begun
        if process is not None and code is None:
            pid = process.pid
            gone = self._end()
            if not gone:
                self._abandon(info, pid, place or info.summary)
            at = f" at {place}" if place else ""
            kept = "" if gone else "; it stands in the kernel and cannot be killed"
            why = f"did not end within {info.timeout_s:g} s{at}{kept}"
            return replace(self._hung(info, system, why, place), seconds=round(seconds, 3))
        self._end()
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"code {code}"
        return CheckResult(
            info.id, Outcome.UNKNOWN, f"the probe's process ended ({how})", seconds=round(seconds, 3)
        )

    def _hung(self, info: CheckInfo, system: System, why: str, place: str) -> CheckResult:
        if not info.hang:
            return CheckResult(info.id, Outcome.UNKNOWN, why)
        look = Look(info, system, system.now())
        what = f" ({place})" if place else ""
        device = place.partition(" ")[0] if place.startswith("/") else None
        found = look.fail(f"{info.hang} hangs{what}", device=device, evidence=[why], key="hung")
        return CheckResult(info.id, Outcome.FAIL, why, (found.finding,), (found.step,))

    def _abandon(self, info: CheckInfo, pid: int, what: str) -> None:
        started = _started(pid)
        if started:
            self._standing.setdefault(info.id, []).append(Standing(pid, started, what))

    # ---- the worker

    def _start(self) -> bool:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "megatrace.bot.check_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._rest = b""
        every = [item for items in self._standing.values() for item in items if item.there]
        self._send(
            {
                "package": self.package,
                "host": self.host,
                "template": dict(self.template),
                "counters": self.counters.state(),
                "record": self.record,
                "standing": [[item.pid, item.what] for item in every],
            }
        )
        self._send({"round": self._boot, "rebooted": self._rebooted, "hello": True})
        return self._receive(START_S) is not None

    def _send(self, message: Mapping[str, Any]) -> None:
        pipe = None if self._process is None else self._process.stdin
        if pipe is not None:
            with suppress(BrokenPipeError, OSError):
                pipe.write(json.dumps(message).encode() + b"\n")
                pipe.flush()

    def _receive(self, seconds: float) -> Mapping[str, Any] | None:
        """The next message; None where none comes in time, the process is gone, or it says nonsense or too
        much."""
        pipe = None if self._process is None else self._process.stdout
        until = time.monotonic() + seconds
        while pipe is not None:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                try:
                    message = json.loads(line)
                except ValueError:
                    return None
                return message if isinstance(message, dict) else None
            left = until - time.monotonic()
            if left <= 0 or len(self._rest) > MAX_ANSWER or not select.select([pipe], [], [], left)[0]:
                return None
            block = os.read(pipe.fileno(), 1 << 16)
            if not block:
                with suppress(subprocess.TimeoutExpired):
                    if self._process is not None:
                        self._process.wait(GRACE_S)
                return None
            self._rest += block
        return None

    def _end(self) -> bool:
        """Kills the worker's group; False where the worker does not go."""
        process, self._process, self._rest = self._process, None, b""
        if process is None:
            return True
        self._kill(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return self._gone(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """The worker, and the programs that it runs, for they are of its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _gone(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a killed worker ends within the grace."""
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            # Nobody waits for it any more: `Standing` looks whether it is there, and takes its ashes away.
            process.returncode = -signal.SIGKILL
            return False
        return True


def _boot_id(system: System) -> str:
    try:
        return system.read(BOOT_ID, 64).strip()
    except Unreadable:
        return ""


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; "" where there is none, or only its ashes (a zombie)."""
    try:
        after = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if len(after) < 20 or after[0] in "ZX" else after[19]
