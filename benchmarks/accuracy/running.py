"""Runs cases and keeps what came of each, one JSON line a case, so that a long run can be taken up again.

A case that ends in an exception is a miss that says so: a benchmark that stops at its first surprise
measures nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from benchmarks.accuracy.cases import SOURCES, Case, run
from benchmarks.accuracy.scoring import decidable, diagnosed, score, seen

Record: TypeAlias = dict[str, Any]


def partial_path(seed_base: int) -> Path:
    """Where unfinished results lie: under $TMPDIR, one file a matrix."""
    return Path(tempfile.gettempdir()) / "megatrace-accuracy" / f"seed-{seed_base}.jsonl"


def score_case(case: Case) -> list[Record]:
    """One record per kind of source; none where the layout cannot have the fault."""
    begin = time.process_time()
    simulation = run(case)
    if simulation is None:
        return [{**asdict(case), "id": case.id, "source": "", "impossible": True}]
    simulated = time.process_time() - begin
    records: list[Record] = []
    for source in SOURCES:
        begin = time.process_time()
        record: Record = {
            **asdict(case),
            "id": case.id,
            "source": source,
            "ranks": simulation.scenario.world_size,
        }
        try:
            diagnosis, _ = diagnosed(seen(simulation, source), case.waited)
            told = score(diagnosis, decidable(simulation, case.waited), source)
            record.update(asdict(told), reasons=told.reasons)
        except Exception:  # noqa: BLE001  a crash of the analysis is a result of this run, not the end of the benchmark
            last = traceback.format_exc().strip().splitlines()
            crash = " | ".join(line.strip() for line in last[-3:])
            record.update(crash=crash, faults=[], wrong=[], accusations=[], reasons=[f"crashed: {crash}"])
        record["seconds"] = [round(simulated, 3), round(time.process_time() - begin, 3)]
        records.append(record)
    return records


def read_records(path: Path) -> list[Record]:
    """What an earlier run left; a last line that was cut is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Identified(Protocol):
    """Anything that one process can score alone; records carry its id."""

    @property
    def id(self) -> str:
        """What it is called on the command line."""


One = TypeVar("One", bound=Identified)


def run_all(
    cases: Iterable[One],
    path: Path,
    *,
    resume: bool,
    workers: int,
    done: Callable[[str], None],
    score: Callable[[One], list[Record]],
) -> list[Record]:
    """Scores all cases in ``workers`` processes; appends to ``path`` as they come."""
    cases = list(cases)
    records = read_records(path) if resume else []
    wanted = {case.id for case in cases}
    records = [record for record in records if record["id"] in wanted]
    known = {record["id"] for record in records}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if resume else "w", encoding="utf-8") as out:
        for case in cases:
            if case.id in known:
                done(case.id)
        for new in _results([case for case in cases if case.id not in known], workers, score):
            out.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in new)
            out.flush()
            records += new
            done(new[0]["id"])
    return records


def _results(cases: list[One], workers: int, score: Callable[[One], list[Record]]) -> Iterator[list[Record]]:
    if workers <= 1:
        yield from map(score, cases)
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a worker a core; more threads only get in each other's way
    with ProcessPoolExecutor(workers) as pool:
        waiting = [pool.submit(score, case) for case in cases]
        for future in as_completed(waiting):
            yield future.result()
