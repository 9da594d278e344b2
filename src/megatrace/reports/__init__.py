"""Catalogue of reports: one file turns a `Diagnosis` into one kind of text.

What belongs here: functions from a `Diagnosis` (and how wide, in which language, with how much detail) to a
string, or to bytes for a viewer. A report opens nothing, prints nothing and judges nothing: whoever wants
another number in a report puts it into the `Diagnosis`. What does not belong here: writing files and exit
codes (``commands``), finding faults (``analysis``).

A report file registers one function; ``--format`` lists those with ``format=True``, ``--out DIR`` writes
every report under its ``file`` name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from megatrace.model.finding import Diagnosis
from megatrace.registry import Registry

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """How a report should look.

    ``width`` in terminal cells; ``generated_at`` and ``now`` are ns since the epoch or None: when
    the report is made, and until when the job is known to stand (only where somebody said so, for "… ago").
    ``command`` is what the user typed, "" where nobody did: reports that say how to repeat them show it.
    """

    width: int = 100
    colour: bool = False
    verbose: bool = False
    lang: str = "en"
    generated_at: int | None = None
    now: int | None = None
    command: str = ""


Report: TypeAlias = Callable[[Diagnosis, ReportOptions], "str | bytes"]

reports: Registry[Report] = Registry("report", __name__)
