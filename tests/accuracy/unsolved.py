"""Runs of the matrix that fail today, by what the analysis lacks.

Each must fail (strict): whoever mends the analysis takes the run off this list. It holds no run that cannot
be told from its source; those are marked in the truth.
"""

from __future__ import annotations

BY_REASON: dict[str, tuple[str, ...]] = {
    "jitter in a job without pipeline is not seen in host times": (
        "jitter:tp2-pp1-dp8:900022 text",
        "jitter:tp2-pp1-dp8:900022 text-hash",
    ),
    "text logs without communicators: groups are not inferred while hosts are starved, or with two faults": (
        "slow_host:tp2-pp2-dp4-ep2:900007 text",
        "slow_host:cp2-gather:900006 text",
        "two_slow:tp2-pp2-dp8:900024 text",
    ),
}
"""Case and source, by reason."""

UNSOLVED: dict[tuple[str, str], str] = {
    (run.split()[0], run.split()[1]): reason for reason, runs in BY_REASON.items() for run in runs
}
