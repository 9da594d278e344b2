"""The out-of-memory killer's lines as one fact: who asked, which limit was hit, who was killed.

Kernels print the constraint and the victim in lines of their own, and older ones split the kill into "Kill process"
and "Killed process": four lines and more are one event. Kills that a scheduler reports (Slurm, Ray, Kubernetes) are
whole lines and stand in ``log_launcher``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.model.series import FactKind, LogFact
from megatrace.readers.log_clean import Line
from megatrace.readers.log_pattern import fact_of, value

_INVOKED = re.compile(r"(?P<invoker>\S+) invoked oom-killer")
_CONSTRAINT = re.compile(r"oom-kill:constraint=(?P<constraint>\w+)(?P<rest>.*)")
_CGROUP = re.compile(
    r"Task in (?P<cgroup>\S+) killed as a result of limit of (?P<limit>\S+)|memory: usage (?P<usage>\d+)kB, limit (?P<kb>\d+)kB"
)
_KILLED = re.compile(
    r"(?P<scope>Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?)?:? ?(?P<done>Kill(?:ed)?) process (?P<pid>\d+),? ?(?:UID \d+,? )?\((?P<process>[^)]*)\)"
    r"(?:.*?anon-rss:(?P<anon_kb>\d+)kB)?(?:.*?shmem-rss:(?P<shmem_kb>\d+)kB)?"
)


class OomKiller:
    """See the module. One event at a time, as the kernel holds a lock while it kills."""

    needles: tuple[str, ...] = (
        "invoked oom-killer",
        "oom-kill:constraint",
        "Out of memory",
        "Killed process",
        "out of memory: Kill",
        "Task in /",
        "memory: usage",
    )

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}
        self._begun: LogFact | None = None

    @property
    def open(self) -> bool:
        """Never: every line of the event has a word of its own."""
        return False

    def feed(self, line: Line) -> list[LogFact]:
        """A fact with the line that names the victim; older kernels announce it in one line and confirm it in another."""
        text = line.text
        invoked = _INVOKED.search(text)
        if invoked is not None:
            ended = self.flush()
            self._parts = {"invoker": invoked["invoker"]}
            return ended
        constraint = _CONSTRAINT.search(text)
        if constraint is not None:
            self._parts["constraint"] = constraint["constraint"]
            group = re.search(r"oom_memcg=([^,]+)", constraint["rest"])
            if group is not None:
                self._parts["cgroup"] = group[1]
            if "global_oom" in constraint["rest"]:
                self._parts["global"] = "yes"
            return []
        limit = _CGROUP.search(text)
        if limit is not None:
            self._parts.update({k: v for k, v in limit.groupdict().items() if v is not None})
            return []
        return self._killed(line)

    def _killed(self, line: Line) -> list[LogFact]:
        killed = _KILLED.search(line.text)
        if killed is None or not (killed["scope"] or self._parts or self._begun):
            return []
        found = {k: v for k, v in killed.groupdict().items() if v is not None and k != "done"}
        begun, self._begun = self._begun, None
        if begun is not None and begun.word("pid") == found["pid"] and not self._parts:
            news = [(key, value(said)) for key, said in found.items() if begun.get(key) is None]
            return [replace(begun, fields=(*begun.fields, *news))]
        fact = fact_of(line, FactKind.OUT_OF_MEMORY, "host_oom", {**self._parts, **found})
        self._parts = {}
        if killed["done"] == "Kill":
            self._begun = fact
            return [] if begun is None else [begun]
        return [fact] if begun is None else [begun, fact]

    def flush(self) -> list[LogFact]:
        """A kill that was announced and not confirmed; an event without a victim killed nobody."""
        begun, self._begun, self._parts = self._begun, None, {}
        return [] if begun is None else [begun]
