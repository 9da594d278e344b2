"""The text call log: one line per communication call, written when the host enqueues it.

It can see who called what when (host time), with how many elements, on which stream and, in most
dialects, with which counter and communicator. It cannot see completion, peers, bytes or data types. The
dialects and the grammar are in ``calllog_line``; this module drives a parser over the blocks of each
file, and makes a Trace of the rows of all files.

A log is evidence of what went wrong, so it is rarely whole: nothing in a file can fail the reading of
the others, and everything that was left out is counted and said.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import TraceError
from megatrace.model.events import NO_COMM, EventFlag, Events, Op
from megatrace.model.trace import Communicator, Coverage, InputInfo, Observable, Trace
from megatrace.readers import registry
from megatrace.readers.calllog_columns import Parsed, Parser, TextBuffer
from megatrace.readers.calllog_hash import NO_HASH, Interner, resolve
from megatrace.readers.calllog_line import Defect, Flag, defect_of
from megatrace.readers.calllog_native import native_parser
from megatrace.readers.calllog_notes import (
    FileReport,
    file_notes,
    hash_notes,
    label_files,
    missing_ranks,
    op_notes,
    table_notes,
)
from megatrace.readers.calllog_numpy import NumpyParser
from megatrace.readers.calllog_reduced import KEPT, MAX_BYTES, ReducedLog, is_packed, unpacked
from megatrace.readers.calllog_table import Table, rank_slices, tidy
from megatrace.readers.source import ReadOptions, Source

_LAYOUT = int(Flag.SAVE_COUNT | Flag.SEQ | Flag.BRACKETED)
_HASHED = int(Flag.HASH | Flag.HASH_CUT)
_NEWLINE = ord("\n")
MAX_CLASSIFIED = 20_000
"""Refused lines of a file that are looked at one by one; a file with more is hardly a log, and the rest are
counted as not calls: looking at them would take ten times as long as reading them."""
_CALL = re.compile(rb"^\[[^\n]{0,300}\[Rank [0-9]{1,10}\] ?(?:Fun|\[)", re.MULTILINE)
_BEGINNING = re.compile(
    rb"\[(?:save_count [0-9]+\] \[)?[0-9]{9,10}\.[0-9]*|\[save_count [0-9]*|\[s?a?v?e?_?c?o?u?n?t?$"
)


def best_parser() -> Parser:
    """The compiled parser where it is there, else the numpy one; their rows are the same."""
    return native_parser() or NumpyParser()


@registry.register("calllog", summary="text log of communication calls, one line per call, four dialects")
class CallLogReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions, parser: Parser | None = None) -> None:
        del options  # all of them concern how bytes are fetched
        self._parser = parser or best_parser()
        self._buffer = TextBuffer(self._parser.block)
        self._table = Table(KEPT)
        self._interner = Interner(compiled=self._parser.name == "native")
        self._files: list[FileReport] = []
        self._reduced: list[ReducedLog] = []

    @property
    def rows(self) -> int:
        """Calls read so far, over all files."""
        return self._table.rows

    def refuses(self, head: bytes) -> str | None:
        """A head is taken if a line of it has a rank in brackets, or if it is the beginning of a first
        line."""
        if not head:
            return "the file is empty"
        if is_packed(head) or _CALL.search(head) or _BEGINNING.match(head):
            return None
        return f'no line of its first {len(head):,} bytes looks like "[1755590104.253968145] [Rank 0] Fun …"'

    def add(self, source: Source) -> None:
        """Reads the file to its end. Never raises for what is in it, but CorruptTrace for a damaged reduced
        one."""
        if is_packed(source.head):
            self._reduced += unpacked(source.read_whole(MAX_BYTES), source.name)
            return
        report = FileReport(source.name, self._table.rows)
        self._files.append(report)
        self._table.begin_file()
        have, too_long = 0, False
        while got := self._fill(source, have):
            report.size += got
            have += got
            start = 0
            if too_long:
                start = self._buffer.text[:have].tobytes().find(b"\n") + 1
                if not start:
                    have = 0
                    continue
                self._refuse_one(report, Defect.TOO_LONG)
                too_long = False
            have = self._shift(self._parse(report, start, have), have)
            if have == len(self._buffer):
                have, too_long = 0, True
        if too_long:
            self._refuse_one(report, Defect.TOO_LONG)
        elif have:
            self._tail(report, self._buffer.text[:have].tobytes())
        report.rows = self._table.rows - report.first_row
        report.damage = source.damage

    def _fill(self, source: Source, have: int) -> int:
        """Reads until the buffer is full or the file ends: parsing many lines at once costs less per line."""
        view, begin = self._buffer.view, have
        while have < len(view) and (got := source.readinto(view[have:])):
            have += got
        return have - begin

    def _parse(self, report: FileReport, at: int, have: int) -> int:
        """Parses the complete lines of the buffer from ``at`` on; where they end."""
        parser = self._parser
        while True:
            parsed = parser.parse(self._buffer, at, have)
            if parsed.lines:
                self._take(report, parsed, at)
            at += parsed.consumed
            if parsed.lines < parser.out.row_capacity and parsed.rejects < parser.out.reject_capacity:
                return at

    def _shift(self, used: int, have: int) -> int:
        """Moves the incomplete last line to the front."""
        rest = have - used
        if used and rest:
            text = self._buffer.text
            text[:rest] = text[used:have].copy()
        return rest

    def _take(self, report: FileReport, parsed: Parsed, at: int) -> None:
        out, rows = self._parser.out, parsed.rows
        if parsed.rejects:
            self._refuse(report, out.reject_line[: parsed.rejects], out.reject_offset[: parsed.rejects] + at)
        report.lines += parsed.lines
        if not rows:
            return
        flags: NDArray[Any] = out.columns["flags"][:rows]
        some, every = parsed.flags_or, parsed.flags_and
        if some == every:
            report.layouts.add(_layout(some))
        else:
            report.layouts.update(_layout(value) for value in np.flatnonzero(np.bincount(flags)).tolist())
        hashes: NDArray[Any] = out.columns["group_hash"][:rows]
        group = self._interner.codes(hashes, flags, some, every)
        self._table.append({**out.columns, "group": group}, rows)

    def _refuse(self, report: FileReport, lines: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        begin = int(offsets[0])
        text = self._buffer.text[begin:].tobytes()
        for line, offset in zip(lines.tolist(), (offsets - begin).tolist(), strict=True):
            if text[offset] == _NEWLINE:
                defect = Defect.BLANK
            elif report.refused_kept > MAX_CLASSIFIED:
                defect = Defect.FOREIGN
            else:
                defect = defect_of(text[offset : text.index(b"\n", offset)])
            report.refuse(defect, report.lines + line)
        report.keep_refused(lines + report.lines)

    def _refuse_one(self, report: FileReport, defect: Defect) -> None:
        report.refuse(defect, report.lines)
        report.keep_refused(np.array([report.lines], np.int64))
        report.lines += 1

    def _tail(self, report: FileReport, tail: bytes) -> None:
        """A last line without a newline was still being written: even where it reads well its end may be
        missing."""
        defect = defect_of(tail)
        if defect is Defect.BLANK:
            return
        if defect in (Defect.BROKEN, Defect.FOREIGN):
            defect = Defect.TORN
            report.torn_rank = self._rank_of_tail(report, tail)
        self._refuse_one(report, defect)

    def _rank_of_tail(self, report: FileReport, tail: bytes) -> int | None:
        found = re.search(rb"\[Rank ([0-9]{1,9})\]", tail)
        if found is not None:
            return int(found[1])
        return self._table.last_rank() if self._table.rows > report.first_row else None

    def reduced(self, place: int) -> ReducedLog:
        """The one file that was added, for ``take`` of another reader. Nothing is left here."""
        (report,) = self._files
        hashes, partials = tuple(self._interner.hashes), tuple(self._interner.partials)
        return ReducedLog(place, report, self._table.join(), hashes, partials)

    def take(self, log: ReducedLog) -> None:
        """As if its text had been added here and now."""
        first = self._table.rows
        self._files.append(replace(log.report, first_row=first))
        self._table.begin_file()
        group = self._interner.adopted(log.columns["group"], log.hashes, log.partials)
        self._table.append({**log.columns, "group": group}, log.report.rows)

    def finish(self) -> Trace:
        """All files as one Trace. Raises TraceError where they hold no whole call line."""
        reduced, self._reduced = sorted(self._reduced, key=lambda log: (log.place, log.report.name)), []
        for log in reduced:
            self.take(log)
        files = self._files
        label_files(files)
        if not self._table.rows:
            notes = " ".join(file_notes(files)) or "No file was given."
            raise TraceError(
                f"no whole call line in {_say_files(files)}. {notes}", path=files[0].name if files else ""
            )
        ranks_of_file = self._table.ranks_per_file()
        columns, tidied = tidy(self._table.join(), self._table.file_starts)
        slices = rank_slices(columns["rank"])
        resolved, unknown = resolve(
            self._interner, columns["group"], columns["stream"], [rows for _, rows in slices]
        )
        flags = columns.pop("flags")
        del columns["save_count"]
        observables = _observables(flags)
        group = columns.pop("group")
        communicators, number = _communicators(self._interner, group, slices)
        comm = number[group] if Observable.GROUP in observables else None
        events = Events(**columns, comm=comm, flags=_event_flags(flags))
        nameless = int(np.count_nonzero(columns["op"] == Op.UNKNOWN))
        coverage = Coverage(
            observables=observables,
            ranks_missing=missing_ranks(rank for rank, _ in slices),
            lines=sum(report.lines for report in files),
            bad_lines=sum(report.bad_lines for report in files),
            torn_tails=tuple(sorted({r.torn_rank for r in files if r.torn_rank is not None})),
            notes=(
                *table_notes(tidied, files),
                *file_notes(files),
                *hash_notes(resolved, unknown),
                *op_notes(nameless),
            ),
        )
        inputs = tuple(
            InputInfo(report.name, "calllog", observables, ranks)
            for report, ranks in zip(files, ranks_of_file, strict=True)
        )
        return Trace(events, communicators, coverage, inputs)


def _layout(flags: int) -> int:
    return flags & _LAYOUT | (_HASHED if flags & _HASHED else 0)


def _observables(flags: NDArray[np.uint8]) -> frozenset[Observable]:
    seen = {Observable.ENQUEUE, Observable.COUNT, Observable.STREAM}
    every = int(np.bitwise_or.reduce(flags))
    if every & Flag.SEQ:
        seen.add(Observable.SEQ)
    if every & _HASHED:
        seen.add(Observable.GROUP)
    return frozenset(seen)


def _event_flags(flags: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    cut = (flags & np.uint8(Flag.HASH_CUT)) != 0
    return cut * np.uint8(EventFlag.HASH_CUT) if cut.any() else None


def _communicators(
    interner: Interner, group: NDArray[np.int32], slices: list[tuple[int, slice]]
) -> tuple[tuple[Communicator, ...], NDArray[np.int32]]:
    """Those with calls, by first member and hash (whatever the order of files), and each code's number.

    Members are the ranks that were seen to call on it: with a rank's log missing there may be more.
    """
    members: dict[int, list[int]] = {}
    for rank, rows in slices:
        counts = np.bincount(group[rows] - NO_HASH)
        for code in np.flatnonzero(counts[1:]).tolist():
            members.setdefault(code, []).append(rank)
    number = np.full(len(interner.hashes) + 1, NO_COMM, np.int32)  # the last place serves NO_HASH (-1)
    order = sorted(members, key=lambda code: (members[code][0], interner.hashes[code]))
    number[order] = np.arange(len(order), dtype=np.int32)
    found = (Communicator(i, tuple(members[code]), interner.hashes[code]) for i, code in enumerate(order))
    return tuple(found), number


def _say_files(files: list[FileReport]) -> str:
    return files[0].label if len(files) == 1 else f"{len(files):,} files"
