"""Dumps of PyTorch's flight recorder: the last calls of every process, with their states.

A process group keeps the last calls (2,000 by default) in a ring and writes them when a watchdog times
out, or when asked to. A dump can show when a call was made, its size, group and number, whether it was
started (where timing was on) and completed, and how far the process got on each group. It cannot show when
it was made itself, nor which rank made it, and completion times are those at which a watchdog looked.

Pickles are read by a machine that knows only data (``flight_recorder_pickle``): they come from elsewhere.
Record numbers are a process' own and say nothing across ranks; calls are matched by group and number, and
messages by their two ends, in order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import TraceError
from megatrace.model.events import NO_COMM, NO_SEQ, UNSEEN, Events, Op
from megatrace.model.states import CallNote, Dumped, Positions
from megatrace.model.trace import Coverage, InputInfo, Observable, Trace
from megatrace.readers import registry
from megatrace.readers.flight_recorder_dump import parse_dump
from megatrace.readers.flight_recorder_entries import Dump
from megatrace.readers.flight_recorder_groups import Groups, Uses, joined_events
from megatrace.readers.flight_recorder_native import native_reader
from megatrace.readers.flight_recorder_pickle import PickleRefused, loads
from megatrace.readers.flight_recorder_ranks import assign_ranks
from megatrace.readers.source import ReadOptions, Source
from megatrace.units import say_ranks

MAX_BYTES = 256 << 20
"""Of one dump. 2,000 entries with stack frames are 10 MB; a buffer of ten times that is large."""
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_KEYS = (b"profiling_name", b"pg_config", b"pg_status", b"collective_seq_id", b"nccl_comm_state")
_SEEN = frozenset(
    {
        Observable.ENQUEUE, Observable.COUNT, Observable.BYTES, Observable.DTYPE, Observable.PEER,
        Observable.SEQ, Observable.GROUP, Observable.COMPLETION,
    }
)  # fmt: skip


@registry.register("flight_recorder", summary="PyTorch flight recorder dumps, pickle or JSON, one per rank")
class FlightRecorderReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions, *, compiled: bool = True) -> None:
        self._native = native_reader() if compiled else None
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._dumps: list[Dump] = []
        self._broken: list[tuple[str, str]] = []

    def refuses(self, head: bytes) -> str | None:
        """A pickle or a JSON object that names a key of a dump in its first bytes."""
        if _PICKLE.match(head):
            if any(key in head for key in _KEYS) or b"entries" in head:
                return None
            return "a pickle without any key of a flight-recorder dump"
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
            return "neither a pickle nor JSON"
        if any(b'"' + key + b'"' in head for key in _KEYS):
            return None
        return "JSON without any key of a flight-recorder dump"

    def add(self, source: Source) -> None:
        """Reads one dump. A broken one is noted: the others are still evidence."""
        data = source.read_whole(self._limit)
        if source.damage and not data:
            self._broken.append((source.name, source.damage))
            return
        try:
            dump = self._parse(data, source.name)
        except (PickleRefused, ValueError, RecursionError) as error:
            reason = "is nested too deep" if isinstance(error, RecursionError) else str(error)
            self._broken.append((source.name, source.damage or reason))
            return
        if dump is None:
            self._broken.append((source.name, "holds no entries and no groups"))
            return
        dump.modified = source.modified
        self._dumps.append(dump)

    def _parse(self, data: bytes, name: str) -> Dump | None:
        if self._native is None or not _PICKLE.match(data):
            return parse_dump(_decode(data), name)
        return self._native.dump(data, name)

    def finish(self) -> Trace:
        """The Trace of all dumps. Raises TraceError where not one could be read."""
        if not self._dumps:
            name, reason = self._broken[0]
            more = f" ({len(self._broken) - 1:,} other dumps are no better)" if len(self._broken) > 1 else ""
            raise TraceError(f"{name}: the flight-recorder dump {reason}{more}", path=name)
        assigned = assign_ranks(self._dumps)
        pairs = [(r, d) for r, d in zip(assigned.ranks, self._dumps, strict=True) if r is not None]
        pairs.sort(key=lambda pair: pair[0])
        if not pairs:
            raise TraceError(" ".join(assigned.notes), path=self._dumps[0].source)
        trace = _joined(pairs)
        notes = [*assigned.notes, *(f"{name} was not read: it {why}." for name, why in self._broken)]
        notes += _notes(trace, pairs)
        return replace(trace, coverage=replace(trace.coverage, notes=tuple(notes)))


def _decode(data: bytes) -> object:
    if _PICKLE.match(data):
        return loads(data)
    return json.loads(data.decode("utf-8-sig", "replace"), parse_int=_integer, parse_constant=_nothing)


def _integer(text: str) -> int | None:
    return int(text) if len(text) < 20 else None  # a longer one is no time and costs quadratic time


def _nothing(_: str) -> None:
    return None


def _joined(pairs: Sequence[tuple[int, Dump]]) -> Trace:
    table = Groups(pairs)
    started = any(dump.has_start for _, dump in pairs)
    events, uses = joined_events(pairs, table, started=started)
    observables = _SEEN | {Observable.START} if started else _SEEN
    ranks = [rank for rank, _ in pairs]
    missing = tuple(sorted(set(table.known_ranks()) - set(ranks)))
    times = [dump.modified for _, dump in pairs]
    timeouts = [dump.timeout for _, dump in pairs if dump.timeout is not None]
    return Trace(
        events=events,
        communicators=tuple(table.communicators),
        coverage=Coverage(
            observables=observables,
            ranks_missing=missing,
            ranks_silent=tuple(rank for rank, dump in pairs if not len(dump)),
            lines=sum(len(dump) for _, dump in pairs),
            bad_lines=sum(dump.bad for _, dump in pairs),
        ),
        inputs=(InputInfo(_folder(pairs), "flight_recorder", observables, len(pairs)),),
        positions=_positions(pairs, table, events, uses),
        call_notes=tuple(note for rank, dump in pairs for note in _call_notes(rank, dump, table)),
        dumped=Dumped(
            max((time for time in times if time is not None), default=None) if None not in times else None,
            min(timeouts, default=None),
        ),
    )


def _folder(pairs: Sequence[tuple[int, Dump]]) -> str:
    if len(pairs) == 1:
        return pairs[0][1].source
    folders = {dump.source.rpartition("/")[0] for _, dump in pairs}
    return folders.pop() or "." if len(folders) == 1 else pairs[0][1].source


def _positions(
    pairs: Sequence[tuple[int, Dump]], table: Groups, events: Events, uses: Uses
) -> Positions | None:
    """What the counters of groups add. They count messages and collectives alike, so those of a group that
    carries messages are left out. Counters at nothing in a dump without a call say no more than the empty
    dump: a process that was started again has such."""
    p2p = (events.op == Op.SEND) | (events.op == Op.RECV)
    carries = set(uses.comm[np.unique(uses.of[p2p])].tolist())
    reached = _reached(events, uses, ~p2p)
    spoke = set(events.ranks().tolist())
    rows: list[tuple[int, int, int, int, int]] = []
    for rank, dump in pairs:
        names = _names_of_ids(dump)
        for key, (enqueued, started, completed) in dump.status.items():
            name = names.get(key)
            if name is None or (enqueued < 0 and rank not in spoke):
                continue
            number = table.of(rank, dump, name)
            last, opened = reached.get((rank, number), (None, None))
            if number in carries or completed > enqueued or (last is not None and last != enqueued):
                continue
            # A dump lists what is open, so counters that lag behind it are corrected by it.
            completed = enqueued if opened is None else min(completed, opened - 1)
            rows.append((rank, number, enqueued, max(started, completed), completed))
    rows += _not_called(
        {rank for rank, _ in pairs}, table, reached, {(rank, comm) for rank, comm, *_ in rows}
    )
    return Positions.of(rows) if rows else None


def _reached(
    events: Events, uses: Uses, mask: NDArray[np.bool_]
) -> dict[tuple[int, int], tuple[int, int | None]]:
    """(rank, communicator) → last number enqueued and the oldest open one, of the rows of a mask."""
    if events.end is None:
        return {}
    calls = np.bincount(uses.of[mask], minlength=len(uses.comm))
    last = np.full(len(calls), NO_SEQ, np.int64)
    np.maximum.at(last, uses.of[mask], events.seq[mask])
    still = np.flatnonzero(mask & (events.end == UNSEEN))
    never = int(np.iinfo(np.int64).max)
    oldest = np.full(len(calls), never)
    np.minimum.at(oldest, uses.of[still], events.seq[still])
    opened = (None if seq == never else seq for seq in oldest.tolist())
    pairs = zip(uses.rank.tolist(), uses.comm.tolist(), strict=True)
    found = zip(pairs, last.tolist(), opened, calls.tolist(), strict=True)
    return {pair: (number, first) for pair, number, first, count in found if count}


def _not_called(
    recorded: set[int],
    table: Groups,
    reached: Mapping[tuple[int, int], tuple[int, int | None]],
    counted: set[tuple[int, int]],
) -> list[tuple[int, int, int, int, int]]:
    """Positions of members without a call on a group where others have an open one.

    A dump lists every call that is open, so what it does not list was not made: hosts do not run ahead by as
    many calls as a buffer holds.
    """
    oldest: dict[int, int] = {}
    for (_, comm), (_, opened) in reached.items():
        if opened is not None and opened != NO_SEQ:
            oldest[comm] = min(oldest.get(comm, opened), opened)
    return [
        (rank, comm, before - 1, before - 1, before - 1)
        for comm, before in sorted(oldest.items())
        for rank in table.communicators[comm].members or ()
        if rank in recorded and (rank, comm) not in reached and (rank, comm) not in counted
    ]


def _names_of_ids(dump: Dump) -> dict[str, str]:
    """The group name of each local id: as entries say, the others in the order in which groups were made."""
    known = dump.ids
    ids, names = sorted(dump.status, key=_natural), sorted(dump.config, key=_natural)
    if len(ids) != len(names):
        return dict(known)
    guess = dict(zip(ids, names, strict=True))
    return guess if all(guess.get(key, name) == name for key, name in known.items()) else dict(known)


def _natural(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isdigit() and len(text) < 19 else (1, 0, text)


def _call_notes(rank: int, dump: Dump, table: Groups) -> list[CallNote]:
    notes = []
    for note in dump.notes:
        name = dump.names[int(dump.group[note.row])]
        op, comm = Op(int(dump.op[note.row])), table.of(rank, dump, name)
        notes.append(CallNote(rank, comm, op, int(dump.seq[note.row]), note.shape, note.frame))
    return notes


def _notes(trace: Trace, pairs: Sequence[tuple[int, Dump]]) -> list[str]:
    """Sentences about what is there and what is not."""
    notes = []
    silent, missing = trace.coverage.ranks_silent, trace.coverage.ranks_missing
    if silent:
        of = "dump" if len(silent) == 1 else "dumps"
        notes.append(f"The {of} of {say_ranks(silent)} hold{'s' if len(silent) == 1 else ''} no call.")
    if missing:
        of = "is no dump" if len(missing) == 1 else "are no dumps"
        notes.append(f"There {of} of {say_ranks(missing)}, which the groups of the others name.")
    rolled = sum(dump.lost for _, dump in pairs)
    if rolled:
        notes.append(f"{rolled} of {len(pairs)} dumps do not reach back to the start of the job.")
    versions = Counter(dump.version for _, dump in pairs if dump.version)
    if len(versions) > 1:
        said = ", ".join(f"{count} of {version}" for version, count in sorted(versions.items()))
        notes.append(f"The dumps are of different versions: {said}.")
    unknown = int((trace.events.op == Op.UNKNOWN).sum())
    if unknown:
        notes.append(f"{unknown:,} calls have an operation that is not known here.")
    if bool((trace.events.enqueue == 0).any()) or bool((trace.events.enqueue == UNSEEN).any()):
        notes.append("Some entries have no time.")
    if trace.events.comm is not None and bool((trace.events.comm == NO_COMM).any()):
        notes.append("Some entries name no group.")
    return notes
