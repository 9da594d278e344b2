"""The pages of numbers: accuracy and speed, made from benchmarks/results/*.json and from nothing else.

A number in the documentation that nobody can repeat is worth nothing, so each stands under the command, the
date and the machine that gave it, goals that were missed are shown as missed, and a benchmark that has not
been run says so. Measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ACCURACY, RIVALS, COVERAGE = "accuracy", "rivals", "coverage"
SOURCES = {
    "ring": "start and end times of every call, peers, nodes (in memory, from the simulator)",
    "text": "a text call log with operation numbers: host times only, no group hash, no peer",
    "text-hash": "a text call log with operation numbers and group hashes",
}
"""What the sources of the fault matrix can see; a test compares the names with the benchmark's."""
RULE = """\
Simulated jobs with a known fault are diagnosed and scored by a rule that was fixed before the analysis was
written (`benchmarks/accuracy/scoring.py`):

- **Positive** is a fault that makes the job stand, or whose same-seed counterfactual without it has
  iterations at least 5 % shorter in the fault's window. What bubbles absorb need not be found, but nobody may
  be accused for it.
- **A hit** names the right kind (or has it among at most two alternatives), exactly the culprits of the truth
  or the smallest set that the source can separate, and, for slowness, a window that overlaps the true one by
  at least half (intersection over union).
- **"Cannot tell"** is right where the truth says that the source cannot, and where nobody said that the job
  still stood and the recording ends before its silence shows it.
- **A false accusation** is a finding of P2 or worse that names a rank outside every fault; on a healthy job
  any finding of P2 or worse.
- **Precision** counts every serious finding that fits no fault, **recall** positive faults, **F1** both;
  **ambiguous** is the share of answers with an unseparated group where the source could separate;
  **located** counts hangs whose iteration, stage, micro-batch and phase are right.

To repeat: the command below for all, and for one case
`python -m benchmarks.accuracy --case FAULT:LAYOUT:SEED --verbose`. These seeds were scored once and looked at
only afterwards: the analysis had been mended on the misses of other seeds. Who mends it on the misses listed
here records the next figures on seeds that nobody has seen, with `--seed-base N`.
"""
COMPARED = """\
Methods that others have published, written anew as their papers describe them (`benchmarks/rivals/`), are
given the same recordings, with start and end of every call on exact clocks, exact phase labels, and the
threshold that is best for each on tuning seeds. Two kinds of jobs: that of the paper which compares them (TP2
PP4 DP4, 48 layers, a hang or a delay of 50 ms to 30 s at a random position of a forward, a backward or a
transmission), and jobs of a second generator with other layouts, lasting noise and other shapes of faults, on
which nothing was tuned.

- **F1** counts naming one of the culprits and nobody outside their tensor groups; **exact** counts naming the
  culprits and nobody else. Kind and window count for neither, because most methods state none.
- **Published** is the F1 that the paper gives; a method that does not come within 0.05 of it on the paper's
  job is labelled "not reproduced": its row then says how our version of the idea does, not how theirs did.

To repeat: `make bench-rivals`, and for one run `python -m benchmarks.rivals --run GENERATOR:STATE:SEED`.
"""
SPEED = """\
Goals are ratios to something that the same process measured in the same run (reading the input once, a plain
implementation), because machines differ and are shared. To repeat: `make bench-speed`.
"""


def accuracy_page(results: Path) -> str:
    """The rule, and the tables of ``results/accuracy.json`` if there is one."""
    parts = ["# Accuracy\n", RULE]
    result = _load(results / f"{ACCURACY}.json")
    if result is None:
        return "\n".join([*parts, "Not measured yet: there is no `benchmarks/results/accuracy.json`.\n"])
    figures = result["figures"]
    parts += [_provenance(result), f"{figures['runs']:,} runs of {figures['jobs']:,} jobs.\n"]
    parts += ["## Goals\n", _goals(result["goals"])]
    parts += ["## Sources\n", _table(["source", "sees"], [[f"`{k}`", v] for k, v in SOURCES.items()])]
    parts += ["## In all\n", _scores(figures["totals"]), "## By fault\n", _scores(figures["rows"])]
    misses = figures["misses"]
    parts.append(f"## Misses\n\n{len(misses):,} reasons, each with the command that shows it.\n")
    lines = [f"- `{miss['case']}` `{miss['source']}`: {_cell(miss['reason'])}" for miss in misses]
    if lines:
        parts.append("\n".join(lines) + "\n")
        parts.append("`python -m benchmarks.accuracy --case CASE --source SOURCE --verbose` shows one.\n")
    return "\n".join(parts)


