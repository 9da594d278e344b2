"""Who asks: a file with ``user: …`` and ``password: …`` (or ``community: …``), one a line, for its owner's
eyes.

A file that others may read is refused: a password that leaked is worse than a check that did not run."""

from __future__ import annotations

import stat
from pathlib import Path

from megatrace.bot.backends import MAX_LOGIN
from megatrace.errors import ConfigError, UsageError


def read_login(path: Path | None) -> dict[str, str]:
    """The file's keys and values; empty without a file. Raises UsageError, ConfigError."""
    if path is None:
        return {}
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()[:MAX_LOGIN].decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"the login file {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"the login file {path} can be read by others; run: chmod 600 {path}")
    pairs = [line.partition(":") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    wrong = [key for key, colon, _ in pairs if not colon]
    if wrong:
        raise ConfigError("a line", "…", "user: NAME, password: SECRET or community: NAME", path=str(path))
    return {key.strip(): value.strip() for key, _, value in pairs}
