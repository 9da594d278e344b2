"""`python -m benchmarks.accuracy`: scores the fault matrix and writes benchmarks/results/accuracy.json.

Exit code 0 where every goal is met, 1 where not, 2 for wrong usage. A partial run (`--filter`, `--shard`)
prints its table and writes no result.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from benchmarks.accuracy.cases import BENCH_SEED, SOURCES, Case, matrix, run
from benchmarks.accuracy.running import Record, partial_path, run_all, score_case
from benchmarks.accuracy.scoring import decidable, diagnosed, score, seen
from benchmarks.accuracy.tables import Row, goals, kind_of, missed, summed
from benchmarks.measure import write_result
from megatrace.errors import UsageError
from megatrace.reports import ReportOptions
from megatrace.reports.terminal import report
from megatrace.simulator import Truth

COMMAND = "python -m benchmarks.accuracy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the matrix, or one case of it."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        if options.case:
            return _one(Case.parse(options.case), options.source, options.verbose, console)
        cases = _chosen(matrix(options.seed_base), options.filter, options.shard)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(case.id for case in cases))
        return 0
    begin = time.monotonic()
    path = partial_path(options.seed_base)
    with progress(len(cases)) as done:
        records = run_all(
            cases, path, resume=options.resume, workers=options.workers, done=done, score=score_case
        )
    records.sort(key=lambda record: (record["seed"], SOURCES.index(record["source"] or "ring")))
    _show(records, console, time.monotonic() - begin)
    if options.filter or options.shard:
        return 0
    figures = _figures(records)
    print(f"\nwritten: {write_result('accuracy', figures, goals(records))}")
    path.unlink()
    return 0 if all(goal.met for goal in goals(records)) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run was stopped")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--seed-base", type=int, default=BENCH_SEED, help="first seed of the matrix")
    parser.add_argument(
        "--shard", metavar="I/N", help="only every N-th case, beginning with the I-th (from 0)"
    )
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only these: fault=slow_gpu, layout=gpipe, kind=hang; several may be given",
    )
    parser.add_argument("--list", action="store_true", help="print the ids of the cases and stop")
    parser.add_argument("--case", metavar="ID", help="one case: FAULT:LAYOUT:SEED")
    parser.add_argument("--source", choices=SOURCES, help="with --case: only as this source sees it")
    parser.add_argument("--verbose", action="store_true", help="with --case: also truth and report")
    return parser


def _chosen(cases: list[Case], filters: Sequence[str], shard: str | None) -> list[Case]:
    for text in filters:
        key, _, value = text.partition("=")
        if key not in ("fault", "layout", "kind") or not value:
            raise UsageError(f"--filter {text}: give fault=…, layout=… or kind=…")
        cases = [case for case in cases if _trait(case, key) in value.split(",")]
    if shard is not None:
        index, _, number = shard.partition("/")
        if not (index.isdigit() and number.isdigit() and int(index) < int(number)):
            raise UsageError(f"--shard {shard}: give I/N with I from 0 to N − 1")
        cases = cases[int(index) :: int(number)]
    if not cases:
        raise UsageError("no case is left: see --list")
    return cases


def _trait(case: Case, key: str) -> str:
    if key == "kind":
        return kind_of(case.fault)
    return case.fault if key == "fault" else case.layout


@contextmanager
def progress(total: int) -> Iterator[_Done]:
    """A bar on a terminal, nothing in a pipe; call what it gives with the name of each thing done."""
    if not sys.stderr.isatty():
        yield _Done(None)
        return
    columns = (
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bars.add_task("", total=total)
        yield _Done(bars)


class _Done:
    """Called with the id of each case that is done."""

    def __init__(self, bars: Progress | None) -> None:
        self.bars = bars

    def __call__(self, case: str) -> None:
        if self.bars is not None:
            self.bars.update(self.bars.task_ids[0], advance=1, description=case)


def _one(case: Case, source: str | None, verbose: bool, console: Console) -> int:
    simulation = run(case)
    if simulation is None:
        raise UsageError(f"--case {case.id}: this layout cannot have this fault")
    truth = decidable(simulation, case.waited)
    if verbose:
        _tell_truth(truth, console)
    wrong = False
    for name in [source] if source else SOURCES:
        diagnosis, now = diagnosed(seen(simulation, name), case.waited)
        said = score(diagnosis, truth, name)
        wrong |= bool(said.reasons)
        console.rule(
            f"{name}{' (looked at ten minutes later)' if now else ''}: {'WRONG' if said.reasons else 'right'}"
        )
        if verbose:
            print(report(diagnosis, ReportOptions(verbose=True, now=now)))
        for fault in said.faults:
            state = "hit" if fault.hit else "miss" if fault.positive else "absorbed by bubbles"
            print(f"{fault.fault}: {state}{'; ' + fault.why if fault.why else ''}")
        for text in said.wrong:
            print(f"fits no fault{' and accuses the innocent' if text in said.accusations else ''}: {text}")
    return int(wrong)


def _tell_truth(truth: Truth, console: Console) -> None:
    console.rule(f"truth: {truth.verdict.value}")
    for fault in truth.faults:
        print(f"{fault.fault}: {fault.kind.value} of ranks {list(fault.ranks)}, positive {fault.positive}")
        print(f"  iterations {fault.first_iteration}–{fault.last_iteration}, slowdown {fault.slowdown}")
        if fault.affected:
            print(f"  affected {list(fault.affected)}")
        print(f"  stage {fault.stage}, micro-batch {fault.micro_batch}, {fault.phase}, {fault.op}")
        for source, answer in fault.answers.items():
            kinds = "/".join(kind.value for kind in answer.kinds)
            also = ", or cannot tell" if answer.undecidable else ""
            print(f"  right from {source}: {kinds} of ranks {list(answer.ranks)}{also}")
    with_ms = ", ".join(f"{value:.0f}" for value in truth.iteration_ms)
    print(f"iterations, ms: {with_ms}")
    if truth.counterfactual_ms is not None:
        print(f"without faults: {', '.join(f'{value:.0f}' for value in truth.counterfactual_ms)}")


def _show(records: list[Record], console: Console, seconds: float) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("source")
    heads = (
        "runs",
        "positive",
        "hits",
        "ambiguous",
        "wrong",
        "accused",
        "cannot tell",
        "precision",
        "recall",
        "F1",
    )
    for head in (*heads, "located"):
        table.add_column(head, justify="right")
    for rows, last in ((summed(records, str), True), (summed(records, kind_of), False)):
        for (fault, source), row in sorted(rows.items(), key=lambda item: SOURCES.index(item[0][1])):
            table.add_row(fault if last else f"all {fault}", source, *_cells(row))
        table.add_section()
    console.print(table)
    bad = [(record, reason) for record in records for reason in missed(record)]
    for record, reason in bad:
        print(f"{COMMAND} --case {record['id']} --source {record['source']} --verbose\n    {reason}")
    runs = sum(not record.get("impossible") for record in records)
    jobs = len({record["id"] for record in records})
    print(f"\n{runs} runs of {jobs} jobs in {seconds:.0f} s, {len(bad)} misses")
    for goal in goals(records):
        print(goal.line())


def _cells(row: Row) -> tuple[str, ...]:
    located = f"{row.located}/{row.locatable}" if row.locatable else "–"
    counts = (row.runs, row.positives, row.hits, f"{row.ambiguous_share:.0%}", row.wrong, row.accusations)
    ratios = (f"{value:.2f}" for value in (row.precision, row.recall, row.f1))
    return (*map(str, counts), str(row.undecided), *ratios, located)


def _figures(records: list[Record]) -> dict[str, object]:
    tables = {
        name: [{"fault": fault, "source": source, **row.as_json()} for (fault, source), row in rows.items()]
        for name, rows in (("rows", summed(records, str)), ("totals", summed(records, kind_of)))
    }
    misses = [
        {
            "case": record["id"],
            "source": record["source"],
            "reason": reason,
            "command": f"{COMMAND} --case {record['id']} --source {record['source']} --verbose",
        }
        for record in records
        for reason in missed(record)
    ]
    runs = sum(not record.get("impossible") for record in records)
    return {"runs": runs, "jobs": len({record["id"] for record in records}), **tables, "misses": misses}


if __name__ == "__main__":
    sys.exit(main())
