"""`megatrace history`: what became of a machine or a part, whatever slot it sat in, and what breaks again and
again.

Reads the records that `megatrace inspect` keeps. ``--clear`` says that something was repaired: the record
stays, and counts anew from there.
"""

from __future__ import annotations

import getpass
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from megatrace.bot.ledger import WINDOW_DAYS, Ledger, default_ledger
from megatrace.clock import SystemClock
from megatrace.commands import command, output
from megatrace.errors import TraceError, UsageError
from megatrace.reports import ReportOptions, history


class Format(str, Enum):
    """What is printed."""

    text = "text"
    json = "json"


@command(
    "history",
    summary="says what became of a machine or part, and what breaks again",
    examples=[
        "megatrace history node188",
        "megatrace history 1650423012345",
        "megatrace history --lemons --days 90",
        'megatrace history GPU-5f0c7f0e-… --clear --reason "replaced by the vendor, case 8812"',
    ],
    order=13,
)
def show(
    name: Annotated[
        str | None, typer.Argument(help="A machine, or the serial number or UUID of a part.")
    ] = None,
    lemons: Annotated[
        bool, typer.Option("--lemons", help="What broke three times or more, on different days.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, help="How far back lemons are looked for.")] = WINDOW_DAYS,
    clear: Annotated[
        bool, typer.Option("--clear", help="It was repaired: what happened before counts no longer.")
    ] = False,
    reason: Annotated[str, typer.Option(help="With --clear: what was done.")] = "",
    ledger: Annotated[
        Path | None, typer.Option(help="The file with the records (default: that of megatrace inspect).")
    ] = None,
    format_name: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.text,
    verbose: Annotated[bool, typer.Option("--verbose", help="All events.")] = False,
) -> int:
    """Prints a record, newest first. Parts are known by their own numbers, so a fault follows a GPU that is
    moved, and a new GPU in the same slot begins with none.
    """
    if (name is None) == (not lemons):
        raise UsageError("name a machine or a part, or ask for --lemons")
    place = ledger or default_ledger()
    if place is None or not place.is_file():
        raise TraceError(
            f"there is no record of parts{f' at {place}' if place else ''}: megatrace inspect makes it, "
            "or name one with --ledger"
        )
    kept = Ledger(place)
    try:
        return _answer(kept, name, lemons, days, clear, reason, format_name, verbose)
    finally:
        kept.close()


def _answer(
    kept: Ledger,
    name: str | None,
    lemons: bool,
    days: int,
    clear: bool,
    reason: str,
    format_name: Format,
    verbose: bool,
) -> int:
    now = SystemClock().now()
    options = output.options_for(sys.stdout, ReportOptions(verbose=verbose, generated_at=now), os.environ)
    if name is None or lemons:
        found = kept.lemons(now, days)
        text = (
            history.as_json(found)
            if format_name is Format.json
            else history.render_lemons(found, days, options)
        )
        sys.stdout.write(text)
        return 10 if found else 0
    if clear:
        kept.clear(name, reason, _user(), now)
    elif reason:
        raise UsageError("--reason belongs to --clear")
    record = kept.history(name)
    sys.stdout.write(
        history.as_json(record) if format_name is Format.json else history.render(record, options)
    )
    return 0


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
