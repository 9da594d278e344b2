"""Where a report goes: how wide and colourful standard output is, and files that are whole or not there.

Every verb that shows a report uses this, so that all obey the same rules: colour and width follow the
terminal, a pipe gets neither, and a file is replaced in one step so that a reader never sees half of it.

Is no verb, and knows no report by name.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from megatrace.errors import UsageError
from megatrace.model.finding import Diagnosis
from megatrace.reports import ReportOptions, reports

PIPE_WIDTH = 100
"""Cells of a report that goes to no terminal: fits a mail and a ticket."""


def options_for(stream: TextIO, options: ReportOptions, environment: Mapping[str, str]) -> ReportOptions:
    """The options with width and colour for a stream. NO_COLOR and TERM=dumb are obeyed (no-color.org)."""
    terminal = stream.isatty()
    dumb = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    width = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if terminal else PIPE_WIDTH
    return replace(options, width=width, colour=terminal and not dumb)


def show(diagnosis: Diagnosis, format_name: str, options: ReportOptions) -> None:
    """Prints one report on standard output."""
    made = reports.get(format_name)(diagnosis, options_for(sys.stdout, options, os.environ))
    sys.stdout.write(made if isinstance(made, str) else made.decode("utf-8", "replace"))


def write_all(diagnosis: Diagnosis, folder: Path, options: ReportOptions) -> list[Path]:
    """Writes every report that has a file name into a folder, made if needed; returns the paths."""
    written: list[Path] = []
    for declared in reports.declarations():
        name = declared.metadata.get("file")
        if isinstance(name, str):
            written.append(write_report(diagnosis, declared.name, folder / name, options))
    return written


def write_report(diagnosis: Diagnosis, name: str, path: Path, options: ReportOptions) -> Path:
    """Writes one report into a file, packed where the file's name ends in .gz; returns its path."""
    made = reports.get(name)(diagnosis, replace(options, width=PIPE_WIDTH, colour=False))
    content = made.encode("utf-8") if isinstance(made, str) else made
    # No time in the head of the file: the same diagnosis makes the same bytes.
    write_whole(path, gzip.compress(content, 6, mtime=0) if path.suffix == ".gz" else content)
    return path


def write_whole(path: Path, content: str | bytes) -> None:
    """Puts a text or bytes into a file in one step: the old content or all of the new. Raises UsageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
