"""Tar archives on their way into the readers: each member is a file of its own, read as it passes by.

Logs are handed around as ``logs.tar.xz``. Nothing is unpacked to disk, so names in the archive cannot
point anywhere. Does not open zip files: their directory is at the end, so they cannot be read as a
stream.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from megatrace.readers.source import ReadOptions, Source
from megatrace.units import NS_PER_S

_MAGIC = b"ustar"
_MAGIC_AT = 257


def is_archive(head: bytes) -> bool:
    """Whether a file with this head is a tar archive (POSIX or GNU; the oldest have no magic)."""
    return head[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC


def members(source: Source, options: ReadOptions) -> Iterator[Source]:
    """The regular files of an archive, each to be read before the next. What is wrong with it is
    ``damage``."""
    try:
        with tarfile.open(fileobj=_Stream(source), mode="r|") as archive:
            for member in archive:
                wanted = member.isreg() and not _hidden(member.name)
                data = archive.extractfile(member) if wanted else None
                if data is not None:
                    name = f"{source.name}/{member.name}"
                    written = int(member.mtime) * NS_PER_S
                    yield Source(
                        name, cast(BinaryIO, data), options, packed_size=member.size, modified=written
                    )
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        source.damage = source.damage or f"is a damaged archive ({error})"


def stream(source: Source) -> BinaryIO:
    """A source as a file that can only be read on, for whoever looks into an archive."""
    return cast(BinaryIO, _Stream(source))


def _hidden(name: str) -> bool:
    """Whether a member is left out, as hidden files of a directory are: a bundle keeps its own there."""
    return any(part.startswith(".") and part.strip(".") for part in name.split("/"))


class _Stream(io.RawIOBase):
    """A source as a file that can only be read on."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, view: memoryview) -> int:  # type: ignore[override]
        return self._source.readinto(memoryview(view).cast("B"))

    def read(self, size: int = -1) -> bytes:
        """Exactly ``size`` bytes unless the source ends: tarfile takes a short read for the end."""
        wanted = io.DEFAULT_BUFFER_SIZE if size is None or size < 0 else size
        data = bytearray(wanted)
        have = 0
        while have < wanted and (got := self._source.readinto(memoryview(data)[have:])):
            have += got
        return bytes(data[:have])
