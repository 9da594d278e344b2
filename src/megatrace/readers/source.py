"""A file on its way into a reader: opened once, unpacked as it is read, bounded.

Compression is told by the first bytes, never by the name. What is wrong with a stream (a cut archive, a
read error, a stream that expands without end) becomes ``damage`` in words and an early end: the lines
before it are still evidence.

Does not know any format.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, cast

HEAD = 1 << 16
"""Bytes of a file that readers see when they are asked whether it is theirs."""
EXPANSION_LIMIT = 200
"""Unpacked bytes per packed byte. Call logs shrink 11 to 13 fold (gzip, zstd); a bomb a thousand fold
(the most that gzip can) and more."""
EXPANSION_FREE = 64 << 20
"""Unpacked bytes up to which the ratio does not matter: this much can harm nobody."""

_DECODE_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, ValueError)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read. ``progress`` is called with (files done, files in all, path) now and then, from this
    thread."""

    max_file_bytes: int = 64 << 30
    """Unpacked bytes of one file after which the rest is left out: a day of 10,000 calls a second is 100
    GB."""
    progress: Callable[[int, int, str], None] | None = None


class Source:
    """One opened input. ``name`` is how messages call it."""

    def __init__(
        self,
        name: str,
        raw: BinaryIO,
        options: ReadOptions | None = None,
        *,
        packed_size: int = 0,
        modified: int | None = None,
    ) -> None:
        self.name = name
        self.modified = modified
        """ns since the epoch: when the file was last written, None where that is not known."""
        self.damage = ""
        """A sentence part that says why reading ended early, "" where it did not."""
        self.kind = "plain"
        self._raw = raw
        self._stream: BinaryIO = raw
        self._limit = (options or ReadOptions()).max_file_bytes
        self._packed_size = packed_size
        self._given = 0
        self._head_at = 0
        self.head = self._peek()

    def _peek(self) -> bytes:
        head = self._read_up_to(HEAD)
        opener = next((opener for magic, opener in _PACKED.items() if head.startswith(magic)), None)
        if opener is None or self.damage:
            return head
        self.kind = opener.__name__.strip("_")
        try:
            self._stream = opener(cast(BinaryIO, _Rewound(head, self._raw)))
        except ImportError as error:
            self.damage = f"{self.kind} needs the Python package {error.name}"
            return b""
        return self._read_up_to(HEAD)

    def _read_up_to(self, size: int) -> bytes:
        parts = []
        while size > 0 and (part := self._read(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, size: int) -> bytes:
        if self.damage:
            return b""
        try:
            return self._stream.read(size) or b""
        except MemoryError:
            self.damage = "needs more memory to unpack than there is"
        except _decode_errors() as error:
            self.damage = _reason(error, self.kind)
        return b""

    def readinto(self, view: memoryview) -> int:
        """Fills ``view`` from its start; 0 at the end (or where ``damage`` cut it short)."""
        if self._head_at < len(self.head):
            part = self.head[self._head_at : self._head_at + len(view)]
            self._head_at += len(part)
            size = len(part)
            view[:size] = part
        elif self.kind == "plain" and isinstance(self._stream, io.RawIOBase):
            size = self._read_raw(view)
        else:
            part = self._read(len(view))
            size = len(part)
            view[:size] = part
        self._given += size
        if self._given > self._limit:
            self.damage = self.damage or f"is larger than {self._limit:,} bytes"
            return 0
        if self._expands_without_end():
            self.damage = f"unpacks to more than {EXPANSION_LIMIT} times its size, as no log does"
            return 0
        return size

    def read_whole(self, limit: int) -> bytes:
        """Everything, for formats that are one value and not lines.

        Ends early with ``damage`` where more than ``limit`` bytes come: a sparse file and a bomb are never
        held in memory.
        """
        parts: list[bytes] = []
        total = 0
        if self.kind == "plain" and not self._head_at:
            # The rest of the file at once where its size is known, and one byte more to see its end.
            room = min(max(self._packed_size - len(self.head) + 1, HEAD), limit + 1, 1 << 24)
            part = self.head
            while part and total <= limit:
                total += len(part)
                parts.append(part)
                part = self._read(room)
            if total <= limit:
                return b"".join(parts)
            self.damage = self.damage or f"is larger than {limit:,} bytes"
            return b""
        view = memoryview(bytearray(min(1 << 20, limit + 1)))
        while size := self.readinto(view):
            total += size
            if total > limit:
                self.damage = self.damage or f"is larger than {limit:,} bytes"
                return b""
            parts.append(bytes(view[:size]))
        return b"".join(parts)

    def _read_raw(self, view: memoryview) -> int:
        try:
            return self._stream.readinto(view) or 0  # type: ignore[attr-defined]
        except OSError as error:
            self.damage = _reason(error, self.kind)
            return 0

    def _expands_without_end(self) -> bool:
        if self.kind == "plain" or self._given <= EXPANSION_FREE or not self._packed_size:
            return False
        return self._given > EXPANSION_LIMIT * self._packed_size

    def close(self) -> None:
        """Closes the file and what unpacks it."""
        for stream in (self._stream, self._raw):
            stream.close()


class _Rewound(io.RawIOBase):
    """A stream whose first bytes were read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, view: memoryview) -> int:  # type: ignore[override]
        if self._head:
            size = min(len(view), len(self._head))
            view[:size] = self._head[:size]
            self._head = self._head[size:]
            return size
        part = self._rest.read(len(view)) or b""
        view[: len(part)] = part
        return len(part)


def _gzip(raw: BinaryIO) -> BinaryIO:
    return cast(
        BinaryIO, gzip.GzipFile(fileobj=io.BufferedReader(cast(io.RawIOBase, raw), 1 << 17), mode="rb")
    )


def _xz(raw: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, lzma.LZMAFile(io.BufferedReader(cast(io.RawIOBase, raw), 1 << 17)))


def _bzip2(raw: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, bz2.BZ2File(io.BufferedReader(cast(io.RawIOBase, raw), 1 << 17)))


def _zstd(raw: BinaryIO) -> BinaryIO:
    import zstandard

    # A window of 128 MiB is what `zstd --long` writes; more is refused rather than allocated.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return cast(BinaryIO, decompressor.stream_reader(raw, read_across_frames=True))


_PACKED: dict[bytes, Callable[[BinaryIO], BinaryIO]] = {
    b"\x1f\x8b": _gzip,
    b"\xfd7zXZ\x00": _xz,
    b"BZh": _bzip2,
    b"\x28\xb5\x2f\xfd": _zstd,
}


def _decode_errors() -> tuple[type[BaseException], ...]:
    try:
        import zstandard
    except ImportError:
        return _DECODE_ERRORS
    return (*_DECODE_ERRORS, zstandard.ZstdError)


def _reason(error: BaseException, kind: str) -> str:
    if isinstance(error, EOFError):
        return f"is a {kind} file that is cut off"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read ({error.strerror})"
    if kind == "plain":
        return f"cannot be read ({error})"
    return f"is a damaged {kind} file ({error})"
