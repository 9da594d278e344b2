"""Python tracebacks and CUDA errors: who raised what, and the last line of the user's own code.

Tracebacks of several ranks may be interleaved; lines of one rank belong together. The exception's own line decides;
a cut traceback, or one whose "Traceback" line is missing, still counts. Frames of the user's code are those outside of
site-packages and of Python's library.
"""

from __future__ import annotations

import re

from megatrace.model.series import FactKind, LogFact
from megatrace.readers.log_clean import Line
from megatrace.readers.log_pattern import fact_of

_EXCEPTION = re.compile(
    r"^(?:\w+\.)*(?P<type>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Killed|Fault|Expired|Full|Failed)|StopIteration|Killed): ?(?P<detail>.*)"
)
_BARE = re.compile(
    r"^(?:\w+\.)*(?P<type>AssertionError|KeyboardInterrupt|MemoryError|StopIteration|RuntimeError|NotImplementedError|EOFError)$"
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|/torch/|<frozen|<string>|/bin/|importlib|/runpy\.py"
)
_CUDA = re.compile(
    r"(?P<detail>CUDA error: .*|CUDA out of memory.*|CUDNN_STATUS_\w+.*|CUBLAS_STATUS_\w+.*|NVLink.*uncorrectable.*)"
)
_STORAGE = re.compile(
    r"(?P<detail>(?:\[Errno (?:28|5|116|122|30|24|12)\].*|No space left on device.*|Stale file handle.*|Disk quota exceeded.*|Input/output error.*|Read-only file system.*))"
)
_COLLECTIVE = re.compile(
    r"\b(barrier|broadcast|broadcast_object_list|all_reduce|all_gather\w*|reduce_scatter\w*|gather_object|send|recv|all_to_all\w*)\("
)
_SHM = re.compile(r"(?P<detail>.*insufficient shared memory.*)")
_TRACE = "Traceback (most recent call last)"
MAX_FRAMES = 200  # kept of one stack: only a recursion has more, and repeats itself


class Python:
    """See the module."""

    needles: tuple[str, ...] = (
        _TRACE, "Error", "Exception", "KeyboardInterrupt", '  File "', "CUDA error", "CUDA out of memory", "CUBLAS_STATUS", "CUDNN_STATUS",
        "No space left on device", "insufficient shared memory", "Stale file handle", "Input/output error", "Disk quota", "Read-only file system", "Bus error", "Segmentation fault",
        "Killed",
    )  # fmt: skip

    def __init__(self) -> None:
        self._frames: dict[int | None, list[tuple[str, int, str]]] = {}
        self._left = 0
        self._at: dict[int | None, Line] = {}

    @property
    def open(self) -> bool:
        """Within a traceback: its exception may have any name."""
        return self._left > 0

    def feed(self, line: Line) -> list[LogFact]:
        """A fact with the exception's line."""
        self._left = max(0, self._left - 1)
        if _TRACE in line.text:
            self._frames[line.rank] = []
            self._left = MAX_FRAMES
            return [fact_of(line, FactKind.EXCEPTION, "traceback", {})]
        frame = _FRAME.match(line.text)
        if frame is not None:
            frames = self._frames.setdefault(line.rank, [])
            self._at[line.rank] = line
            self._left = max(self._left, 2)
            if len(frames) < MAX_FRAMES:
                frames.append((frame["file"], int(frame["line"]), frame["function"]))
            return []
        text = line.text.strip()
        called = _COLLECTIVE.search(text)
        if called is not None and line.text[:2] == "  " and line.rank in self._frames:
            self._frames[line.rank].append(("<source>", 0, called[1]))
            return []
        exception = _EXCEPTION.match(text) or _BARE.match(text)
        if exception is not None:
            self._left = 0
            parts = dict(exception.groupdict())
            parts.setdefault("detail", "")
            return [self._raised(line, "raised", parts)]
        for name, form in (("cuda", _CUDA), ("storage", _STORAGE), ("shm", _SHM)):
            found = form.search(text)
            if found is not None and not text.startswith(("For debugging", "CUDA kernel errors")):
                return [self._raised(line, name, dict(found.groupdict()))]
        if text in (
            "Bus error (core dumped)",
            "Bus error",
            "Segmentation fault (core dumped)",
            "Segmentation fault",
            "Killed",
        ):
            return [self._raised(line, "signal", {"type": text.split(" (")[0], "detail": text})]
        return []

    def _raised(self, line: Line, name: str, parts: dict[str, str | None]) -> LogFact:
        frames = self._frames.pop(line.rank, None) or []
        own = next((frame for frame in reversed(frames) if not _LIBRARY.search(frame[0])), None)
        parts = {**parts, "detail": (parts.get("detail") or "")[:300]}
        if own is not None:
            parts["user_file"], parts["user_line"], parts["user_function"] = own[0], str(own[1]), own[2]
        if frames:
            parts["last_file"], parts["last_function"] = frames[-1][0], frames[-1][2]
            parts["functions"] = " ".join(frame[2] for frame in frames[-12:])
        return fact_of(line, FactKind.EXCEPTION, name, parts)

    def flush(self) -> list[LogFact]:
        """Frames whose exception was cut off are a fact: what the rank was doing."""
        facts = [
            fact_of(
                self._at[rank],
                FactKind.EXCEPTION,
                "frames",
                {"functions": " ".join(f[2] for f in frames[-12:])},
            )
            for rank, frames in self._frames.items()
            if frames
        ]
        self._frames, self._left, self._at = {}, 0, {}
        return facts
