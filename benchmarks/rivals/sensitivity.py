"""Both thresholds of the paper's method swept: below which performance an iteration counts as slow, and from
which slowdown an operation counts as its cause.

Every finding on the slow and the healthy runs is kept with the performance of its iterations (usual time over
actual time) and the slowdown of its culprit's slowest task; a pair of thresholds then says which findings
would have been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.accuracy.running import Record
from benchmarks.rivals.seen import Seen
from megatrace.analysis.reductions import median
from megatrace.model.finding import Severity

PERFORMANCE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
SLOWDOWN = (0.0, 0.5, 1.0, 2.0, 3.0)


def measured(seen: Seen) -> dict[str, float] | None:
    """Performance and slowdown of the first finding of P2 or worse, None where there is none."""
    serious = [finding for finding in seen.diagnosis.findings if finding.severity <= Severity.P2]
    if not serious or seen.table is None:
        return None
    finding, table = serious[0], seen.table
    phases = table.end - table.begin
    chosen = np.isin(table.grid, finding.culprits.ranks)
    slowdown = float("inf")
    if finding.window is not None and finding.window.first_iteration is not None and chosen.any():
        first, last = finding.window.first_iteration, finding.window.last_iteration
        inside = np.zeros(len(phases), bool)
        inside[first : None if last is None else last + 1] = True
        mine = phases[:, chosen] - np.nan_to_num(table.wait[:, chosen])
        if inside.any() and (~inside).any():
            usual, hurt = median(mine[~inside], axis=0), median(mine[inside], axis=0)
            known = np.isfinite(hurt) & (usual > 0)
            if known.any():
                slowdown = float((hurt[known] / usual[known]).max()) - 1
    iteration = finding.impact.slowdown or 1.0
    return {"performance": 1 / iteration, "slowdown": min(slowdown, 1e6)}


def swept(records: Sequence[Record], method: str) -> list[dict[str, Any]]:
    """Precision and recall for every pair of thresholds."""
    rows = []
    positives = sum(record["positive"] for record in records)
    for performance in PERFORMANCE:
        for slowdown in SLOWDOWN:
            hits = wrong = 0
            for record in records:
                at = record.get("finding")
                if at is None or at["performance"] >= performance or at["slowdown"] < slowdown:
                    continue
                right = record["named"][method][0] in record["exact"]
                hits += record["positive"] and right
                wrong += not right
            rows.append(
                {
                    "performance_below": performance,
                    "slowdown_from": slowdown,
                    "precision": round(hits / (hits + wrong), 4) if hits + wrong else 1.0,
                    "recall": round(hits / positives, 4) if positives else 1.0,
                }
            )
    return rows
