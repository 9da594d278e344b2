"""What the pictures point at: culprits, the window, the stage, and which node a rank sits on.

The pictures' numbers are in ``html_data``; these are the few facts that turn them into an argument. Names of
nodes are listed once and referred to by number, because ten thousand ranks share a thousand of them.

Judges nothing: all of it stands in the findings of the `Diagnosis`.
"""

from __future__ import annotations

import numpy as np

from megatrace.model.finding import Diagnosis, Kind, Severity, Verdict
from megatrace.model.trace import Observable
from megatrace.reports.describe import Scene, iterations
from megatrace.reports.wording import plain

MAX_MARKED = 64
"""Culprits that are pointed at one by one; more of them are a group, which the pictures show as a band."""


def marks(diagnosis: Diagnosis, scene: Scene) -> dict[str, object]:
    """Facts for the script, JSON-ready."""
    serious = [item for item in diagnosis.findings if item.severity <= Severity.P2]
    first = serious[0] if serious else None
    window = first.window if first is not None else None
    where = first.where if first is not None else None
    ranks = sorted({rank for item in serious for rank in item.culprits.ranks})
    layout = diagnosis.job.layout
    stages = np.empty(0, np.int32) if layout is None else layout.stages()
    stage = where.stage if where is not None else None
    if stage is None and first is not None and first.culprits.ranks and first.culprits.ranks[0] < len(stages):
        stage = int(stages[first.culprits.ranks[0]])
    return {
        "verdict": diagnosis.verdict.value,
        "ranks": ranks[:MAX_MARKED],
        "stage": stage,
        "window": None
        if window is None or window.first_iteration is None
        else [window.first_iteration, window.last_iteration],
        "windowSays": "" if window is None else iterations(scene, window),
        "median": diagnosis.job.iteration_median_ms,
        "stands": diagnosis.verdict is Verdict.HANG,
        "absolute": first is not None and first.kind is Kind.IMBALANCE,
        "world": diagnosis.job.ranks,
        "layout": None if layout is None else [layout.tp, layout.cp, layout.dp, layout.pp],
        "together": _together(diagnosis),
        "places": _places(diagnosis),
    }


def _together(diagnosis: Diagnosis) -> int:
    """How many ranks one row of the iteration stands for: host times show a tensor group as one."""
    layout = diagnosis.job.layout
    timed = diagnosis.coverage.has(Observable.START, Observable.END)
    return layout.tp if layout is not None and not timed and layout.order.startswith("tp") else 1


def _places(diagnosis: Diagnosis) -> dict[str, object]:
    """Names of nodes and devices, each once, and per rank which of them."""
    nodes: dict[str, int] = {}
    devices: dict[str, int] = {}
    node_of: list[int] = [-1] * diagnosis.job.ranks
    device_of: list[int] = [-1] * diagnosis.job.ranks
    for place in diagnosis.places:
        if not 0 <= place.rank < diagnosis.job.ranks:
            continue
        if place.node:
            node_of[place.rank] = nodes.setdefault(plain(place.node), len(nodes))
        if place.device:
            device_of[place.rank] = devices.setdefault(plain(place.device), len(devices))
    if not nodes and not devices:
        return {"nodes": [], "devices": [], "node": [], "device": []}
    return {"nodes": list(nodes), "devices": list(devices), "node": node_of, "device": device_of}
