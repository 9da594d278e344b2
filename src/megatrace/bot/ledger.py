"""What became of every part: faults, moves, and what a person said about them, by serial number.

An episode is a fault from the look that first showed it to the last look that did; the same fault after a
look without it is another episode. A part keeps its episodes when it is moved to another slot or machine,
and a new part in the same slot begins with none. Whoever repaired something clears its record with a reason:
nothing is deleted, but only what came later counts.

A lemon is a part or a machine with several episodes on different days: single faults are mended one by one
and look harmless each time. SQLite of the standard library, so that an agent can keep its own; several
processes may write (WAL, each look is one transaction).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from megatrace.bot.components import components, owner
from megatrace.bot.inspecting import state_file
from megatrace.errors import TraceError, UsageError
from megatrace.model.check import Inspection, Outcome
from megatrace.model.finding import Severity
from megatrace.model.parts import CLEARED, FAULT, MOVED, Component, Event, Lemon, Record
from megatrace.model.system import System
from megatrace.units import NS_PER_DAY

FILE = "parts.sqlite"
"""Its name, beside the counters."""
WINDOW_DAYS = 30
"""How far back a lemon is looked for: the ladder, too, counts returns of a fault within 30 days."""
LEAST_EPISODES = 3
LEAST_DAYS = 2
"""Three episodes on two days: a loose cable that flaps all morning is one bad day, not a lemon."""
KEEP_DAYS = 1_095
"""Three years: as long as a machine is in warranty."""
BUSY_S = 5.0
DRIVER = "GPU-03"
"""The check whether the GPU driver answers."""
_VERSION = 1
_TABLES = """
CREATE TABLE part (
  id INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL UNIQUE, uuid TEXT NOT NULL,
  model TEXT NOT NULL, node TEXT NOT NULL, slot TEXT NOT NULL,
  first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL);
