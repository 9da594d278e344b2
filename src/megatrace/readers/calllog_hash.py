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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatrace import native
from megatrace.readers.calllog_line import Flag
from megatrace.readers.calllog_native import NativeCodes

NO_HASH = -1
FIRST_PARTIAL = -2
ENOUGH_DIGITS = 10
"""Ten decimal digits tell 100,000 communicators apart with a chance of error below one in a thousand for
any of them (n / 10^9 for the leading digits of 64-bit hashes); the largest jobs have some 10,000."""
_TABLE_BITS = 12
"""4,096 slots for the few communicators that the rows of one block name: collisions are rare and harmless."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: its multiples spread over the high bits."""
_SHIFT = np.uint64(64 - _TABLE_BITS)
_CUT_SHIFT = np.uint64(_TABLE_BITS - 1)
"""Takes ``Flag.HASH_CUT`` (bit 1) to the bit above the slots."""

Codes = NDArray[np.int32]
Hashes = NDArray[np.uint64]


class Interner:
    """Gives each distinct hash a number, in order of appearance.

    Rows find their code in a direct-mapped table, two array look-ups a row; what is not there (a new hash, or
    two that share a slot) goes through a dict and takes the slot.
    """

    def __init__(self, *, compiled: bool = True) -> None:
        self.hashes: list[int] = []
        self.partials: list[int] = []
        self._code: dict[tuple[bool, int], int] = {}
        self._fits: dict[tuple[int, int], bool] = {}
        self._keys: Hashes = np.zeros(2 << _TABLE_BITS, np.uint64)
        self._codes: Codes = np.full(2 << _TABLE_BITS, NO_HASH, np.int32)
        library = native.library() if compiled else None
        self._native = None if library is None else NativeCodes(library, self._keys, self._codes)

    def codes(self, hashes: Hashes, flags: NDArray[np.uint8], some: int, every: int) -> Codes:
        """One code per row, a new array. ``some`` and ``every`` are all flags or-ed and and-ed."""
        both = int(Flag.HASH | Flag.HASH_CUT)
        if not some & both:
            return np.full(len(hashes), NO_HASH, np.int32)
        if self._native is not None:
            codes: Codes = np.empty(len(hashes), np.int32)
            if self._native(hashes, flags, codes):
                rows = np.flatnonzero(codes == np.iinfo(np.int32).min)
                self._learn(hashes, flags, self._places(hashes, flags, some), codes, rows)
            return codes
        places = self._places(hashes, flags, some)
        codes = self._codes.take(places)
        known = self._keys.take(places) == hashes
        known &= codes != NO_HASH
        if not known.all():
            self._learn(hashes, flags, places, codes, np.flatnonzero(~known))
        if not (every & both):
            codes[(flags & np.uint8(both)) == 0] = NO_HASH
        return codes

    def _places(self, hashes: Hashes, flags: NDArray[np.uint8], some: int) -> NDArray[np.int64]:
        """The slot of each row."""
        slots = (hashes * _MIX) >> _SHIFT
        if some & Flag.HASH_CUT:  # cut ones have the second half of the table
            cut = flags & np.uint8(Flag.HASH_CUT)
            slots |= cut.astype(np.uint64) << _CUT_SHIFT
        places: NDArray[np.int64] = slots.view(np.int64)
        return places

    def _learn(
        self,
        hashes: Hashes,
        flags: NDArray[np.uint8],
        places: NDArray[np.int64],
        codes: Codes,
        rows: NDArray[np.int64],
    ) -> None:
        """Codes for the given rows, which the table does not have."""
        kinds = flags[rows] & np.uint8(Flag.HASH | Flag.HASH_CUT)
        for kind in (Flag.HASH, Flag.HASH_CUT):
            mine = rows[kinds == np.uint8(kind)]
            if not len(mine):
                continue
            values, first, back = np.unique(hashes[mine], return_index=True, return_inverse=True)
            numbers = np.zeros(len(values), np.int32)
            for at in np.argsort(first).tolist():
                numbers[at] = self._number(int(values[at]), cut=kind is Flag.HASH_CUT)
            codes[mine] = numbers[back]
            slots = places[mine[first]]
            self._keys[slots] = values
            self._codes[slots] = numbers

    def _number(self, value: int, *, cut: bool) -> int:
        code = self._code.get((cut, value))
        if code is None:
            store = self.partials if cut else self.hashes
            code = FIRST_PARTIAL - len(store) if cut else len(store)
            store.append(value)
            self._code[cut, value] = code
        return code

    def adopted(self, codes: Codes, hashes: Sequence[int], partials: Sequence[int]) -> Codes:
        """The codes of another interner, whose hashes are given, as codes of this one: a new array."""
        whole = [self._number(value, cut=False) for value in hashes]
        cut = [self._number(value, cut=True) for value in partials]
        # Counted from the end: -1 is NO_HASH, -2 the first partial one, as the codes themselves are.
        number = np.array([*whole, *reversed(cut), NO_HASH], np.int32)
        return number[codes]

    def begins_with(self, code: int, partial: int) -> bool:
        """Whether the whole hash may be what the partial one was cut from."""
        fits = self._fits.get((code, partial))
        if fits is None:
            value = self.partials[FIRST_PARTIAL - partial]
            forms = zip(_forms(self.hashes[code]), _forms(value), strict=True)
            # Of a value of 0 nothing is left, so it may be anything.
            fits = value == 0 or any(whole.startswith(part) for whole, part in forms)
            self._fits[code, partial] = fits
        return fits

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
        for stream in set(on[cut].tolist()):
            here = np.flatnonzero(on == np.uint64(stream))
            codes_here = mine[here]
            candidates = _distinct(codes_here[codes_here >= 0])
            for partial in _distinct(codes_here[codes_here <= FIRST_PARTIAL]):
                code = _only([c for c in candidates if interner.begins_with(c, partial)])
                if code == NO_HASH and not candidates:
                    if partial not in anywhere:
                        anywhere[partial] = _anywhere(interner, partial)
                    code = anywhere[partial]
                hit = here[codes_here == partial]
                mine[hit] = code
                if code == NO_HASH:
                    unknown += len(hit)
                else:
                    resolved += len(hit)
    return resolved, unknown


def _distinct(codes: Codes) -> list[int]:
    """The different values; mostly there is one, and comparing costs less than sorting."""
    if len(codes) and bool((codes == codes[0]).all()):
        return [int(codes[0])]
    return sorted(set(codes.tolist()))


def _only(candidates: list[int]) -> int:
    return candidates[0] if len(candidates) == 1 else NO_HASH


def _anywhere(interner: Interner, partial: int) -> int:
    if interner._digits(partial) < ENOUGH_DIGITS:
        return NO_HASH
    return _only([c for c in range(len(interner.hashes)) if interner.begins_with(c, partial)])
