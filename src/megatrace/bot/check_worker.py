"""The process in which checks of a live machine run: one at a time, on request, killable from outside.

Started by ``check_runner`` in a process group of its own; speaks JSON lines on a pair of pipes. What a check
prints goes nowhere, its memory is bounded, and programs that it starts die with the group. It lives through
many rounds, so a continuous probe pays for one start.

    in   {"package": …, "host": …, "template": …, "counters": …}   once
         {"round": boot id, "rebooted": …, "hello": whether to answer}, {"check": id}
    out  {"ready": true}, {"at": what is being looked at}, {"result": …, "readings": …, "abandoned": …,
    "recorded": …}
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from megatrace.bot.catalogue import CheckInfo, info_of
from megatrace.bot.counters import Counters
from megatrace.bot.executing import Bench, execute
from megatrace.bot.live_system import LiveSystem
from megatrace.bot.recorded_system import Recorder, Recording
from megatrace.bot.recording import manifest_of
from megatrace.model.check_json import encoded
from megatrace.model.system import Ran, System, Why
from megatrace.registry import Registry

MEMORY = 512 << 20
"""Bytes of address space of this process: the largest kernel log and eight GPUs' XML take 90 MB."""


class Worker:
    """Answers requests until its input ends."""

    def __init__(self, setup: Mapping[str, Any], out: TextIO) -> None:
        self._out = out
        self._live = LiveSystem(str(setup.get("host", "/")), free_memory=True)
        self._recorder = Recorder(self._live) if setup.get("record") else None
        system: System = self._recorder or self._live
        registry: Registry[Any] = Registry("check", str(setup["package"]), decorator="check")
        found = _registry_of(str(setup["package"])) or registry
        self._infos: dict[str, CheckInfo] = {item.name: info_of(item) for item in found.declarations()}
        self._standing = [(int(pid), str(what)) for pid, what in setup.get("standing", ())]
        self._bench = Bench(found, system, Counters(setup.get("counters")), setup.get("template", {}))
        self._bench.tell = self._tell

    def serve(self, lines: TextIO) -> None:
        """One request a line."""
        for line in lines:
            message = json.loads(line)
            if "round" in message:
                self._round(message)
            else:
                self._check(str(message["check"]))

    def _round(self, message: Mapping[str, Any]) -> None:
        self._bench.counters.boot(str(message["round"]))
        self._bench.rebooted = bool(message.get("rebooted"))
        self._bench.shared.clear()
        self._standing = [item for item in self._standing if Path(f"/proc/{item[0]}").exists()]
        for _, what in self._standing:
            program = what.partition(" ")[0]
            self._bench.shared[f"hung {program}"] = Ran((program,), None, why=Why.HUNG)
        if message.get("hello"):
            self._say({"ready": True})

    def _check(self, name: str) -> None:
        done = execute(self._infos[name], self._bench)
        answer: dict[str, Any] = {"result": encoded(done.result), "readings": done.readings}
        if self._live.abandoned:
            answer["abandoned"] = self._live.abandoned
            self._standing += self._live.abandoned
            self._live.abandoned = []
        if self._recorder is not None:
            taken, self._recorder.recording = self._recorder.recording, Recording(complete=False)
            answer["recorded"] = {**manifest_of(taken), "files": taken.files}
        self._say(answer)

    def _tell(self, place: str) -> None:
        self._say({"at": place})

    def _say(self, message: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


def _registry_of(package: str) -> Registry[Any] | None:
    """The catalogue that the package itself holds: its decorator files into that one."""
    module = __import__(package, fromlist=["CHECKS"])
    found = getattr(module, "CHECKS", None)
    return found if isinstance(found, Registry) else None


def main() -> int:
    """Reads the set-up, then serves. Its own two pipes are put away first, so that no check can write into
    them."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    os.dup2(nothing, 0)
    setup = json.loads(requests.readline() or "{}")
    with suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (int(setup.get("memory", MEMORY)), hard))
    with suppress(BrokenPipeError):
        Worker(setup, answers).serve(requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