CREATE TABLE event (
  id INTEGER PRIMARY KEY, part INTEGER REFERENCES part(id), node TEXT NOT NULL, slot TEXT NOT NULL,
  what TEXT NOT NULL, began INTEGER NOT NULL, seen INTEGER NOT NULL, ended INTEGER,
  fingerprint TEXT NOT NULL, source TEXT NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX event_open ON event (node, fingerprint) WHERE ended IS NULL;
CREATE INDEX event_part ON event (part, began);
CREATE INDEX event_node ON event (node, began);
"""


class Ledger:
    """The file with the records. Raises TraceError where it cannot be opened or is of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._migrate()
        except (sqlite3.Error, OSError) as error:
            raise TraceError(
                f"{path}: the record of parts cannot be opened ({error})", path=str(path)
            ) from None

    def close(self) -> None:
        """Lets the file go."""
        self._db.close()

    def _migrate(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
            if version == 0:
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={_VERSION}")
            elif version != _VERSION:
                raise TraceError(
                    f"{self.path}: a record of version {version}; this MegaTrace knows {_VERSION}",
                    path=str(self.path),
                )
        finally:
            self._db.execute("COMMIT")

    # ---- writing

    def note(self, inspection: Inspection, parts: Sequence[Component]) -> tuple[str, ...]:
        """Takes one look at a machine; returns what moved, in sentences.

        Faults that the same checks no longer show have ended; a check that could not look ends nothing.
        """
        node, now = inspection.node, inspection.time
        with closing(self._db.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                ids, moved = self._parts(cursor, node, now, parts)
                self._faults(cursor, inspection, parts, ids)
                cursor.execute(
                    "DELETE FROM event WHERE seen < ? AND ended IS NOT NULL", (now - KEEP_DAYS * NS_PER_DAY,)
                )
                cursor.execute("COMMIT")
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
        return moved

    def _parts(
        self, cursor: sqlite3.Cursor, node: str, now: int, parts: Iterable[Component]
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        ids: dict[str, int] = {}
        moved = []
        for part in parts:
            known = cursor.execute("SELECT id, node, slot FROM part WHERE key = ?", (part.key,)).fetchone()
            if known is None:
                cursor.execute(
                    "INSERT INTO part (kind, key, uuid, model, node, slot, first_seen, last_seen) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (part.kind, part.key, part.uuid, part.model, node, part.slot, now, now),
                )
                ids[part.key] = int(cursor.lastrowid or 0)
                continue
            number, before = int(known[0]), (str(known[1]), str(known[2]))
            ids[part.key] = number
            cursor.execute(
                "UPDATE part SET node = ?, slot = ?, uuid = ?, last_seen = ? WHERE id = ?",
                (node, part.slot, part.uuid, now, number),
            )
            if before != (node, part.slot):
                text = f"{part.kind} {part.key} moved from {_place(*before)} to {_place(node, part.slot)}"
                moved.append(text)
                row = (number, node, part.slot, MOVED, now, now, now, "", "", int(Severity.INFO), text)
                cursor.execute(_INSERT, row)
        return ids, tuple(moved)

    def _faults(
        self, cursor: sqlite3.Cursor, inspection: Inspection, parts: Sequence[Component], ids: dict[str, int]
    ) -> None:
        node, now = inspection.node, inspection.time
        here = set()
        for result, finding, _ in inspection.troubles:
            if result.observed or finding.severity > Severity.P2:
                continue
            device = finding.culprits.devices[0].device if finding.culprits.devices else ""
            device = device or next((link.src.device for link in finding.culprits.links), None) or ""
            part = owner(parts, device) if device else None
            number = ids.get(part.key) if part is not None else self._last_known(cursor, node, device)
            here.add(finding.fingerprint)
            found = cursor.execute(
                "SELECT id FROM event WHERE node = ? AND fingerprint = ? AND ended IS NULL AND part IS ?",
                (node, finding.fingerprint, number),
            ).fetchone()
            if found is not None:
                cursor.execute("UPDATE event SET seen = ? WHERE id = ?", (now, found[0]))
                continue
            row = (number, node, device, FAULT, now, now, None, finding.fingerprint, result.check)
            cursor.execute(_INSERT, (*row, int(finding.severity), finding.summary))
        looked = {item.check for item in inspection.of(Outcome.OK, Outcome.WARN, Outcome.FAIL)}
        still = cursor.execute(
            "SELECT id, fingerprint, source, seen FROM event WHERE node = ? AND what = ? AND ended IS NULL",
            (node, FAULT),
        ).fetchall()
        for number, fingerprint, source, seen in still:
            if source in looked and (fingerprint not in here or seen < now):
                cursor.execute("UPDATE event SET ended = ? WHERE id = ?", (now, number))

    def _last_known(self, cursor: sqlite3.Cursor, node: str, device: str) -> int | None:
        """Of a device that gives no number now (it fell off the bus): the part that sat there last."""
        if not device:
            return None
        query = "SELECT id FROM part WHERE node = ? AND slot = ? ORDER BY last_seen DESC LIMIT 1"
        found = cursor.execute(query, (node, device.partition("/")[0] or device)).fetchone()
        return None if found is None else int(found[0])

    def clear(self, name: str, reason: str, who: str, now: int) -> None:
        """What happened before counts no longer. Raises UsageError without a reason, or for an unknown
        name."""
        if not reason.strip():
            raise UsageError(
                "--clear needs --reason: what was repaired or replaced, for whoever reads this next"
            )
        part = self._part(name)
        if part is None and not self._node_known(name):
            raise UsageError(self._unknown(name))
        number, node, slot = (part[0], part[4], part[5]) if part is not None else (None, name, "")
        row = (number, node, slot, CLEARED, now, now, now, "", who, int(Severity.INFO), reason.strip())
        self._db.execute(_INSERT, row)

    # ---- reading

    def history(self, name: str) -> Record:
        """The record of a serial number, a UUID or a machine. Raises UsageError for an unknown name."""
        part = self._part(name)
        if part is not None:
            rows = self._db.execute(
                f"{_SELECT} WHERE part = ? ORDER BY began DESC, id DESC", (part[0],)
            ).fetchall()
            events = tuple(_event(row) for row in rows)
            return Record(part[1], part[2], part[3], part[4], part[5], part[6], part[7], events)
        if not self._node_known(name):
            raise UsageError(self._unknown(name))
        rows = self._db.execute(f"{_SELECT} WHERE node = ? ORDER BY began DESC, id DESC", (name,)).fetchall()
        events = tuple(_event(row) for row in rows)
        first, last = self._db.execute(
            "SELECT min(first_seen), max(last_seen) FROM part WHERE node = ?", (name,)
        ).fetchone()
        times = [event.began for event in events] or [0]
        return Record("node", name, "", name, "", first or min(times), last or max(times), events)

    def lemons(self, now: int, days: int = WINDOW_DAYS) -> tuple[Lemon, ...]:
        """Parts that break again and again, and machines in which different parts do; worst first."""
        rows = self._db.execute(_EPISODES, (FAULT, now - days * NS_PER_DAY)).fetchall()
        groups: dict[tuple[str, str], list[_Episode]] = {}
        for row in rows:
            item = _Episode(*row)
            groups.setdefault(("node", item.node), []).append(item)
            if item.part is not None:
                groups.setdefault((str(item.kind), str(item.key)), []).append(item)
        found = []
        for (kind, name), episodes in groups.items():
            counted = [item for item in episodes if item.began > self._cleared(kind, name)]
            apart = {item.began // NS_PER_DAY for item in counted}
            if len(counted) < LEAST_EPISODES or len(apart) < LEAST_DAYS:
                continue
            if kind == "node" and len({item.part for item in counted}) == 1 and counted[0].part is not None:
                continue  # all of one part, which has its own line
            last = counted[-1]
            place = (name, "") if kind == "node" else (str(last.part_node), str(last.part_slot))
            worst = Severity(min(item.severity for item in counted))
            lemon = Lemon(kind, name, *place, len(counted), len(apart), last.began, worst, last.text)
            found.append(lemon)
        return tuple(sorted(found, key=lambda item: (-item.episodes, item.worst, item.name)))

    def names(self) -> tuple[str, ...]:
        """Every part and machine there is a record of."""
        rows = self._db.execute(
            "SELECT key FROM part UNION SELECT node FROM part UNION SELECT node FROM event"
        )
        return tuple(sorted(str(row[0]) for row in rows.fetchall()))

    def _cleared(self, kind: str, name: str) -> int:
        if kind == "node":
            query = "SELECT max(began) FROM event WHERE what = ? AND part IS NULL AND node = ?"
        else:
            query = (
                "SELECT max(e.began) FROM event e JOIN part p ON p.id = e.part WHERE e.what = ? AND p.key = ?"
            )
        return int(self._db.execute(query, (CLEARED, name)).fetchone()[0] or 0)

    def _part(self, name: str) -> tuple[int, str, str, str, str, str, int, int] | None:
        query = (
            "SELECT id, kind, key, model, node, slot, first_seen, last_seen "
            "FROM part WHERE key = ? OR uuid = ?"
        )
        found: tuple[int, str, str, str, str, str, int, int] | None
        found = self._db.execute(query, (name, name)).fetchone()
        return found

    def _node_known(self, name: str) -> bool:
        query = "SELECT 1 FROM part WHERE node = ? UNION SELECT 1 FROM event WHERE node = ? LIMIT 1"
        return self._db.execute(query, (name, name)).fetchone() is not None

    def _unknown(self, name: str) -> str:
        names = self.names()
        said = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return f"{self.path}: no machine, serial number or UUID {name!r}; there is {said or 'no record yet'}"


def default_ledger() -> Path | None:
    """Beside the counters; None where nothing can be kept."""
    state = state_file()
    return None if state is None else state.with_name(FILE)


def remembered(inspection: Inspection, system: System, path: Path | None) -> Inspection:
    """The same inspection, taken down in the record of parts; what moved, or why nothing was taken down, is
    among its notes."""
    if path is None:
        return inspection
    try:
        ledger = Ledger(path)
        try:
            hung = any(result.check == DRIVER for result in inspection.of(Outcome.FAIL))
            moved = ledger.note(inspection, components(system, ask_driver=not hung))
        finally:
            ledger.close()
    except (TraceError, sqlite3.Error) as error:
        return replace(inspection, notes=(*inspection.notes, f"nothing was recorded by part: {error}"))
    return replace(inspection, notes=(*inspection.notes, *moved))


class _Episode(NamedTuple):
    """A fault with the part that has it, as ``_EPISODES`` selects them."""

    part: int | None
    node: str
    began: int
    severity: int
    text: str
    kind: str | None
    key: str | None
    part_node: str | None
    part_slot: str | None


_EPISODES = (
    "SELECT e.part, e.node, e.began, e.severity, e.text, p.kind, p.key, p.node, p.slot "
    "FROM event e LEFT JOIN part p ON p.id = e.part WHERE e.what = ? AND e.began >= ? ORDER BY e.began"
)
_INSERT = (
    "INSERT INTO event (part, node, slot, what, began, seen, ended, fingerprint, source, severity, text) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = "SELECT what, node, slot, began, seen, ended, source, severity, text FROM event"


def _event(row: Sequence[object]) -> Event:
    what, node, slot, began, seen, ended, source, severity, text = row
    return Event(
        str(what),
        str(node),
        str(slot),
        int(str(began)),
        int(str(seen)),
        None if ended is None else int(str(ended)),
        str(source),
        Severity(int(str(severity))),
        str(text),
    )


def _place(node: str, slot: str) -> str:
    return f"{node} {slot}".strip()
