"""Group hashes of the call log -> communicator numbers, also where the writer cut the hash.

A job has a handful of communicators per rank, so a row keeps a 32-bit code instead of its hash: ``code
>= 0`` is a communicator, ``NO_HASH`` a row without one, and lower codes are what is left of a cut hash
(`Interner.partials`).

A cut hash is not trusted by itself. It is taken for the one whole hash that was seen on the same rank
and stream (a stream serves few communicators) and begins with the digits that are left; failing that for
the one whole hash of the job that does, where enough digits are left; else the row stays without a
communicator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.readers.calllog_line import Flag

NO_HASH = -1
FIRST_PARTIAL = -2
ENOUGH_DIGITS = 10
"""Ten decimal digits tell 100,000 communicators apart with a chance of error below one in a thousand for
any of them (n / 10^9 for the leading digits of 64-bit hashes); the largest jobs have some 10,000."""
_RECENT = 24
"""Hashes tried one by one before sorting: more than a rank's communicators in any layout."""

Codes = NDArray[np.int32]
Hashes = NDArray[np.uint64]


class Interner:
    """Gives each distinct hash a number, in order of appearance."""

    def __init__(self) -> None:
        self.hashes: list[int] = []
        self.partials: list[int] = []
        self._code: dict[tuple[bool, int], int] = {}
        self._recent: list[tuple[int, int]] = []

    def codes(self, hashes: Hashes, flags: NDArray[np.uint8]) -> Codes:
        """One code per row. A new array."""
        both = np.uint8(Flag.HASH | Flag.HASH_CUT)
        kinds = flags & both
        low, high = int(kinds.min()), int(kinds.max())
        if high == 0:
            return np.full(len(hashes), NO_HASH, np.int32)
        if low == high == Flag.HASH:
            return self._whole(hashes)
        codes = np.full(len(hashes), NO_HASH, np.int32)
        whole = kinds == np.uint8(Flag.HASH)
        codes[whole] = self._whole(hashes[whole])
        cut = kinds == np.uint8(Flag.HASH_CUT)
        values, places = np.unique(hashes[cut], return_inverse=True)
        codes[cut] = np.array([self._number(int(v), cut=True) for v in values], np.int32)[places]
        return codes

    def _whole(self, hashes: Hashes) -> Codes:
        codes = np.full(len(hashes), NO_HASH, np.int32)
        left = len(hashes)
        for value, code in self._recent:
            hit = hashes == np.uint64(value)
            found = int(np.count_nonzero(hit))
            if found:
                np.copyto(codes, np.int32(code), where=hit)
                left -= found
            if not left:
                return codes
        rest = np.flatnonzero(codes == NO_HASH)
        values, places, counts = np.unique(hashes[rest], return_inverse=True, return_counts=True)
        numbers = np.array([self._number(int(value), cut=False) for value in values], np.int32)
        codes[rest] = numbers[places]
        often = np.argsort(-counts, kind="stable")[:_RECENT]
        new = [(int(values[k]), int(numbers[k])) for k in often]
        self._recent = (new + self._recent)[:_RECENT]
        return codes

    def _number(self, value: int, *, cut: bool) -> int:
        code = self._code.get((cut, value))
        if code is None:
            store = self.partials if cut else self.hashes
            code = FIRST_PARTIAL - len(store) if cut else len(store)
            store.append(value)
            self._code[cut, value] = code
        return code

    def begins_with(self, code: int, partial: int) -> bool:
        """Whether the whole hash may be what the partial one was cut from."""
        value = self.partials[FIRST_PARTIAL - partial]
        if value == 0:
            return True  # nothing is left of it
        whole = self.hashes[code]
        return any(w.startswith(p) for w, p in zip(_forms(whole), _forms(value), strict=True))

    def _digits(self, partial: int) -> int:
        value = self.partials[FIRST_PARTIAL - partial]
        return min(len(form.lstrip("-")) for form in _forms(value)) if value else 0


def _forms(value: int) -> tuple[str, str, str]:
    """The ways in which writers print a hash: signed, unsigned, hexadecimal."""
    return str(value - 2**64 if value >= 2**63 else value), str(value), f"{value:x}"


def resolve(
    interner: Interner, codes: Codes, streams: NDArray[np.uint64], rank_rows: list[slice]
) -> tuple[int, int]:
    """Replaces the codes of cut hashes in place; (resolved, left unknown) in rows."""
    resolved = unknown = 0
    anywhere: dict[int, int] = {}
    for rows in rank_rows:
        mine, on = codes[rows], streams[rows]
        cut = np.flatnonzero(mine <= FIRST_PARTIAL)
        if not len(cut):
            continue
        whole = mine >= 0
        for stream in np.unique(on[cut]).tolist():
            here = on == np.uint64(stream)
            candidates = np.unique(mine[here & whole]).tolist()
            for partial in np.unique(mine[here & (mine <= FIRST_PARTIAL)]).tolist():
                code = _only([c for c in candidates if interner.begins_with(c, partial)])
                if code == NO_HASH and not candidates:
                    code = anywhere.setdefault(partial, _anywhere(interner, partial))
                hit = here & (mine == partial)
                mine[hit] = code
                count = int(np.count_nonzero(hit))
                resolved, unknown = (
                    (resolved + count, unknown) if code != NO_HASH else (resolved, unknown + count)
                )
    return resolved, unknown


def _only(candidates: list[int]) -> int:
    return candidates[0] if len(candidates) == 1 else NO_HASH


def _anywhere(interner: Interner, partial: int) -> int:
    if interner._digits(partial) < ENOUGH_DIGITS:
        return NO_HASH
    return _only([c for c in range(len(interner.hashes)) if interner.begins_with(c, partial)])