def rivals_page(results: Path) -> str:
    """The comparison with published methods, from ``results/rivals.json`` if there is one."""
    parts = ["# Beside published methods\n", COMPARED]
    result = _load(results / f"{RIVALS}.json")
    if result is None:
        return "\n".join([*parts, "Not measured yet: there is no `benchmarks/results/rivals.json`.\n"])
    figures = result["figures"]
    parts += [_provenance(result), f"{figures['runs']:,} runs.\n", "## Goals\n", _goals(result["goals"])]
    for generator, title in (("paper", "The paper's job"), ("other", "The second generator")):
        rows = [row for row in figures["rows"] if row["generator"] == generator]
        heads = ["method", "hang F1", "exact", "published", "slow F1", "exact", "published", ""]
        parts += [f"## {title}\n", _table(heads, [_compared(row) for row in rows])]
    parts += ["## Delays at different places\n", PLACES, _places(figures["positions"])]
    parts += ["## Both thresholds swept\n", SWEPT, _sweep(figures["sweep"])]
    parts.append(f"## Misses\n\n{len(figures['misses']):,} reasons by the full rule of the fault matrix.\n")
    if figures["misses"]:
        parts.append("\n".join(f"- `{m['run']}`: {_cell(m['why'])}" for m in figures["misses"]) + "\n")
    return "\n".join(parts)


def coverage_page(results: Path) -> str:
    """What is found of published incidents, from ``results/coverage.json`` if there is one."""
    parts = ["# Coverage of published incidents\n", COVERED]
    result = _load(results / f"{COVERAGE}.json")
    if result is None:
        return "\n".join([*parts, "Not measured yet: there is no `benchmarks/results/coverage.json`.\n"])
    figures = result["figures"]
    parts += [_provenance(result), "## Goals\n", _goals(result["goals"]), "## By weight\n"]
    names = ("found", "found_by_inspect", "located", "right_action")
    rows = [[source, *(f"{figures[source][name]:.1%}" for name in names)] for source in ("llama3", "story")]
    parts.append(
        _table(["source", "found", "by `inspect` alone", "device named", "right first action"], rows)
    )
    parts.append("## Incident by incident\n")
    rows = [
        [row["cause"], str(row["weight"]), _cell(row["says"])]
        + ["yes" if row[name] else "**no**" for name in ("found", "located", "right_action")]
        for row in figures["rows"]
    ]
    parts.append(
        _table(["cause", "weight", "what the node shows", "found", "device named", "right action"], rows)
    )
    parts += ["## Checks and the faults they were developed with\n", MATRIX]
    rows = [[name, *(str(row[key]) for key in ("faults", "tried", "found", "located"))]
            for name, row in figures["matrix"].items()]  # fmt: skip
    parts.append(_table(["★ check", "faults", "machines tried", "found", "device named"], rows))
    alarms = figures["false_alarms_per_node_day"]
    parts.append(f"{figures['healthy']} healthy machines: {alarms:.4f} false alarms a node-day.\n")
    return "\n".join(parts)


COVERED = """\
The denominator is `benchmarks/coverage.yaml`: the 419 interruptions of a published training run of 54 days
on 16,384 GPUs by their counts, each cause split into what operators report that a node shows of it. Shares
within a cause are not published; the parts are equal. What nothing can show stays in. Every incident is put
on made machines, which `megatrace inspect` then looks at (what only a job's own logs show: `megatrace
diagnose`).

Machines and incidents are made by this project, and no real cluster stands behind the shares: they say
which kinds of faults have a check that works, not how often a real fault is found. Rows and weights were
written before the checks; the first run found 98.6 %, named the device in 87.1 % and the right first action
in 96.7 %. What it missed was looked at since, so later runs are no blind test. To repeat: `make
bench-coverage`.
"""
MATRIX = """\
A regression test more than a measurement: these faults were there when the checks were written. A healthy
machine lives through one happening (a reboot, an upgrade, maintenance, old counts, missing tools, …), which
is as much as a node sees in a day at most.
"""

