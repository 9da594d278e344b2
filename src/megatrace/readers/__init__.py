"""Readers: one per input format. Bytes in, `Trace` out.

``open_trace`` (in ``opening``) finds the files, unpacks them, shows each one's head to every reader,
hands it to the first that takes it, and joins what comes out. A reader registers itself with
``@registry.register``; the helpers of one format live beside it under its name (``calllog.py``,
``calllog_line.py``, ...).

What belongs here: recognising a format, turning it into columns, counting what could not be read. What
does not: judging (``analysis``), asking a live system (``collect``), and reading any other reader's
format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from megatrace.registry import Registry

if TYPE_CHECKING:
    from megatrace.model.trace import Trace
    from megatrace.readers.source import ReadOptions, Source


class Reader(Protocol):
    """One format, for the time of one ``open_trace``: many files in, one Trace out. Any bytes are allowed."""

    def __init__(self, options: ReadOptions) -> None: ...

    def refuses(self, head: bytes) -> str | None:
        """Why a file that begins with ``head`` is not of this format, None where it is. Raises nothing."""
        ...

    def add(self, source: Source) -> None:
        """Reads one file to its end. Raises TraceError only where the whole input is useless because of
        it."""
        ...

    def finish(self) -> Trace:
        """Everything that was added. Raises TraceError where it holds no call at all."""
        ...


registry: Registry[type[Reader]] = Registry("reader", "megatrace.readers")
"""The catalogue of input formats."""
