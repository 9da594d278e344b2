"""`python -m benchmarks.rivals`: MegaTrace beside published methods; writes benchmarks/results/rivals.json.

Every method first gets the threshold that is best for it on tuning seeds. Then: hang and slowdown on the
paper's job (its Fig. 8), on jobs of another generator, delays at different places (Fig. 13), both thresholds
swept (Fig. 14). Exit code 0 where every goal is met, 1 where not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.__main__ import progress
from benchmarks.accuracy.running import Record, run_all
from benchmarks.measure import Goal, write_result
from benchmarks.rivals.duel import NEAR, OURS, PUBLISHED, RIVALS, Job, judge, summed, tuned
from benchmarks.rivals.positions import DELAYS_MS, PLACES, Place, places
from benchmarks.rivals.sensitivity import PERFORMANCE, SLOWDOWN, swept

TUNING, SCORED = 400_000, 500_000
"""First seeds of both parts; no other matrix uses them."""
PARTS: dict[tuple[str, str], int] = {
    ("paper", "hang"): 200,
    ("paper", "slow"): 200,
    ("paper", "healthy"): 150,
    ("other", "hang"): 150,
    ("other", "slow"): 200,
    ("other", "healthy"): 150,
}
"""Runs of each part: 1,050 in all, 300 of them healthy."""
TUNED = 40
"""Runs a part for the thresholds of the rivals."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison, or a share of it."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    if options.run:
        return _one(options.run)
    tuning = _jobs(TUNING, options.share, dict.fromkeys(PARTS, TUNED))
    scored = _jobs(options.seed_base, options.share, PARTS)
    path = Path(tempfile.gettempdir()) / "megatrace-accuracy" / f"rivals-{options.seed_base}.jsonl"
    with progress(len(tuning) + len(scored) + len(PLACES) * len(DELAYS_MS)) as done:
        records = run_all(
            [*tuning, *scored], path, resume=options.resume, workers=options.workers, done=done, score=judge
        )
        tuned_ids = {job.id for job in tuning}
        choice = tuned([record for record in records if record["id"] in tuned_ids])
        records = [record for record in records if record["id"] not in tuned_ids]
        fixed = next(rival for rival in RIVALS if "fixed" in rival.name)
        forgiven = places(fixed.thresholds[choice[fixed.name]], done)
    figures = _figures(records, choice, forgiven)
    _show(figures, records, console)
    if options.share < 1 or options.seed_base != SCORED:
        return 0
    goals = _goals(records, choice)
    print(f"written: {write_result('rivals', figures, goals)}")
    path.unlink()
    for goal in goals:
        print(goal.line())
    return 0 if all(goal.met for goal in goals) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run was stopped")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--seed-base", type=int, default=SCORED, help="first seed of what is scored")
    parser.add_argument(
        "--share", type=float, default=1.0, help="only this share of the runs; writes nothing"
    )
    parser.add_argument("--run", metavar="ID", help="one run: GENERATOR:STATE:SEED, with its truth")
    return parser


def _jobs(base: int, share: float, parts: dict[tuple[str, str], int]) -> list[Job]:
    jobs: list[Job] = []
    for (generator, state), count in parts.items():
        jobs += [Job(generator, state, base + len(jobs) + n) for n in range(max(round(count * share), 2))]
    return jobs


def _one(text: str) -> int:
    generator, state, seed = text.split(":")
    (record,) = judge(Job(generator, state, int(seed)))
    print(f"{record['fault'] or 'healthy'}, counts: {record['positive']}, right: {record['exact']}")
    for method, options in record["named"].items():
        print(f"{method}: {options}")
    print("\n".join(record["why"]) or "MegaTrace is right by the full rule")
    return int(bool(record["why"]))


def _figures(records: list[Record], choice: dict[str, int], forgiven: list[Place]) -> dict[str, Any]:
    rows = []
    for generator in ("paper", "other"):
        mine = [record for record in records if record["generator"] == generator]
        for method in (OURS, *(rival.name for rival in RIVALS)):
            row: dict[str, Any] = {"generator": generator, "method": method}
            for state in ("hang", "slow"):
                # Healthy runs count with the slow ones: a watchdog's standstill is not to be had from them.
                part = [
                    r for r in mine if r["state"] == state or (state == "slow" and r["state"] == "healthy")
                ]
                sums = summed(part, method, choice.get(method, 0))
                published = PUBLISHED.get(method, {}).get(state)
                row[state] = {
                    "f1": round(sums.f1, 4),
                    "f1_exact": round(sums.f1_exact, 4),
                    "published": published,
                    "reproduced": None
                    if published is None or generator != "paper"
                    else abs(sums.f1 - published) <= NEAR,
                }
            rows.append(row)
    slow = [r for r in records if r["generator"] == "paper" and r["state"] != "hang"]
    return {
        "runs": len(records),
        "rows": rows,
        "thresholds": {rival.name: rival.thresholds[choice[rival.name]] for rival in RIVALS},
        "full_rule": _full(records),
        "positions": [place.as_json() for place in forgiven],
        "sweep": swept(slow, OURS),
        "misses": [
            {"run": f"python -m benchmarks.rivals --run {record['id']}", "why": why}
            for record in records
            for why in record["why"]
        ],
    }