PLACES = """\
One delay an iteration, at four places; times are those of the iteration. A pipeline's bubbles forgive a delay
up to a length that depends on its place: what it costs has to be asked, and a fixed threshold cannot.
"""
SWEPT = """\
Precision / recall on the paper's job where findings count only if the iteration's performance (usual over
actual time) lies below the row's, and the slowdown of the culprit's slowest task reaches the column's.
"""


def _compared(row: dict[str, Any]) -> list[str]:
    cells, labels = [row["method"]], []
    for state in ("hang", "slow"):
        part = row[state]
        published = "–" if part["published"] is None else f"{part['published']:.2f}"
        cells += [f"{part['f1']:.2f}", f"{part['f1_exact']:.2f}", published]
        if part["reproduced"] is False:
            labels.append(f"{state}: not reproduced")
    return [*cells, ", ".join(labels)]


def _places(rows: Sequence[dict[str, Any]]) -> str:
    delays = list(rows[0]["iteration_ms"])
    limits = ("lengthens_ms", "megatrace_ms", "fixed_threshold_ms")
    heads = ["place", *(f"{ms} ms" for ms in delays), "lengthens from", "MegaTrace from", "fixed from"]
    return _table(
        heads,
        [
            [
                row["place"],
                *(f"{row['iteration_ms'][ms]:,.0f}" for ms in delays),
                *("–" if row[key] is None else f"{row[key]} ms" for key in limits),
            ]
            for row in rows
        ],
    )


def _sweep(rows: Sequence[dict[str, Any]]) -> str:
    columns = sorted({row["slowdown_from"] for row in rows})
    cells = {(row["performance_below"], row["slowdown_from"]): row for row in rows}
    lines = [
        [
            f"{below:.0%}",
            *(f"{(c := cells[(below, at)])['precision']:.2f} / {c['recall']:.2f}" for at in columns),
        ]
        for below in sorted({row["performance_below"] for row in rows})
    ]
    return _table(["performance below", *(f"slowdown ≥ {at:.0%}" for at in columns)], lines)


def speed_page(results: Path) -> str:
    """One section for every other result: what was measured against which goal."""
    parts = ["# Speed\n", SPEED]
    found = sorted(path for path in results.glob("*.json") if path.stem not in (ACCURACY, RIVALS, COVERAGE))
    for path in found:
        result = _load(path)
        if result is not None:
            parts += [f"## {result['name']}\n", _provenance(result), _goals(result["goals"])]
            cpu = result["figures"].get("cpu")
            if cpu:
                rows = [[name, *(f"{cpu[name][key]:,.1f}" for key in _MS)] for name in cpu]
                parts.append(_table(["CPU time of", "min ms", "median ms", "max ms"], rows))
    if len(parts) == 2:
        parts.append("Not measured yet: there is no result in `benchmarks/results`.\n")
    return "\n".join(parts)


_MS = ("min_ms", "median_ms", "max_ms")


def _load(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def _provenance(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"`{result['command']}`, {result['date']}, {machine['cpus']} × {machine['processor']}, "
        f"Python {machine['python']}, load {machine['load_1min']}.\n"
    )


def _goals(goals: Iterable[dict[str, Any]]) -> str:
    rows = [
        [
            _cell(goal["name"]),
            f"{'≥' if goal['at_least'] else '≤'} {goal['limit']:g}",
            f"{goal['value']:,.4g}",
            "met" if goal["met"] else "**missed**",
        ]
        for goal in goals
    ]
    return _table(["goal", "limit", "measured", ""], rows)


def _scores(rows: Iterable[dict[str, Any]]) -> str:
    heads = ["fault", "source", "runs", "positive", "hits", "wrong", "accused", "cannot tell", "ambiguous"]
    heads += ["precision", "recall", "F1", "located"]
    return _table(
        heads,
        [
            [
                f"`{row['fault']}`",
                f"`{row['source']}`",
                *(str(row[key]) for key in ("runs", "positives", "hits", "wrong_findings")),
                *(str(row[key]) for key in ("false_accusations", "undecided")),
                f"{row['ambiguous_share']:.0%}",
                *(f"{row[key]:.2f}" for key in ("precision", "recall", "f1")),
                f"{row['located']}/{row['locatable']}" if row["locatable"] else "–",
            ]
            for row in rows
        ],
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("|  |", "| |") + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
