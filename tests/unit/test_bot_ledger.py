"""Records of parts: episodes, moves, lemons and clearing, by serial number and not by slot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from megatrace.bot.components import components, owner
from megatrace.bot.ledger import Ledger, remembered
from megatrace.bot.recorded_system import RecordedSystem, Recording
from megatrace.commands.main import main
from megatrace.errors import TraceError, UsageError
from megatrace.model.check import CheckResult, Inspection, Outcome, Step
from megatrace.model.finding import Culprits, Device, Finding, Kind, Severity
from megatrace.model.parts import Component
from megatrace.model.system import Ran
from megatrace.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MINUTE

T0 = 1_796_000_000_000_000_000
SLOT = "0000:19:00.0"
GPU_A = Component("GPU", "165001", "GPU-aaa", SLOT, "H100", ("gpu0",))
GPU_B = Component("GPU", "165002", "GPU-bbb", SLOT, "H100", ("gpu0",))


def look(
    time: int,
    *devices: str,
    node: str = "n1",
    outcome: Outcome = Outcome.FAIL,
    severity: Severity = Severity.P1,
    observed: bool = False,
) -> Inspection:
    """An inspection in which check GPU-01 found the devices sick."""
    findings = tuple(
        Finding(
            kind=Kind.HARDWARE,
            severity=severity,
            summary=f"{device} is sick",
            confidence=0.9,
            culprits=Culprits(nodes=(node,), devices=(Device(node, device),)),
            fingerprint=f"GPU-01:{node}:{device}",
        )
        for device in devices
    )
    ended = outcome if devices or outcome is Outcome.UNKNOWN else Outcome.OK
    result = CheckResult(
        "GPU-01", ended, findings=findings, steps=(Step.ISOLATE,) * len(findings), observed=observed
    )
    return Inspection(node, time, "8×H100", (result,))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "state" / "parts.sqlite")


def test_a_fault_that_lasts_is_one_episode_and_one_that_returns_another(ledger: Ledger) -> None:
    for hour, devices in enumerate([(SLOT,), (SLOT,), (), (SLOT,)]):
        ledger.note(look(T0 + hour * NS_PER_HOUR, *devices), [GPU_A])
    record = ledger.history("165001")
    spans = [(event.began - T0, event.ended and event.ended - T0) for event in record.events]
    assert spans == [(3 * NS_PER_HOUR, None), (0, 2 * NS_PER_HOUR)]
    assert ledger.history("GPU-aaa") == record, "by serial number and by UUID"


def test_a_check_that_could_not_look_ends_nothing(ledger: Ledger) -> None:
    ledger.note(look(T0, SLOT), [GPU_A])
    ledger.note(look(T0 + NS_PER_HOUR, outcome=Outcome.UNKNOWN), [GPU_A])
    assert ledger.history("165001").events[0].ended is None


def test_a_part_takes_its_record_along_and_its_successor_begins_with_none(ledger: Ledger) -> None:
    ledger.note(look(T0, SLOT), [GPU_A])
    later = T0 + NS_PER_DAY
    moved = ledger.note(
        look(later, "0000:3b:00.0", node="n2"),
        [Component("GPU", "165001", "GPU-aaa", "0000:3b:00.0", "H100")],
    )
    assert moved == ("GPU 165001 moved from n1 0000:19:00.0 to n2 0000:3b:00.0",)
    ledger.note(look(later), [GPU_B])
    assert [event.what for event in ledger.history("165001").events] == ["fault", "moved", "fault"]
    assert ledger.history("165002").events == ()
    assert [event.node for event in ledger.history("n1").events] == ["n1"]


def test_the_fault_of_a_slot_is_not_that_of_the_part_which_came_after(ledger: Ledger) -> None:
    ledger.note(look(T0, SLOT), [GPU_A])
    ledger.note(look(T0 + NS_PER_DAY, SLOT), [GPU_B])
    first, second = ledger.history("165001").events, ledger.history("165002").events
    assert [event.ended for event in first] == [T0 + NS_PER_DAY]
    assert [event.began for event in second] == [T0 + NS_PER_DAY]


def test_a_gpu_that_fell_off_the_bus_is_the_one_that_sat_there_last(ledger: Ledger) -> None:
    ledger.note(look(T0), [GPU_A])
    ledger.note(look(T0 + NS_PER_HOUR, SLOT), [])
    assert len(ledger.history("165001").events) == 1


def test_three_episodes_on_two_days_are_a_lemon_and_clearing_needs_a_reason(ledger: Ledger) -> None:
    hours = (0, 1, 2, 3, 26, 27)
    for number, hour in enumerate(hours):
        ledger.note(look(T0 + hour * NS_PER_HOUR, *([SLOT] if number % 2 == 0 else [])), [GPU_A])
    now = T0 + 30 * NS_PER_HOUR
    (lemon,) = ledger.lemons(now)
    assert (lemon.kind, lemon.name, lemon.episodes, lemon.days) == ("GPU", "165001", 3, 2)
    assert (lemon.node, lemon.slot, lemon.worst) == ("n1", SLOT, Severity.P1)
    assert ledger.lemons(now + 60 * NS_PER_DAY) == (), "too long ago"
    with pytest.raises(UsageError, match="needs --reason"):
        ledger.clear("165001", " ", "alice", now)
    ledger.clear("165001", "reseated", "alice", now)
    assert ledger.lemons(now) == ()
    assert ledger.history("165001").events[0].text == "reseated"


def test_one_bad_day_is_no_lemon(ledger: Ledger) -> None:
    begin = T0 - T0 % NS_PER_DAY
    for hour in range(10):
        ledger.note(look(begin + hour * NS_PER_HOUR, *([SLOT] if hour % 2 == 0 else [])), [GPU_A])
    assert ledger.lemons(begin + NS_PER_DAY) == ()


def test_a_machine_whose_parts_fail_in_turn_is_a_lemon_itself(ledger: Ledger) -> None:
    slots = [f"0000:{bus}:00.0" for bus in ("19", "3b", "4c")]
    parts = [Component("GPU", f"s{slot}", "", slot) for slot in slots]
    for day, slot in enumerate(slots):
        ledger.note(look(T0 + day * NS_PER_DAY, slot), parts)
        ledger.note(look(T0 + day * NS_PER_DAY + NS_PER_HOUR), parts)
    (lemon,) = ledger.lemons(T0 + 3 * NS_PER_DAY)
    assert (lemon.kind, lemon.name, lemon.episodes) == ("node", "n1", 3)


@pytest.mark.parametrize("more", [{"observed": True}, {"severity": Severity.P3}])
def test_notes_and_what_is_only_observed_leave_no_mark(ledger: Ledger, more: dict[str, object]) -> None:
    ledger.note(look(T0, SLOT, **more), [GPU_A])  # type: ignore[arg-type]
    assert ledger.history("165001").events == ()


def test_parts_are_read_from_the_machine() -> None:
    made = Recording(name="n1", time=T0)
    made.files.update(
        {
            "/sys/class/dmi/id/product_serial": "System Serial Number\n",
            "/sys/class/dmi/id/product_uuid": "4c4c4544-0042\n",
            "/sys/class/infiniband/mlx5_0/node_guid": "e8eb:d303:0072:1415\n",
            "/sys/class/infiniband/mlx5_9/node_guid": "0000:0000:0000:0000\n",
            "/sys/class/nvme/nvme0/serial": "S64GNE0R\n",
            "/sys/class/nvme/nvme0/model": "SAMSUNG MZQL2\n",
            "/sys/class/nvme/nvme0/transport": "pcie\n",
        }
    )
    made.links["/sys/class/infiniband/mlx5_0/device"] = "../../../0000:1a:00.0"
    made.answer(
        ("nvidia-smi", "--query-gpu=index,pci.bus_id,uuid,serial,name", "--format=csv,noheader"),
        "0, 00000000:19:00.0, GPU-aaa, 1650423012345, NVIDIA H100 80GB HBM3\n"
        "1, 00000000:3B:00.0, GPU-bbb, 0, NVIDIA H100 80GB HBM3\n",
    )
    made.answer(
        ("dmidecode", "-t", "17"),
        "Memory Device\n\tLocator: A1\n\tSerial Number: 802C0F\n\nMemory Device\n\tLocator: A2\n"
        "\tSerial Number: No DIMM\n",
    )
    found = components(RecordedSystem(made))
    assert [(part.kind, part.key) for part in found] == [
        ("machine", "4c4c4544-0042"), ("GPU", "1650423012345"), ("GPU", "GPU-bbb"),
        ("NIC", "e8ebd30300721415"), ("disk", "S64GNE0R"), ("DIMM", "802C0F"),
    ]  # fmt: skip
    by_device = {
        "0000:3b:00.0": "GPU-bbb",
        "gpu1": "GPU-bbb",
        "mlx5_0/1": "e8ebd30300721415",
        "0000:1a:00.0": "e8ebd30300721415",
        "/dev/nvme0n1": "S64GNE0R",
        "DIMM A1": "802C0F",
    }
    owners = {device: owner(found, device) for device in by_device}
    assert {device: part.key for device, part in owners.items() if part is not None} == by_device
    assert owner(found, "mlx5_01") is None
    assert owner(found, "0000:99:00.0") is None


def test_a_driver_that_hangs_is_not_asked_again(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    class Asked(RecordedSystem):
        def run(self, argv: Sequence[str], timeout_s: float = 0) -> Ran:
            asked.append(tuple(argv))
            return super().run(argv)

    system = Asked(Recording(name="n1", time=T0))
    hung = CheckResult("GPU-03", Outcome.FAIL)
    remembered(Inspection("n1", T0, "", (hung,)), system, tmp_path / "parts.sqlite")
    assert {argv[0] for argv in asked} == {"dmidecode"}
    remembered(Inspection("n1", T0, "", ()), system, tmp_path / "parts.sqlite")
    assert {argv[0] for argv in asked} == {"dmidecode", "nvidia-smi"}


def test_the_command_prints_records_and_lemons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "parts.sqlite"
    kept = Ledger(path)
    for day in range(3):
        kept.note(look(T0 + day * NS_PER_DAY, SLOT), [GPU_A])
        kept.note(look(T0 + day * NS_PER_DAY + NS_PER_HOUR), [GPU_A])
    kept.close()
    assert main(["history", "165001", "--ledger", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "165001 (H100) · n1 0000:19:00.0" in shown
    assert "3 faults" in shown
    assert main(["history", "--lemons", "--days", "36500", "--ledger", str(path), "--format", "json"]) == 10
    (lemon,) = json.loads(capsys.readouterr().out)["lemons"]
    assert (lemon["name"], lemon["episodes"], lemon["worst"]) == ("165001", 3, "P1")
    done = ["history", "165001", "--ledger", str(path), "--clear", "--reason", "replaced"]
    assert main(done) == 0
    assert "replaced" in capsys.readouterr().out
    assert main(["history", "nobody", "--ledger", str(path)]) == 2
    assert "there is 165001, n1" in capsys.readouterr().err
    assert main(["history", "--ledger", str(path)]) == 2
    assert main(["history", "n1", "--ledger", str(tmp_path / "none")]) == 3


def test_a_file_that_is_no_record_is_told(tmp_path: Path) -> None:
    path = tmp_path / "parts.sqlite"
    path.write_bytes(b"something else entirely, longer than a header of sqlite has to be" * 20)
    with pytest.raises(TraceError, match="cannot be opened"):
        Ledger(path)


def test_the_page_shows_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "find-parts-that-break-again.md"
    shown = page.read_text("utf-8").split("$ megatrace history 1650423012345\n")[1].split("```")[0]
    path = tmp_path / "parts.sqlite"
    kept = Ledger(path)
    begin = 1_795_939_200_000_000_000  # 2026-11-29 08:00 UTC

    def at(node: str, slot: str, minutes: int, fault: str = "") -> None:
        part = Component("GPU", "1650423012345", "GPU-a", slot, "NVIDIA H100 80GB HBM3")
        kept.note(lost(begin + minutes * NS_PER_MINUTE, node, slot, fault), [part])

    at("node012", "0000:3b:00.0", 0)
    at("node012", "0000:3b:00.0", 60, "gpu2 (0000:3b:00.0) has fallen off the bus")
    at("node012", "0000:3b:00.0", 240)
    at("node188", "0000:19:00.0", 720)
    at("node188", "0000:19:00.0", 1093, "gpu0 (0000:19:00.0) has fallen off the bus")
    at("node188", "0000:19:00.0", 1453)
    kept.close()
    assert main(["history", "1650423012345", "--ledger", str(path)]) == 0
    assert capsys.readouterr().out == shown


def lost(time: int, node: str, slot: str, said: str) -> Inspection:
    """A look at which GPU-02 says of a slot what is said, if anything."""
    who = Culprits(nodes=(node,), devices=(Device(node, slot),))
    sick = Finding(
        Kind.HARDWARE, Severity.P0, said, confidence=0.9, culprits=who, fingerprint=f"GPU-02:{node}:{slot}"
    )
    findings = (sick,) if said else ()
    outcome = Outcome.FAIL if said else Outcome.OK
    result = CheckResult("GPU-02", outcome, findings=findings, steps=(Step.POWER_CYCLE,) * len(findings))
    return Inspection(node, time, "8×H100", (result,))
