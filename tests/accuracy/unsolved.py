"""Runs of the matrix that fail today, by what the analysis lacks.

Each must fail (strict): whoever mends the analysis takes the run off this list. It holds no run that cannot
be told from its source; those are marked in the truth.
"""

from __future__ import annotations

BY_REASON: dict[str, tuple[str, ...]] = {}
"""Case and source, by reason."""

UNSOLVED: dict[tuple[str, str], str] = {
    (run.split()[0], run.split()[1]): reason for reason, runs in BY_REASON.items() for run in runs
}