def _full(records: list[Record]) -> dict[str, Any]:
    """MegaTrace by the rule of the fault matrix: kind and window count as well."""
    found: dict[str, Any] = {}
    for state in ("hang", "slow"):
        part = [record for record in records if record["state"] == state]
        positives = sum(record["positive"] for record in part)
        hits = sum(record["positive"] and record["full"] for record in part)
        wrong = sum(bool(record["named"][OURS][0]) and not record["full"] for record in part)
        found[f"{state}_f1"] = round(2 * hits / (hits + wrong + positives), 4) if positives else 1.0
    healthy = [record for record in records if record["state"] == "healthy"]
    told = [r["place"] for r in records if r["positive"] and r["full"] and r["place"] is not None]
    found["healthy_runs"] = len(healthy)
    found["healthy_accused"] = sum(not record["full"] for record in healthy)
    found["place_right"] = round(sum(told) / len(told), 4) if told else 1.0
    return found


def _goals(records: list[Record], choice: dict[str, int]) -> list[Goal]:
    full = _full(records)
    slow = [record for record in records if record["state"] != "hang"]
    best = max(summed(slow, rival.name, choice[rival.name]).f1 for rival in RIVALS)
    return [
        Goal("hang F1, both generators", full["hang_f1"], 1.0, at_least=True),
        Goal("slow F1, both generators", full["slow_f1"], 0.98, at_least=True),
        Goal("slow F1 against the best rival's", full["slow_f1"] / best if best else 1.0, 1.0, at_least=True),
        Goal("healthy runs accused", float(full["healthy_accused"]), 0.0),
        Goal("stage, micro-batch and phase right in hits", full["place_right"], 0.97, at_least=True),
    ]


def _show(figures: dict[str, Any], records: list[Record], console: Console) -> None:
    for generator in ("paper", "other"):
        count = sum(record["generator"] == generator for record in records)
        table = Table(title=f"{generator}: F1 of {count} runs", box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("method", "hang", "exact", "published", "slow", "exact", "published", ""):
            table.add_column(head, justify="left" if head in ("method", "") else "right")
        for row in figures["rows"]:
            if row["generator"] == generator:
                table.add_row(row["method"], *_cells(row))
        console.print(table)
    table = Table(title="delays at different places", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in (
        "place",
        *(f"{ms} ms" for ms in DELAYS_MS),
        "lengthens from",
        "MegaTrace from",
        "fixed from",
    ):
        table.add_column(head, justify="left" if head == "place" else "right")
    for place in figures["positions"]:
        times = [f"{value:.0f}" for value in place["iteration_ms"].values()]
        limits = (place[key] for key in ("lengthens_ms", "megatrace_ms", "fixed_threshold_ms"))
        table.add_row(place["place"], *times, *("–" if limit is None else str(limit) for limit in limits))
    console.print(table)
    table = Table(title="precision / recall over both thresholds", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("performance below")
    for slowdown in SLOWDOWN:
        table.add_column(f"slowdown ≥ {slowdown:.0%}", justify="right")
    cells = {(r["performance_below"], r["slowdown_from"]): r for r in figures["sweep"]}
    for performance in PERFORMANCE:
        values = [cells[(performance, slowdown)] for slowdown in SLOWDOWN]
        table.add_row(f"{performance:.0%}", *(f"{v['precision']:.2f} / {v['recall']:.2f}" for v in values))
    console.print(table)
    for miss in figures["misses"]:
        print(f"{miss['run']}\n    {miss['why']}")
    print(", ".join(f"{key} {value}" for key, value in figures["full_rule"].items()))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    cells: list[str] = []
    labels = []
    for state in ("hang", "slow"):
        part = row[state]
        published = "–" if part["published"] is None else f"{part['published']:.2f}"
        cells += [f"{part['f1']:.2f}", f"{part['f1_exact']:.2f}", published]
        if part["reproduced"] is False:
            labels.append(f"{state}: not reproduced")
    return (*cells, ", ".join(labels))


if __name__ == "__main__":
    sys.exit(main())
