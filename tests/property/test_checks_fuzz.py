"""Whatever a machine shows, cut, empty or of another version, no check crashes: it says what it could not
read."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.recorded_system import Recording
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.kinds import KINDS
from megatrace.bot.specimens.machine import machine
from megatrace.model.check import Cost, Scope
from megatrace.model.system import Why

JUNK = (
    *(
        "",
        "\n",
        "0",
        "-1",
        "nan",
        "1e999",
        "9" * 30,
        "x",
        "\ufffd\ufffd",
        "{}",
        "[]",
        "<a>",
        "a: b",
        "4:",
        "N/A",
    ),
    *("0-", "0-5-9", ",,,", "()", "\x00", "٣", "²", "1.2.3"),
)
"""What stands in files that somebody else wrote: among it digits that int() and float() refuse."""


def _damaged(draw: Random, text: str) -> str:
    kind = draw.random()
    if kind < 0.35:
        return draw.choice(JUNK)
    if kind < 0.6:
        return text[: draw.randrange(len(text) + 1)]
    lines = text.split("\n")
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(lines))
        words = lines[at].split(" ")
        words[draw.randrange(len(words))] = draw.choice(JUNK)
        lines[at] = " ".join(words)
    return "\n".join(lines)


def _damage(draw: Random, recording: Recording) -> None:
    for path in draw.sample(sorted(recording.files), min(len(recording.files), 60)):
        recording.files[path] = _damaged(draw, recording.files[path])
    for argv, ran in list(recording.commands.items()):
        if draw.random() < 0.6:
            code = draw.choice((0, 0, 0, 1))
            recording.commands[argv] = replace(ran, output=_damaged(draw, ran.output), code=code, why=None)
    for path in draw.sample(sorted(recording.files), 10):
        del recording.files[path]
        recording.refused[path] = draw.choice(list(Why))


@pytest.mark.parametrize("seed", range(12))
def test_no_check_crashes_on_a_damaged_machine(seed: int) -> None:
    draw = Random(seed)
    every = select(catalogue(), scopes=tuple(Scope), costs=tuple(Cost))
    made = machine(sorted(KINDS)[seed % len(KINDS)])
    if seed % 2:
        made.job()
    counters = Counters()
    inspect_recording(written(made), every, counters=counters)
    made.later(60)
    for _ in range(3):
        recording = written(made)
        _damage(draw, recording)
        found = inspect_recording(recording, every, counters=counters)
        assert [item.reason for item in found.results if "the check crashed" in item.reason] == []
