"""How much of what really fails is found: published incidents by frequency, each on a machine that has it.

Every row of ``coverage.yaml`` is put on a healthy machine (``coverage_faults``), the machine is looked at as
``megatrace inspect`` does, and three things are asked apart: was it found, was the device named, was the
first action the right one. What only a job's own logs can show goes through ``megatrace diagnose``; what
nothing can show stays in the denominator. Beside it the regression matrix: every ★ check on the faults with
which it was developed, and silence on healthy machines that were rebooted, upgraded, maintained.

    python -m benchmarks.coverage [--rows NAME …] [--brief] [--no-matrix]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import coverage_around, coverage_faults
from benchmarks.measure import Goal, write_result
from megatrace.bot.catalogue import CheckInfo, select
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.solo import job as solo_job
from megatrace.bot.specimens import faults, faults_gpu, faults_host, faults_network
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import machine
from megatrace.bot.specimens.trying import try_fault, try_healthy
from megatrace.commands.pipeline import Declared, diagnose_paths
from megatrace.model.check import Cost, Inspection, Outcome, Scope, Step
from megatrace.model.finding import Diagnosis, Finding, Severity
from megatrace.simulator import named_scenario, simulate
from megatrace.simulator.emit import write_text

ROWS = Path(__file__).with_suffix(".yaml")
KINDS = ("h100-ib", "h100-roce")
"""A fault of a node is put on both; it counts as found only where it is found on both."""
OR = " or "
"""Between names of one device: a port is known by its RDMA device and by its interface."""
GOAL = 0.95
HEALTHY = 204
"""Healthy machines: every type of machine and every happening some times."""
SCENARIO = "stuck-host"
MATRIX_MODULES = (faults_gpu, faults_host, faults_network)


@dataclass(frozen=True, slots=True)
class Scored:
    """One row: what was asked, and in words what was said. ``through`` is the command that found it."""

    row: Mapping[str, Any]
    found: bool
    located: bool
    acted: bool
    said: str

    @property
    def weight(self) -> int:
        """How often it happened."""
        return int(self.row["weight"])


def score(row: Mapping[str, Any]) -> Scored:
    """Puts one row on a machine and looks."""
    through = row.get("through", "inspect")
    if row.get("covered") is False:
        return Scored(row, False, False, False, "nothing that is run on a machine in service can show it")
    if through == "diagnose":
        return _diagnosed(row)
    tries = [_inspected(row, *item) for item in _looks(row)]
    worst = min(tries, key=lambda item: (item.found, item.located, item.acted))
    return Scored(
        row,
        all(t.found for t in tries),
        all(t.located for t in tries),
        all(t.acted for t in tries),
        worst.said,
    )


def _looks(row: Mapping[str, Any]) -> list[tuple[Inspection, str]]:
    """The machine after the fault, looked at as often as it takes, and what has to be named."""
    fault = row["fault"]
    if row["sku"] in ("bmc", "leaf", "scheduler"):
        recording, named = coverage_around.other_machine(fault["name"], fault)
        scope = {"bmc": Scope.BMC, "leaf": Scope.SWITCH, "scheduler": Scope.SCHEDULER}[row["sku"]]
        wanted, template = select(catalogue(), scopes=(scope,)), {"switch.address": "leaf4"}
        return [(inspect_recording(recording, wanted, template=template), named)]
    found = []
    for kind in KINDS:
        made = machine(kind)
        if fault["name"] == "solo_hang":
            recording = written(made)
            coverage_faults.solo_hang(recording, fault["gpu"], str(Path(solo_job.__file__).resolve()))
            alone = select(catalogue(), costs=(Cost.INTRUSIVE,), names=("SOLO-01",))
            asked = {"suspect.gpu": str(fault["gpu"])}
            found.append((inspect_recording(recording, alone, template=asked), made.gpu_places[fault["gpu"]]))
            continue
        made.job()
        counters = Counters()
        inspect_recording(written(made), counters=counters)
        made.later(60)
        named = coverage_faults.FAULTS[fault["name"]](made, fault)
        for seconds in (0.0, 60.0, 150.0):  # a level must last some minutes before it is believed
            made.later(seconds)
            last = inspect_recording(written(made), counters=counters)
        found.append((last, named))
    return found


def _inspected(row: Mapping[str, Any], inspection: Inspection, named: str) -> Scored:
    counted = [
        (result.check, finding, step)
        for result, finding, step in inspection.troubles
        if not result.observed and result.outcome in (Outcome.WARN, Outcome.FAIL)
    ]
    mine = [(finding, step) for check, finding, step in counted if check in row["found"]]
    roots = [item for item in counted if not item[1].caused_by]
    first = roots[0][2] if roots else None
    said = (
        "; ".join(f"{check} {finding.summary} → {step.words}" for check, finding, step in counted[:3])
        or "nothing"
    )
    return Scored(
        row,
        bool(mine),
        any(_names(finding) & set(named.split(OR)) for finding, _ in mine),
        _right(first, row),
        said,
    )


def _right(first: Step | None, row: Mapping[str, Any]) -> bool:
    return first is not None and first.value in row["action"]


def _names(finding: Finding) -> set[str]:
    """The words of all devices and ends of links ("disk nvme2", "leaf4/swp12"), the node where it is all."""
    who = finding.culprits
    ends = [end.device or "" for link in who.links for end in (link.src, link.dst)]
    devices = [item.device or "" for item in who.devices]
    words = {word for name in (*devices, *ends) for word in (name, *name.replace("/", " ").split())}
    return words | (set(who.nodes) if not any(devices) else set())


def _diagnosed(row: Mapping[str, Any]) -> Scored:
    with tempfile.TemporaryDirectory() as folder:
        rank, diagnosis = _logs(row["fault"]["name"], Path(folder))
    serious = [item for item in diagnosis.findings if item.severity <= Severity.P2]
    mine = [item for item in serious if item.kind.value in row["found"]]
    first = serious[0] if serious else None
    # The finding's remedy must send nobody to the hardware: the job is restarted, or its program mended.
    acted = first is not None and not any(
        word in first.remedy.lower() for word in ("rma", "power-cycle", "replace the")
    )
    located = any(rank in item.culprits.ranks for item in mine)
    said = f"{diagnosis.verdict.value}: {diagnosis.headline}"
    return Scored(row, bool(mine), located, acted and bool(mine), said)


def _logs(name: str, folder: Path) -> tuple[int, Diagnosis]:
    if name == "missing_call":
        run = simulate(named_scenario(SCENARIO))
        write_text(run.trace, folder)
        return 13, diagnose_paths([folder], Declared())
    log = folder / "train.log"
    if name == "traceback":
        log.write_text(coverage_faults.TRACEBACK)
        return 13, diagnose_paths([log], Declared())
    log.write_text("".join(coverage_faults.WATCHDOG.format(rank=rank) for rank in range(16) if rank != 11))
    return 11, diagnose_paths([log], Declared())


# ---- the matrix


def matrix(seeds: int = 1) -> dict[str, dict[str, int]]:
    """Per ★ check: faults, machines tried, found, located; nodes over every type that can have the fault."""
    must = {item.id: item for item in select(catalogue()) if item.must}
    rows: dict[str, dict[str, int]] = defaultdict(lambda: {"faults": 0, "tried": 0, "found": 0, "located": 0})
    for fault in faults.FAULTS.values():
        if fault.check not in must:
            continue
        rows[fault.check]["faults"] += 1
        for kind in fault.kinds:
            for seed in range(seeds):
                tried = try_fault(fault, kind, seed, wanted=_only(must[fault.check]))
                rows[fault.check]["tried"] += 1
                rows[fault.check]["found"] += tried.found
                rows[fault.check]["located"] += tried.located
    for item in coverage_around.faults():
        found, located = item.tried()
        row = rows[item.check]
        row["faults"] += 1
        row["tried"] += 1
        row["found"] += found
        row["located"] += located
    return dict(sorted(rows.items()))


def _only(item: CheckInfo) -> tuple[CheckInfo, ...]:
    return (item,)


def healthy(count: int = HEALTHY) -> tuple[Counter[str], list[str]]:
    """How many healthy machines there were of each type and with each peculiarity, and every alarm on one."""
    kinds: Counter[str] = Counter()
    alarms: list[str] = []
    for seed in range(count):
        words, said = try_healthy(seed)
        machine_type, *happened = words.split(", ")
        kinds.update([machine_type, *happened])
        alarms += [f"{words}: {item}" for item in said]
    return kinds, alarms


# ---- telling


def totals(scored: Sequence[Scored], source: str) -> dict[str, float]:
    """Shares by weight, of one source."""
    mine = [item for item in scored if item.row["source"] == source]
    whole = sum(item.weight for item in mine) or 1

    def share(kept: Sequence[Scored]) -> float:
        return round(sum(item.weight for item in kept) / whole, 4)

    return {
        "found": share([item for item in mine if item.found]),
        "found_by_inspect": share(
            [item for item in mine if item.found and item.row.get("through") != "diagnose"]
        ),
        "located": share([item for item in mine if item.located]),
        "right_action": share([item for item in mine if item.acted]),
    }


def shown(item: Scored) -> str:
    """One row for the eye."""
    marks = "".join(
        mark if yes else "·" for mark, yes in zip("FLA", (item.found, item.located, item.acted), strict=True)
    )
    return (
        f"{marks}  {item.weight:>3}  {item.row['id']:<18}{item.row['says']}\n         said: {item.said[:200]}"
    )


def _row(item: Scored) -> dict[str, Any]:
    keys = ("id", "source", "cause", "weight", "says")
    told = {"found": item.found, "located": item.located, "right_action": item.acted, "said": item.said[:300]}
    return {key: item.row[key] for key in keys} | told


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the goal is met and healthy machines gave no alarm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="*", default=[], help="ids of rows, all without")
    parser.add_argument("--brief", action="store_true", help="only rows that lack something")
    parser.add_argument("--no-matrix", action="store_true", help="only the incidents")
    given = parser.parse_args(arguments)
    table = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    rows = [row for row in table["rows"] if not given.rows or row["id"] in given.rows]
    scored = [score(row) for row in rows]
    print("F found  L located  A right first action; weight; incident")
    for item in scored:
        if not given.brief or not (item.found and item.located and item.acted):
            print(shown(item))
    figures: dict[str, Any] = {}
    for source, about in table["sources"].items():
        figures[source] = totals(scored, source)
        print(f"\n{about['title']} ({about['population']})")
        for name, share in figures[source].items():
            print(f"  {name:<18}{share:.1%}")
    figures["rows"] = [_row(item) for item in scored]
    figures["uncovered"] = {item.row["id"]: item.weight for item in scored if not item.found}
    print(
        "\nnot found: "
        + (", ".join(f"{name} ({weight})" for name, weight in figures["uncovered"].items()) or "none")
    )
    if given.rows or given.no_matrix:
        return 0 if given.rows or figures["llama3"]["found"] >= GOAL else 1
    return _with_matrix(figures)


def _with_matrix(figures: dict[str, Any]) -> int:
    rows = matrix()
    print("\n★ check    faults  tried  found  located")
    for name, row in rows.items():
        print(f"{name:<10}{row['faults']:>8}{row['tried']:>7}{row['found']:>7}{row['located']:>9}")
    happened, alarms = healthy()
    print(f"\nhealthy: {HEALTHY} machines, {len(alarms)} false alarms")
    for name, count in happened.most_common():
        print(f"  {count:>4}  {name}")
    for alarm in alarms:
        print(f"  ALARM {alarm}")
    # Each healthy machine lives through one happening: as much as a node sees in a day at the very most.
    per_day = len(alarms) / HEALTHY
    print(f"false alarms per node-day (one happening a node and day): {per_day:.4f}")
    tried, found, located = (sum(row[key] for row in rows.values()) for key in ("tried", "found", "located"))
    figures |= {
        "matrix": rows,
        "healthy": HEALTHY,
        "peculiarities": dict(happened),
        "false_alarms_per_node_day": per_day,
    }
    goals = [
        Goal("share of incidents found, by weight", figures["llama3"]["found"], GOAL, at_least=True),
        Goal("share of the matrix found", found / tried, 1.0, at_least=True),
        Goal("share of the matrix located", located / tried, 1.0, at_least=True),
        Goal("false alarms per node-day", per_day, 0.0),
    ]
    print(f"wrote {write_result('coverage', figures, goals)}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
