"""What-if analysis of an operation table, against the same written in pandas (in an environment of its own).

The table is simulated: 128 workers (8 stages, 16 replicas), 16 micro-batches, 16 steps, one worker slow.
Both recorded, each stage, the slowest 3 % of workers and all compute made equal. Rounds take turns; a fast
wrong answer is none, so both must come to the same figures.

pandas is no dependency: its environment is made below the temporary directory, or named by MEGATRACE_PANDAS
(a Python that has pandas 2 and pyarrow).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from benchmarks.measure import Goal, Timing, write_result
from benchmarks.optable_data import Job, operation_table
from megatrace.analysis.whatif import study
from megatrace.model.optable import OP_TYPES, OpTable
from megatrace.readers.opening import open_trace

JOB = Job(pp=8, dp=16, micro_batches=16, steps=16)
SLOW = (2, 5)
ROUNDS = 3
SCRIPT = Path(__file__).parent / "peers" / "whatif_pandas.py"
PACKAGES = ("pandas>=2,<3", "pyarrow>=15")


def written(table: OpTable, path: Path) -> None:
    """The table as the Parquet file that both read."""
    columns = {
        "step": table.step,
        "stage": table.stage,
        "dp_rank": table.replica,
        "rank": table.rank,
        "optype": pa.array([OP_TYPES[number].value for number in table.optype]).dictionary_encode(),
        "start_ts": table.start / 1e9,
        "duration": table.duration / 1e9,
        "seq_id": table.seq,
        "mc": table.chunk,
        "mb_id": table.micro_batch,
    }
    pa.parquet.write_table(pa.table(columns), path)


def python_with_pandas() -> str:
    """A Python that has pandas 2; made where there is none."""
    named = os.environ.get("MEGATRACE_PANDAS")
    if named:
        return named
    folder = Path(tempfile.gettempdir()) / "megatrace-pandas"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    known = subprocess.run([python, "-c", "import pandas, pyarrow"], capture_output=True, check=False)
    if known.returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return str(python)


def ours(path: Path) -> tuple[float, dict[str, float]]:
    """(CPU seconds, figures) of one round."""
    begin = time.process_time()
    table = open_trace([path]).operations
    assert table is not None
    result = study(table).result
    taken = time.process_time() - begin
    figures = {
        "S": result.slowdown,
        "M_W": result.slowest_share or 0.0,
        "M_S": result.last_stage_share or 0.0,
    }
    return taken, figures


def theirs(python: str, path: Path) -> dict[str, Any]:
    """One round of pandas, after one that does not count."""
    run = subprocess.run([python, SCRIPT, path, "2"], capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def main() -> int:
    """Measures, prints, writes ``results/whatif.json``; 1 where a goal is missed."""
    table, _ = operation_table(JOB, lambda _s, st, d, _m: 1.5 if (st, d) == SLOW else 1.0)
    python = python_with_pandas()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        written(table, path)
        ours(path)
        mine, other = [], []
        for _ in range(ROUNDS):
            taken, figures = ours(path)
            answer = theirs(python, path)
            mine.append(taken)
            other.append(float(answer["seconds"][-1]))
            for name, value in figures.items():
                if abs(value - answer["figures"][name]) > 1e-4:
                    raise SystemExit(f"error: {name} is {value} here and {answer['figures'][name]} in pandas")
    timing = {"ours": Timing(tuple(mine)), "pandas": Timing(tuple(other))}
    ratio = timing["pandas"].median / timing["ours"].median
    goals = [Goal("pandas / ours, CPU time from file to figures", ratio, 5, at_least=True)]
    for name, taken_all in timing.items():
        print(f"{name:8} {taken_all.median * 1e3:9.1f} ms CPU for {len(table):,} operations")
    for goal in goals:
        print(goal.line())
    content = {
        "operations": len(table),
        "job": f"{JOB.pp} stages × {JOB.dp} replicas × {JOB.micro_batches} micro-batches × {JOB.steps} steps",
        "pandas": answer["pandas"],
        "figures": figures,
        "cpu": {name: taken_all.as_json() for name, taken_all in timing.items()},
    }
    print(f"wrote {write_result('whatif', content, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
