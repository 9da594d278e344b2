"""Every check that must be there finds its faults on made machines, names the device, and is silent on
healthy ones."""

from __future__ import annotations

from collections import Counter

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.specimens import faults, faults_gpu, faults_host, faults_network
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.kinds import KINDS
from megatrace.bot.specimens.machine import machine
from megatrace.bot.specimens.trying import try_fault, try_healthy
from megatrace.model.check import Outcome
from megatrace.model.finding import Severity

NAMES = sorted(faults.FAULTS)
MODULES = (faults_gpu, faults_host, faults_network)
ELSEWHERE = {"VER-01", "VER-02", "IB-10", "OS-06"}
"""★ checks of nodes with faults of their own elsewhere: versions and settings need a template, an unreachable
node cannot be looked at, and bandwidth needs a partner."""


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_found_and_its_device_is_named(name: str) -> None:
    fault = faults.FAULTS[name]
    kind = fault.kinds[NAMES.index(name) % len(fault.kinds)]
    tried = try_fault(fault, kind, wanted=select(catalogue(), names=(fault.check,)))
    assert tried.before.exit_code == 0, [finding.summary for _, finding, _ in tried.before.troubles]
    assert tried.found, [
        (item.outcome, item.reason) for item in tried.after.results if item.check == fault.check
    ]
    assert tried.located, (tried.device, [finding.summary for finding in tried.mine])


def test_every_check_that_must_be_there_has_two_faults() -> None:
    counts = Counter(fault.check for fault in faults.FAULTS.values())
    must = {item.id for item in select(catalogue()) if item.must} - ELSEWHERE
    assert {name for name in must if counts[name] < 2} == set()


@pytest.mark.parametrize("seed", range(16))
def test_a_healthy_machine_gives_no_alarm_however_it_looks(seed: int) -> None:
    # Seeds far apart, so that every type and every happening is among them.
    words, alarms = try_healthy(seed * 19)
    assert alarms == (), words


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_healthy_machine_is_looked_at_by_every_check_that_can(kind: str) -> None:
    made = machine(kind)
    found = inspect_recording(written(made))
    assert found.exit_code == 0
    assert found.of(Outcome.UNKNOWN) == ()
    skipped = {item.check for item in found.of(Outcome.SKIPPED)}
    must = {item.id for item in select(catalogue()) if item.must and item.id.startswith("GPU")}
    unsupported = {"GPU-04"} if kind == "a100-ib" else set()
    assert skipped & must == (must if kind == "cpu-ib" else unsupported)


def test_a_second_lost_gpu_is_a_second_finding() -> None:
    tried = try_fault(faults.FAULTS["xid_second_lost"], "h100-ib")
    assert [finding.severity for finding in tried.mine] == [Severity.P0, Severity.P0]
    assert len({finding.fingerprint for finding in tried.mine}) == 2


def test_one_lost_gpu_is_one_finding_and_what_follows_are_notes() -> None:
    tried = try_fault(faults.FAULTS["gpu_lost"], "h100-ib")
    assert tried.others == ()
    follower = next(finding for result, finding, _ in tried.after.troubles if result.check == "GPU-05")
    (root,) = tried.mine
    assert follower.caused_by == (root.fingerprint,)
    assert any("Xid 79" in item.text for item in root.evidence)


def test_beside_a_lost_gpu_the_others_are_still_looked_at() -> None:
    tried = try_fault(faults.FAULTS["gpu_lost"], "h100-ib")
    unknown = {item.check for item in tried.after.of(Outcome.UNKNOWN)}
    assert not [name for name in unknown if name.startswith("GPU")]
    (temperature,) = [item for item in tried.after.results if item.check == "GPU-13"]
    assert temperature.outcome is Outcome.OK


def test_from_a_container_nobody_is_called_dead() -> None:
    made = machine("h100-ib")
    made.processes = [item for item in made.processes if item.name in ("systemd", "slurmd")]
    made.owners.append((0, 77_123))
    made.gpus[0]["fb_memory_usage/used"] = "9120 MiB"
    (result,) = inspect_recording(written(made), select(catalogue(), names=("GPU-22",))).results
    assert result.outcome is Outcome.SKIPPED


def test_a_link_names_both_ends() -> None:
    tried = try_fault(faults.FAULTS["port_down"], "h100-roce")
    assert tried.mine[0].culprits.links[0].src.device == f"{tried.device}/1"
    tried = try_fault(faults.FAULTS["half_rate"], "h100-roce")
    far = tried.mine[0].culprits.links[0].dst
    assert (far.node or "").startswith("leaf")
    assert far.device == "Ethernet12/1"


def test_a_dark_port_still_knows_what_its_cable_led_to() -> None:
    far = try_fault(faults.FAULTS["port_down"], "h100-roce").mine[0].culprits.links[0].dst
    assert (far.node or "").startswith("leaf")


def test_a_passive_look_asks_the_driver_once_however_many_checks_there_are() -> None:
    asked: Counter[str] = Counter()
    recording = written(machine("h100-ib"))
    commands = dict(recording.commands)

    class Counted(dict[tuple[str, ...], object]):
        def get(self, key: object, default: object = None) -> object:
            asked[str(key)] += 1
            return commands.get(key, default)  # type: ignore[call-overload]

    recording.commands = Counted()  # type: ignore[assignment]
    assert inspect_recording(recording).exit_code == 0
    assert asked["('nvidia-smi', '-q', '-x')"] == 1
    assert max(asked.values()) == 1
