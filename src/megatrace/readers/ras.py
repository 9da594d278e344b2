"""Answers of NCCL's RAS subsystem, as ``ncclras`` prints them: text, JSON, events of its monitor.

One query from any node tells of the whole job who answers and how many collectives every rank has launched on
every communicator. It cannot show completion, messages between two ranks, or the order of operations. Several
answers are several moments of one job, in the order of their times, or in which they were given.

Asking a live job is ``collect.ras_client``'s business.
"""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.errors import TraceError
from megatrace.model.events import Events
from megatrace.model.ras import RasCommunicator, RasSnapshot
from megatrace.model.series import FactKind, LogFact
from megatrace.model.trace import Coverage, InputInfo, Observable, Trace
from megatrace.readers import registry
from megatrace.readers.ras_json import is_ras_json, read_ras_json
from megatrace.readers.ras_text import is_ras_text, read_ras_text
from megatrace.readers.source import ReadOptions, Source

MAX_BYTES = 512 << 20
"""Of one file: the JSON of 10,000 ranks in thirty communicators each is 200 MB."""
_SEEN = frozenset({Observable.SEQ, Observable.GROUP, Observable.NODE})


@registry.register("ras", summary="NCCL RAS status (ncclras), text or JSON")
class RasReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._snapshots: list[RasSnapshot] = []
        self._inputs: list[InputInfo] = []
        self._notes: list[str] = []
        self._facts: list[LogFact] = []

    def refuses(self, head: bytes) -> str | None:
        """The heading of ``ncclras``, or the keys of its JSON."""
        if is_ras_text(head) or is_ras_json(head):
            return None
        return 'neither the heading of ncclras ("NCCL version …", "Job summary") nor its JSON'

    def add(self, source: Source) -> None:
        """Reads all answers of one file."""
        data = source.read_whole(self._limit)
        if not data:
            self._notes.append(f"{source.name} was not read: it {source.damage or 'is empty'}.")
            return
        text = data.decode("utf-8-sig", "replace")
        try:
            read = read_ras_json if is_ras_json(data[:65_536]) else read_ras_text
            found = read(text, source.name)
        except (ValueError, RecursionError) as error:
            reason = (
                "is nested too deep" if isinstance(error, RecursionError) else f"is cut or damaged ({error})"
            )
            self._notes.append(f"{source.name} was not read: it {reason}.")
            return
        if not found:
            self._notes.append(f"{source.name} was not read: it holds no communicator.")
            return
        if len(found) == 1 and found[0].taken_at is None:
            # Text has no time; when the file was written is the best that there is, and tells copies apart.
            found = [replace(found[0], taken_at=source.modified)]
        self._snapshots += found
        self._facts += _watchdogs(text, source.name)
        odd = sum(not _possible(item) for one in found for item in one.communicators)
        if odd:
            which = f"{odd} communicator{'s' if odd > 1 else ''}"
            self._notes.append(
                f"{source.name}: {which} cannot be as printed (ranks beyond the size); NCCL 2.27 is known to "
                "print memory that it has not set, so nothing is concluded from that."
            )
        ranks = max(snapshot.world for snapshot in found)
        self._inputs.append(InputInfo(source.name, "ras", _SEEN, ranks))

    def finish(self) -> Trace:
        """A Trace without calls. Raises TraceError where no answer could be read."""
        if not self._snapshots:
            raise TraceError(" ".join(self._notes) or "no answer of RAS was read")
        snapshots = self._snapshots
        if all(snapshot.taken_at is not None for snapshot in snapshots):
            snapshots = sorted(snapshots, key=lambda snapshot: snapshot.taken_at or 0)
        trace = Trace(Events.empty(), coverage=Coverage(_SEEN, notes=tuple(self._notes)))
        return replace(trace, inputs=tuple(self._inputs), ras=tuple(snapshots), facts=tuple(self._facts))


def _possible(item: RasCommunicator) -> bool:
    return item.size > 0 and all(one.rank < item.size for one in item.missing)


_WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40}).{0,200}?ran for (\d{1,12}) milliseconds"
)


def _watchdogs(text: str, source: str) -> list[LogFact]:
    """Time-outs of PyTorch's watchdog that stand in the same file, as people paste both together."""
    found = []
    for match in list(_WATCHDOG.finditer(text))[:256]:
        rank, seq, op, ms = match.groups()
        fields = (("seq", int(seq)), ("op", op), ("ran_ms", int(ms)))
        fact = LogFact(FactKind.WATCHDOG, match.group(0)[:240], rank=int(rank), source=source, name="timeout")
        found.append(replace(fact, fields=fields))
    return found
