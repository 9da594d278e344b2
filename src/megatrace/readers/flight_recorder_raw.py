"""Entries of a dump as numbers, before anything is concluded from them.

Two readers fill the same table: this one from Python values (a pickle read by the Python machine, or JSON),
and the compiled one (``flight_recorder_native``). Everything after that is shared, so they cannot disagree on
more than these columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import UNSEEN

COLUMNS = (
    "record_id", "name", "group", "desc", "pg_id", "pg_id_text", "collective_seq", "p2p_seq", "seq", "is_p2p",
    "count_in", "count_out", "dtype", "created", "started", "ended", "state", "retired", "timeout_ms",
)  # fmt: skip
"""The columns in order. The twin of the enumeration in ``native/flight_recorder.h``."""
TEXTS = ("name", "group", "desc", "pg_id_text", "dtype", "state")
"""Those that are indices of texts."""
ABSENT = UNSEEN
"""A value that is not there, or of another type."""
LIMIT = 1 << 62
"""Numbers beyond this are damage: times end in the year 2116."""
AT = {name: i for i, name in enumerate(COLUMNS)}


@dataclass(slots=True)
class Raw:
    """int64 [columns, entries], and the texts that it refers to. ``bad``: entries that are none."""

    table: NDArray[np.int64]
    texts: list[str]
    bad: int = 0

    def column(self, name: str) -> NDArray[np.int64]:
        """One column."""
        return np.asarray(self.table[AT[name]])


class Interned:
    """Texts by number, in the order in which they come."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, value: object) -> int:
        """The number of a text, ABSENT for anything else."""
        if not isinstance(value, str):
            return ABSENT
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.texts)
            self.texts.append(value)
        return number


def raw_of(entries: list[Any]) -> tuple[Raw, list[dict[str, Any]]]:
    """The table of Python values, and the entries that it is of."""
    text = Interned()
    kept = [entry for entry in entries if isinstance(entry, dict)]
    rows = [_row(entry, text) for entry in kept]
    table = np.asarray(rows, np.int64).reshape(-1, len(COLUMNS))
    return Raw(np.ascontiguousarray(table.T), text.texts, len(entries) - len(kept)), kept


def _row(entry: dict[str, Any], text: Interned) -> tuple[int, ...]:
    get = entry.get
    group, pg_id = get("process_group"), get("pg_id")
    listed = isinstance(group, tuple | list)
    dtype = _first(get("input_dtypes"), 0)
    return (
        number(get("record_id")),
        text(get("profiling_name")),
        text(_first(group, 0) if listed else group),
        text(_first(group, 1)),
        number(pg_id) if type(pg_id) is int else ABSENT,
        text(pg_id),
        number(get("collective_seq_id")),
        number(get("p2p_seq_id")),
        number(get("seq_id")),
        _flag(get("is_p2p")),
        elements(get("input_sizes")),
        elements(get("output_sizes")),
        text(dtype if isinstance(dtype, str) else _first(get("output_dtypes"), 0)),
        number(get("time_created_ns")),
        number(get("time_discovered_started_ns")),
        number(get("time_discovered_completed_ns")),
        text(get("state")),
        _flag(get("retired")),
        number(get("timeout_ms")),
    )


def number(value: object) -> int:
    """A number of the recorder: an integer from −1 on, or one written as text; ABSENT for anything else."""
    if type(value) is int:
        return value if -1 <= value < LIMIT else ABSENT
    if isinstance(value, str) and 0 < len(value) <= 18 and value.isascii() and value.isdigit():
        return int(value)
    return ABSENT


def elements(sizes: object) -> int:
    """Elements of all tensors together, ABSENT where that cannot be told."""
    if not isinstance(sizes, list | tuple):
        return ABSENT
    total = 0
    for shape in sizes:
        product = 1
        for side in shape if isinstance(shape, list | tuple) else ():
            if type(side) is not int or side < 0:
                return ABSENT
            product *= side
            if product > LIMIT:
                return ABSENT
        total += product
        if total > LIMIT:
            return ABSENT
    return total


def _first(value: object, index: int) -> object:
    return value[index] if isinstance(value, list | tuple) and len(value) > index else None


def _flag(value: object) -> int:
    return int(value) if isinstance(value, bool) else ABSENT
