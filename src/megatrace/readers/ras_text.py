"""The text that ``ncclras`` prints: a summary of communicators, then errors, then warnings.

The lines are those of NCCL 2.24 to 2.30. RAS lists ranks one by one only where they are few (unless asked
with -v), so the larger side of a difference is mostly not listed; where it is the only one, it follows from
the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from megatrace.model.ras import Absence, Missing, Process, RasCommunicator, RasSnapshot, Tally

MAX_SIZE = 1 << 20
"""Ranks of a communicator that are believed; NCCL 2.27 could print sizes of memory that it had not
initialised."""

_VERSION = re.compile(r"NCCL version (\S{1,40})")
_BEGIN = re.compile(r"NCCL version \S{1,40} compiled with CUDA")
_SECTION = re.compile(
    r"^(#(\d{1,6})-(\d{1,6}) \(([0-9a-fA-Fx]{1,32})\) )?(INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)$"
)
_GROUP = re.compile(r"^(\d+)\s+(\d+)\s+(\d+)\s+(\d+(?:-\d+)?)\s+(\d+)\s+(\d+)\s+([A-Z]+)\s+([A-Z,]+)$")
_TOTAL = re.compile(r"^(\d+)\s+(\d+(?:-\d+)?)\s+(\d+(?:-\d+)?)\s+(\d+)\s+(\d+)$")
_TOTAL_UNEVEN = re.compile(r"^(\d+)\s+(\d+)\s+(\d+)$")
_PLACE = (
    r"(?: -- (?:GPU (.{1,40}?) managed by process (\d{1,9}) on node (\S{1,80})"
    r"|\[process information not found\]))"
)
_RANK = re.compile(r"^Rank (\d{1,12})(?: (has|reported) (.{1,80}?))?" + _PLACE + "$")
_PROCESS = re.compile(r"^Process (\d{1,9}) on node (\S{1,80}) managing GPUs? (.{1,120})$")
_LAUNCHED = re.compile(r"^(\d{1,9}) ranks have launched up to operation (\d{1,18})$")
_NOTHING = re.compile(r"^(\d{1,9}) ranks have not launched any operations$")
_STATUS = re.compile(r"^(\d{1,9}) ranks have status (\w{1,20})$")
_REPORTED = re.compile(r"^(\d{1,9}) ranks reported (.{1,80})$")
_DIFFERENT = re.compile(
    r"^Communicator ranks have different (?:(\w{1,40}) )?(?:collective )?(operation counts|status)$"
)
_ERRORS = re.compile(r"^(Initialization|Asynchronous) errors? on (\d{1,9}) ranks?$")
_COUNTED = re.compile(r"^Missing communicator data from (\d{1,9}) (?:rank|job process)")
_TIMEOUT = re.compile(r"^Encountered (\d{1,9}) communication timeout")
_PREFIX = re.compile(r"^(?:\[[^\]\n]{1,60}\]:?\s?|\d{4}-\d\d-\d\d[T ]\S+\s)")


def is_ras_text(head: bytes) -> bool:
    """Whether a file with this head is an answer of RAS."""
    return b"NCCL version" in head and (b"Job summary" in head or b"Communicators..." in head)


@dataclass
class _Open:
    """A communicator while its sections are read."""

    hash: str
    name: str
    group: int
    tallies: list[Tally] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    places: dict[int, Process] = field(default_factory=dict)
    missing_count: int = 0


class _Reading:
    """One answer, line by line."""

    def __init__(self, source: str) -> None:
        self.snapshot = RasSnapshot(source)
        self.groups: list[tuple[int, int, int, str, str]] = []
        self.open: dict[str, _Open] = {}
        self.at: _Open | None = None
        self.section, self.what, self.uneven = "", "", False
        self.dead: list[Process] = []
        self.unresponsive: list[Process] = []
        self.timeouts = 0

    def line(self, text: str) -> None:
        if not text:
            return
        found = _SECTION.match(text)
        if found is not None:
            self._begin(found)
        elif self.section in ("", "summary"):
            self._summary(text)
        elif self.section in ("DEAD", "INCOMPLETE") and self.at is None:
            self._process(text)
        elif self.section == "TIMEOUT":
            timeout = _TIMEOUT.match(text)
            self.timeouts += int(timeout.group(1)) if timeout else 0
        elif self.at is not None:
            self._communicator(text, self.at)

    def _begin(self, found: re.Match[str]) -> None:
        self.section, self.at, self.what = found.group(5), None, ""
        if found.group(1) is not None:
            key = f"{found.group(2)}-{found.group(3)}"
            self.at = self.open.setdefault(key, _Open(found.group(4).lower(), f"#{key}", int(found.group(2))))

    def _summary(self, text: str) -> None:
        version = _VERSION.match(text)
        if version is not None:
            self.snapshot = replace(self.snapshot, version=version.group(1))
            return
        if text.startswith("Nodes") and "Processes" in text:
            self.uneven = text.split() == ["Nodes", "Processes", "GPUs"]
        group = _GROUP.match(text)
        if group is not None:
            _, comms, nodes, _, size, _, status, errors = group.groups()
            self.groups.append((int(comms), min(int(size), MAX_SIZE), int(nodes), status, errors))
            return
        total = _TOTAL.match(text)
        if total is not None:
            nodes, processes, gpus = int(total.group(1)), int(total.group(4)), int(total.group(5))
            self.snapshot = replace(self.snapshot, nodes=nodes, processes=processes, gpus=gpus)
            return
        uneven = _TOTAL_UNEVEN.match(text)
        if uneven is not None and self.uneven:  # the last such line is the total
            nodes, processes, gpus = (int(item) for item in uneven.groups())
            self.snapshot = replace(self.snapshot, nodes=nodes, processes=processes, gpus=gpus)

    def _process(self, text: str) -> None:
        found = _PROCESS.match(text)
        if found is not None:
            process = Process(found.group(2), int(found.group(1)), found.group(3).strip())
            (self.dead if self.section == "DEAD" else self.unresponsive).append(process)

    def _communicator(self, text: str, at: _Open) -> None:
        counted, different, errors = _COUNTED.match(text), _DIFFERENT.match(text), _ERRORS.match(text)
        if counted is not None:
            at.missing_count = int(counted.group(1))
        elif different is not None:
            self.what = "status" if different.group(2) == "status" else different.group(1) or "collective"
            self.what = "collective" if self.what == "collective" else self.what
        elif errors is not None:
            self.what = f"{errors.group(1).lower()} error"
        elif (rank := _RANK.match(text)) is not None:
            self._rank(rank, at)
        else:
            self._tally(text, at)

    def _tally(self, text: str, at: _Open) -> None:
        launched, nothing = _LAUNCHED.match(text), _NOTHING.match(text)
        status, reported = _STATUS.match(text), _REPORTED.match(text)
        if launched is not None:
            at.tallies.append(Tally(self.what, int(launched.group(2)), int(launched.group(1))))
        elif nothing is not None:
            at.tallies.append(Tally(self.what, 0, int(nothing.group(1))))
        elif status is not None:
            at.tallies.append(Tally("status", 0, int(status.group(1)), text=status.group(2)))
        elif reported is not None:
            at.tallies.append(Tally(self.what, 0, int(reported.group(1)), text=reported.group(2)))

    def _rank(self, found: re.Match[str], at: _Open) -> None:
        rank = int(found.group(1))
        if rank >= MAX_SIZE:
            return
        pid = None if found.group(5) is None else int(found.group(5))
        process = Process(found.group(6), pid, found.group(4))
        at.places[rank] = process
        if self.section == "INCOMPLETE":
            at.missing.append(Missing(rank, process, Absence.UNKNOWN))
            return
        verb, said = found.group(2), found.group(3)
        if verb is None:
            if at.tallies:
                last = at.tallies[-1]
                at.tallies[-1] = replace(last, ranks=(*(last.ranks or ()), rank))
            return
        at.tallies.append(self._alone(rank, verb, said or ""))

    def _alone(self, rank: int, verb: str, said: str) -> Tally:
        """A rank that stands alone is told in a line of its own."""
        launched = re.match(r"launched up to operation (\d{1,18})$", said)
        if launched is not None:
            return Tally(self.what, int(launched.group(1)), 1, (rank,))
        if said.startswith("status "):
            return Tally("status", 0, 1, (rank,), said.removeprefix("status "))
        if verb == "reported":
            return Tally(self.what, 0, 1, (rank,), said)
        return Tally(self.what, 0, 1, (rank,))

    def finish(self) -> RasSnapshot:
        return replace(
            self.snapshot,
            communicators=tuple(self._closed(item) for item in self.open.values()),
            groups=tuple((comms, size, status, errors) for comms, size, _, status, errors in self.groups),
            dead=tuple(self.dead),
            unresponsive=tuple(self.unresponsive),
            timeouts=self.timeouts,
        )

    def _closed(self, item: _Open) -> RasCommunicator:
        listed = self.groups[item.group] if item.group < len(self.groups) else (1, 0, 0, "", "")
        size = listed[1]
        dead = {(process.host, process.pid) for process in self.dead}
        silent = {(process.host, process.pid) for process in self.unresponsive}
        missing = []
        for one in item.missing:
            key = (one.process.host, one.process.pid)
            why = Absence.DEAD if key in dead else Absence.UNRESPONSIVE if key in silent else Absence.UNKNOWN
            missing.append(replace(one, why=why))
        gone = [one.rank for one in missing]
        return RasCommunicator(
            hash=item.hash,
            size=size,
            name=item.name,
            nodes=listed[2],
            status=listed[3],
            tallies=complemented(item.tallies, size, gone if len(gone) >= item.missing_count else None),
            missing=tuple(missing),
            places=tuple(sorted(item.places.items())),
        )


def complemented(tallies: Iterable[Tally], size: int, missing: list[int] | None) -> tuple[Tally, ...]:
    """The tallies, with the ranks of the only one that is not listed: everybody else. ``missing``: ranks
    without data, None where they are not known."""
    tallies = list(tallies)
    for what in {tally.what for tally in tallies}:
        mine = [i for i, tally in enumerate(tallies) if tally.what == what]
        unlisted = [i for i in mine if tallies[i].ranks is None]
        if len(unlisted) != 1 or missing is None or what.endswith("error"):
            continue
        named = {rank for i in mine for rank in tallies[i].ranks or ()} | set(missing)
        rest = tuple(rank for rank in range(size) if rank not in named)
        if len(rest) == tallies[unlisted[0]].count:
            tallies[unlisted[0]] = replace(tallies[unlisted[0]], ranks=rest)
    return tuple(tallies)


def read_ras_text(text: str, source: str) -> list[RasSnapshot]:
    """Every answer in a text: a file may hold several, one after the other."""
    readings: list[_Reading] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not _BEGIN.match(line) and not line.startswith("Rank "):
            line = _PREFIX.sub("", line).strip()
        if _BEGIN.match(line) or not readings:
            readings.append(_Reading(source))
        readings[-1].line(line)
    return [reading.finish() for reading in readings if reading.groups or reading.open or reading.dead]
