"""The errors that a user can meet, each one sentence: what, where, what was expected and found, what to do.

One hierarchy, because `main()` is the only place that prints and exits: it needs an exit code and a sentence
and nothing else. Code that has more to say (a key path, an offset, the names there are) passes it as
arguments and reads it back as attributes; tests and the Bot never parse sentences. Missing data is not an
error (that is `Coverage`), and a bug is not a `MegatraceError`: it keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import ClassVar

EXIT_OK = 0
"""Nothing wrong."""
EXIT_USAGE = 2
"""Wrong usage: an option, a name or a configuration that cannot be right."""
EXIT_UNREADABLE = 3
"""Input that cannot be read at all."""
EXIT_FAULT_FOUND = 10
"""A fault of severity P2 or worse was found."""
EXIT_CANNOT_TELL = 11
"""The evidence does not suffice for a verdict."""
EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C (128 + SIGINT, as shells say it)."""
EXIT_BROKEN_PIPE = 141
"""The reader of our output went away (128 + SIGPIPE, as shells say it)."""

EXIT_CODES: Mapping[int, str] = {
    EXIT_OK: "nothing wrong",
    EXIT_USAGE: "wrong usage",
    EXIT_UNREADABLE: "unreadable input",
    EXIT_FAULT_FOUND: "a fault of P2 or worse was found",
    EXIT_CANNOT_TELL: "cannot tell",
}
"""The codes that the documentation promises, with their meaning."""


def sentence(what: str, *, where: str = "", expected: str = "", found: str = "", do: str = "") -> str:
    """Joins the parts of an error in the order in which a reader needs them.

    >>> sentence("no call", where="a.log line 3", expected="a comm call", found="'hello'", do="name a log")
    "a.log line 3: no call: expected a comm call, found 'hello'; name a log"
    """
    text = f"{where}: {what}" if where else what
    if expected and found:
        text += f": expected {expected}, found {found}"
    elif expected:
        text += f": expected {expected}"
    elif found:
        text += f": found {found}"
    return f"{text}; {do}" if do else text


def clip(value: object, limit: int = 60) -> str:
    """`repr` of a value from outside, short enough to stand in a sentence, without control characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class MegatraceError(Exception):
    """The root of all errors that are reported as one sentence. `exit_code` is what the process ends with."""

    exit_code: ClassVar[int] = EXIT_USAGE


class UsageError(MegatraceError):
    """The user asked for something that cannot be right."""


class ConfigError(UsageError):
    """A value of a configuration is wrong. Keeps the dotted key path, the value found and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str, *, path: str = "", do: str = "") -> None:
        self.key, self.value, self.allowed, self.path = key, value, allowed, path
        super().__init__(sentence(f"{key} is wrong", where=path, expected=allowed, found=clip(value), do=do))


class UnknownName(UsageError):
    """No entry of that name. `known` are the names there are; `close` the one probably meant, or ''."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        close = get_close_matches(name, self.known, n=1)
        self.close = close[0] if close else ""
        hint = f"; did you mean {self.close}?" if self.close else ""
        there_are = ", ".join(self.known) if self.known else "none"
        super().__init__(f"no {kind} is called {clip(name)}{hint} (there are: {there_are})")


class NotInstalled(UsageError):
    """A part of MegaTrace exists but cannot run here; `reason` says which dependency is missing."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        self.kind, self.name, self.reason = kind, name, reason
        super().__init__(f"{kind} {name} cannot be used here: {reason}")


class TraceError(MegatraceError):
    """Input that cannot be turned into a Trace. `path` is the file or directory concerned."""

    exit_code: ClassVar[int] = EXIT_UNREADABLE

    def __init__(self, message: str, *, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class UnknownFormat(TraceError):
    """No reader takes this input. `reasons` maps each reader to its own words."""

    def __init__(self, path: str, reasons: Mapping[str, str], *, do: str = "") -> None:
        self.reasons = dict(reasons)
        said = "; ".join(f"{reader}: {reason}" for reader, reason in sorted(self.reasons.items()))
        text = f"no reader takes it ({said})" if said else "no reader takes it"
        super().__init__(sentence(text, where=path, do=do), path=path)


class CorruptTrace(TraceError):
    """Recognised input that breaks its own format. `offset` in bytes, `line` counted from 1, or None."""

    def __init__(
        self,
        path: str,
        what: str,
        *,
        offset: int | None = None,
        line: int | None = None,
        expected: str = "",
        found: str = "",
        do: str = "",
    ) -> None:
        self.offset, self.line = offset, line
        where = path
        if line is not None:
            where += f" line {line:,}"
        if offset is not None:
            where += f" at byte {offset:,}"
        super().__init__(sentence(what, where=where, expected=expected, found=found, do=do), path=path)


class UnsupportedVersion(TraceError):
    """A known format in a version that this release does not read."""

    def __init__(self, path: str, what: str, *, found: object, supported: str, do: str = "") -> None:
        self.found, self.supported = found, supported
        text = f"{what} of an unsupported version"
        super().__init__(sentence(text, where=path, expected=supported, found=str(found), do=do), path=path)


class CollectError(MegatraceError):
    """Recording could not start. Whoever catches it lets the job go on: it is only observed."""


class NotifyFailed(MegatraceError):
    """A message was not delivered. `retry_after` is in seconds; None means when the sender thinks best."""

    def __init__(self, message: str, *, permanent: bool, retry_after: float | None = None) -> None:
        self.permanent, self.retry_after = permanent, retry_after
        super().__init__(message)


class ActionFailed(MegatraceError):
    """An action was tried and did not work. `permanent` says that trying again cannot help."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        self.permanent = permanent
        super().__init__(message)


class ActionRefused(MegatraceError):
    """The guards let an action not through. `refusals` are all the reasons, not only the first."""

    def __init__(self, action: str, refusals: Iterable[str]) -> None:
        self.action, self.refusals = action, tuple(refusals)
        super().__init__(f"{action} is refused: {'; '.join(self.refusals)}")
