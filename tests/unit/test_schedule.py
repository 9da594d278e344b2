"""The schedules against tables written by hand from the public descriptions (tests/golden/schedule)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Action, Phase, Schedule, Step

TABLES = sorted((Path(__file__).parent.parent / "golden" / "schedule").glob("*.txt"))
TRANSFER = {
    Action.SEND_FORWARD: "SF{}>{}",
    Action.RECV_FORWARD: "RF{}<{}",
    Action.SEND_BACKWARD: "SB{}>{}",
    Action.RECV_BACKWARD: "RB{}<{}",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A golden file: the schedule it is about, the tasks and (some) programs by stage."""

    schedule: Schedule
    tasks: dict[int, str]
    programs: dict[int, str]


def read(path: Path) -> Table:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    kind, *sizes = lines[0].removeprefix("schedule: ").split()
    size = {name: int(value) for name, value in (item.split("=") for item in sizes)}
    schedule = Schedule(ScheduleKind(kind), size["pp"], size["m"], size.get("vpp", 1), size.get("group"))
    rows = [re.fullmatch(r"(tasks|program) (\d+): (.*)", line) for line in lines[1:]]
    assert all(rows), f"{path}: a line is neither tasks nor program"
    found = {(row[1], int(row[2])): row[3] for row in rows if row}
    return Table(
        schedule,
        {stage: text for (what, stage), text in found.items() if what == "tasks"},
        {stage: text for (what, stage), text in found.items() if what == "program"},
    )


def label(schedule: Schedule, micro_batch: int, chunk: int) -> str:
    return f"{micro_batch}.{chunk}" if schedule.vpp > 1 else str(micro_batch)


def step_text(schedule: Schedule, step: Step) -> str:
    what = label(schedule, step.micro_batch, step.chunk)
    if step.action.is_compute:
        return ("F" if step.action is Action.FORWARD else "B") + what
    return TRANSFER[step.action].format(what, step.peer)


def test_there_are_tables_of_every_kind() -> None:
    kinds = {read(path).schedule.kind for path in TABLES}
    assert kinds == set(ScheduleKind)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tasks(path: Path) -> None:
    table = read(path)
    assert set(table.tasks) == set(range(table.schedule.pp))
    for stage, wanted in table.tasks.items():
        tasks = table.schedule.tasks(stage)
        letter = {Phase.FORWARD: "F", Phase.BACKWARD: "B"}
        text = " ".join(letter[t.phase] + label(table.schedule, t.micro_batch, t.chunk) for t in tasks)
        assert text == wanted, f"stage {stage}"


@pytest.mark.parametrize("path", [path for path in TABLES if read(path).programs], ids=lambda path: path.stem)
def test_programs(path: Path) -> None:
    table = read(path)
    for stage, wanted in table.programs.items():
        batches = groupby(table.schedule.program(stage), key=lambda step: step.batch)
        groups = [[step_text(table.schedule, step) for step in steps] for _, steps in batches]
        text = " | ".join(" + ".join(group) for group in groups)
        assert text == wanted, f"stage {stage}"


def test_interleaved_with_one_chunk_is_plain() -> None:
    one, plain = Schedule(ScheduleKind.INTERLEAVED, 4, 6), Schedule(ScheduleKind.ONE_F_ONE_B, 4, 6)
    assert [one.program(stage) for stage in range(4)] == [plain.program(stage) for stage in range(4)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((ScheduleKind.ONE_F_ONE_B, 0, 4), "must be at least 1"),
        ((ScheduleKind.GPIPE, 4, 0), "must be at least 1"),
        ((ScheduleKind.ONE_F_ONE_B, 4, 4, 2), "1f1b has one model chunk a stage, not 2"),
        ((ScheduleKind.INTERLEAVED, 1, 4, 2), "at least two stages"),
        ((ScheduleKind.INTERLEAVED, 4, 3, 2), "needs groups of pp 4 to 3 micro-batches, not 4"),
        ((ScheduleKind.INTERLEAVED, 4, 8, 2, 2), "needs groups of pp 4 to 8 micro-batches, not 2"),
        ((ScheduleKind.INTERLEAVED, 4, 6, 2), "6 micro-batches in groups of 4 leave 2, fewer than pp 4"),
    ],
)
def test_impossible_schedules_are_refused(arguments: tuple[ScheduleKind, int, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Schedule(*arguments)


def test_a_stage_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"stage 4 is outside 0\.\.3"):
        Schedule(ScheduleKind.ONE_F_ONE_B, 4, 4).warm_up(4)
