"""Watching a machine: when which check runs, what the kernel's events bring forward, and what is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.bot.catalogue import CheckInfo, select
from megatrace.bot.check_runner import WorkerRunner
from megatrace.bot.inspecting import catalogue
from megatrace.bot.kernel_events import LINK_CHECKS, LOG_CHECKS, KernelLines, LinkChanges
from megatrace.bot.recorded_system import RecordedSystem, Recording
from megatrace.bot.watch_changes import Change, What, changes
from megatrace.bot.watching import Watch, first_delay
from megatrace.clock import FakeClock
from megatrace.commands.main import main
from megatrace.model.check import CheckResult, Outcome, Step
from megatrace.model.finding import Finding, Kind, Severity
from megatrace.model.system import System


def result(
    check: str, outcome: Outcome = Outcome.OK, severity: Severity | None = None, key: str = ""
) -> CheckResult:
    if severity is None:
        return CheckResult(check, outcome)
    finding = Finding(Kind.HARDWARE, severity, f"{check} is sick", fingerprint=key or check)
    return CheckResult(check, outcome, findings=(finding,), steps=(Step.REBOOT,))


def told(found: Iterable[Change]) -> list[tuple[What, str]]:
    return [(change.what, change.item.finding.fingerprint) for change in found]


# ---- what changed


def test_a_finding_is_told_once_while_it_stays() -> None:
    sick = result("A", Outcome.FAIL, Severity.P1)
    known, first = changes({}, [sick], 1)
    assert told(first) == [(What.NEW, "A")]
    known, second = changes(known, [sick], 2)
    assert told(second) == []
    assert known["A"].since == 1


def test_worse_is_told_and_better_is_not() -> None:
    known, _ = changes({}, [result("A", Outcome.WARN, Severity.P2)], 1)
    known, found = changes(known, [result("A", Outcome.FAIL, Severity.P0)], 2)
    assert told(found) == [(What.WORSE, "A")]
    assert told(changes(known, [result("A", Outcome.WARN, Severity.P3)], 3)[1]) == []


def test_gone_needs_a_look_that_saw_it_well() -> None:
    known, _ = changes({}, [result("A", Outcome.FAIL, Severity.P1, "A:1"), result("B")], 1)
    for outcome in (Outcome.UNKNOWN, Outcome.SKIPPED):
        known, found = changes(known, [result("A", outcome)], 2)
        assert told(found) == []
    known, found = changes(known, [result("A", Outcome.FAIL, Severity.P1, "A:2")], 3)
    assert told(found) == [(What.NEW, "A:2"), (What.GONE, "A:1")]
    assert told(changes(known, [result("B")], 4)[1]) == []
    assert told(changes(known, [result("A")], 5)[1]) == [(What.GONE, "A:2")]


# ---- when what runs


class Scripted(WorkerRunner):
    """Notes which checks are asked for; answers from a table."""

    def __init__(self, clock: FakeClock, answers: Callable[[str, int], CheckResult]) -> None:
        super().__init__("none")
        self.asked: list[tuple[float, list[str]]] = []
        self._clock, self._answers = clock, answers

    def round(self, infos: Iterable[CheckInfo], system: System) -> list[CheckResult]:
        names = [info.id for info in infos]
        self.asked.append((self._clock.monotonic() / 1e9, names))
        return [self._answers(name, len(self.asked)) for name in names]


def watch(
    names: Sequence[str],
    answers: Callable[[str, int], CheckResult] = lambda name, _: result(name),
    sources: Sequence[Scheduled] = (),
) -> tuple[Watch, Scripted, list[Change]]:
    clock = FakeClock(10**18)
    runner = Scripted(clock, answers)
    found: list[Change] = []
    infos = [item for name in names for item in select(catalogue(), names=(name,))]
    made = Watch(infos, runner, RecordedSystem(Recording()), clock, found.append, sources)
    return made, runner, found


class Scheduled:
    """A source that is always ready and gives what it was told, then ends the watch."""

    def __init__(self, *given: tuple[str, ...]) -> None:
        self._given = list(given)
        self._ends = os.pipe()
        os.write(self._ends[1], b"x")

    @property
    def ended(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._ends[0]

    def take(self) -> tuple[str, ...]:
        if not self._given:
            raise KeyboardInterrupt
        return self._given.pop(0)

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


def test_every_check_runs_at_once_and_then_in_its_period() -> None:
    made, runner, _ = watch(["GPU-05", "IB-03"])
    periods = {info.id: info.period_s for info in made.infos}
    assert periods == {"GPU-05": 30, "IB-03": 60}
    made.run(125)
    assert runner.asked == [
        (0, ["GPU-05", "IB-03"]),
        (30, ["GPU-05"]),
        (60, ["GPU-05", "IB-03"]),
        (90, ["GPU-05"]),
        (120, ["GPU-05", "IB-03"]),
    ]


def test_slow_checks_are_spread_over_their_period_by_the_name_of_the_node() -> None:
    (info,) = select(catalogue(), names=("CPU-01",))
    delays = [first_delay(info, f"node{number}") for number in range(200)]
    assert min(delays) >= 30
    assert max(delays) <= info.period_s
    assert len(set(delays)) > 190
    assert 0.3 < sum(delays) / len(delays) / info.period_s < 0.7
    assert first_delay(replace(info, period_s=30), "node1") == 30


def test_an_event_runs_what_it_concerns_without_waiting_and_once_for_many_lines() -> None:
    source = Scheduled(LOG_CHECKS, LOG_CHECKS, LINK_CHECKS, ())
    made, runner, _ = watch(["GPU-05", "IB-01", "CPU-01"], sources=(source,))
    with pytest.raises(KeyboardInterrupt):
        made.run()
    source.close()
    assert [names for _, names in runner.asked] == [["GPU-05", "IB-01", "CPU-01"], ["GPU-05"], ["IB-01"]]


def test_after_an_event_what_needs_no_driver_is_told_before_the_driver_is_asked() -> None:
    source = Scheduled(LOG_CHECKS, ())
    made, runner, _ = watch(["GPU-02", "GPU-05", "DSK-02"], sources=(source,))
    with pytest.raises(KeyboardInterrupt):
        made.run()
    source.close()
    assert [names for _, names in runner.asked][1:] == [["GPU-05", "DSK-02"], ["GPU-02"]]


def test_events_come_one_after_the_other_and_settle_first() -> None:
    source = Scheduled(LOG_CHECKS, LOG_CHECKS, LINK_CHECKS, ())
    made, runner, _ = watch(["GPU-05", "IB-01", "CPU-01"], sources=(source,))
    with pytest.raises(KeyboardInterrupt):
        made.run()
    source.close()
    assert [time for time, _ in runner.asked] == [0, 0.5, 1.0]


def test_what_an_event_finds_is_told_and_a_cause_of_an_earlier_round_still_folds() -> None:
    def answers(name: str, number: int) -> CheckResult:
        if name == "GPU-01" or number > 1:
            return result(name, Outcome.FAIL, Severity.P0)
        return result(name)

    source = Scheduled(("PCI-04",), ())
    made, _, found = watch(["GPU-01", "PCI-04"], answers, (source,))
    with pytest.raises(KeyboardInterrupt):
        made.run()
    source.close()
    assert told(found) == [(What.NEW, "GPU-01"), (What.NEW, "PCI-04")]


# ---- events


def test_of_the_kernels_lines_only_those_that_a_recogniser_knows_are_events() -> None:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    lines = KernelLines(ends[0])
    assert lines.take() == ()
    os.write(ends[1], b"6,1,5,-;usb 1-1: new high-speed USB device number 2 using xhci_hcd\n")
    assert lines.take() == ()
    os.write(ends[1], b"4,2,6,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n")
    assert lines.take() == LOG_CHECKS
    assert lines.take() == ()
    lines.close()
    os.close(ends[1])


def test_links_are_listened_to_without_privileges() -> None:
    links = LinkChanges()
    assert links.take() == ()
    links.close()


def test_every_check_that_an_event_brings_forward_is_in_the_catalogue() -> None:
    assert {*LOG_CHECKS, *LINK_CHECKS} <= {item.id for item in catalogue()}


# ---- the whole


def test_a_watch_tells_changes_as_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = tmp_path / "host"
    (host / "dev").mkdir(parents=True)
    (host / "proc").mkdir()
    (host / "proc" / "uptime").write_text("100.0 1\n", "utf-8")
    (host / "dev" / "kmsg").write_text(
        "4,2,90000000,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n", "utf-8"
    )
    command = ["inspect", "--watch", "--for", "0.1", "--host", str(host), "--check", "GPU-05"]
    state = ["--state", str(tmp_path / "state.json")]
    assert main([*command, *state, "--format", "json"]) == 10
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert (said["what"], said["check"], said["step"]) == ("new", "GPU-05", "A6")
    assert said["finding"]["culprits"]["devices"][0]["device"] == "0000:1b:00.0"
    assert main([*command, *state]) == 10
    assert capsys.readouterr().out.startswith("new      P0 GPU-05  GPU 0000:1b:00: Xid 79")
    assert main([*command, "--system", str(host)]) == 2
