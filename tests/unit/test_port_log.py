"""RDMA ports that are watched beside a job: written by collect, read by diagnose, the sick one named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.collect import torch_ring
from megatrace.collect.port_log import MAX_BYTES, PortLog
from megatrace.model.finding import Diagnosis, Kind, Severity, Verdict
from megatrace.readers.opening import open_trace
from tests.unit.test_spool import COMM, TAIL

MEGATRACE = [sys.executable, "-m", "megatrace"]
SECOND = 1_000_000_000
EPOCH = 1_800_000_000 * SECOND


def tree(
    root: Path, device: str, *, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", **more: int
) -> None:
    port = root / "class" / "infiniband" / device / "ports" / "1"
    for folder in ("counters", "hw_counters"):
        (port / folder).mkdir(parents=True, exist_ok=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text(f"{rate}\n")
    values = {"symbol_error": 0, "link_downed": 0, "port_xmit_data": 1000, **more}
    for name, value in values.items():
        folder = "hw_counters" if name == "out_of_sequence" else "counters"
        (port / folder / name).write_text(f"{value}\n")


def node(root: Path, **sick: object) -> Path:
    """Four ports; ``sick`` is of the third."""
    for number in range(4):
        tree(root, f"mlx5_{number}", **(sick if number == 2 else {}))  # type: ignore[arg-type]
    return root


def watched(folder: Path, *readings: dict[str, object]) -> Diagnosis:
    log = PortLog(folder / "kept", folder / "sys", program="no-such-program")
    for at, sick in enumerate(readings):
        node(folder / "sys", **sick)
        assert log.write(EPOCH + at * 10 * SECOND) == 4
    return diagnose(open_trace([folder / "kept"]))


def test_ports_that_stay_as_they_are_are_a_note(tmp_path: Path) -> None:
    diagnosis = watched(tmp_path, {"symbol_error": 5000}, {"symbol_error": 5000})
    assert diagnosis.exit_code != 10, "errors of earlier jobs say nothing of this one"
    assert [item.severity for item in diagnosis.findings] == [Severity.INFO]


def test_a_port_that_goes_down_is_named(tmp_path: Path) -> None:
    down = {"state": "1: DOWN", "link_downed": 1}
    diagnosis = watched(tmp_path, {}, down, {"link_downed": 1})
    assert diagnosis.verdict is Verdict.FAILED
    finding = diagnosis.findings[0]
    assert finding.culprits.devices[0].device == "mlx5_2/1"
    assert "mlx5_2/1 went down 1 time while the job ran; at the end it was ACTIVE" in diagnosis.headline
    assert finding.window is not None
    assert finding.window.start == EPOCH + 10 * SECOND


def test_a_port_that_was_never_up_is_not_in_use(tmp_path: Path) -> None:
    diagnosis = watched(tmp_path, {"state": "1: DOWN"}, {"state": "1: DOWN"})
    assert diagnosis.exit_code != 10


def test_errors_that_grow_on_one_port_alone_name_it(tmp_path: Path) -> None:
    diagnosis = watched(tmp_path, {"symbol_error": 7}, {"symbol_error": 900}, {"symbol_error": 1907})
    finding = diagnosis.findings[0]
    assert finding.kind is Kind.SLOW_NETWORK
    assert finding.culprits.devices[0].device == "mlx5_2/1"
    assert "symbol_error +1,900" in finding.summary


def test_what_grows_on_every_port_accuses_none(tmp_path: Path) -> None:
    log = PortLog(tmp_path / "kept", tmp_path / "sys", program="no-such-program")
    for at in range(3):
        for number in range(4):
            tree(tmp_path / "sys", f"mlx5_{number}", out_of_sequence=at * (1000 + number))
        log.write(EPOCH + at * SECOND)
    assert diagnose(open_trace([tmp_path / "kept"])).exit_code != 10


def test_a_port_that_runs_slower_than_the_others_is_named(tmp_path: Path) -> None:
    diagnosis = watched(tmp_path, {"rate": "100 Gb/sec (1X NDR)"})
    assert "mlx5_2/1 runs at 100 Gb/s, 3 other ports at 400 Gb/s" in diagnosis.headline


RDMA = """#!/bin/sh
echo '[{"ifname": "mlx5_1", "lqpn": 301, "rqpn": 77, "state": "ERR", "pid": 4711},
{"ifname": "mlx5_1", "lqpn": 302, "state": "RTS", "sq-psn": 3}]'
"""


def test_a_failed_queue_pair_is_named(tmp_path: Path) -> None:
    program = tmp_path / "rdma"
    program.write_text(RDMA)
    program.chmod(0o755)
    PortLog(tmp_path / "kept", node(tmp_path / "sys"), program=str(program)).write(EPOCH)
    finding = diagnose(open_trace([tmp_path / "kept"])).findings[0]
    assert finding.kind is Kind.HANG_NETWORK
    assert "mlx5_1 (process 4711) failed" in finding.summary
    assert "301" in finding.summary
    assert "302" not in finding.summary


def test_only_what_changed_is_written_and_a_full_log_begins_anew(tmp_path: Path) -> None:
    log = PortLog(tmp_path, node(tmp_path / "sys"), program="no-such-program")
    log.write(EPOCH)
    first = len(log.path.read_bytes())
    log.write(EPOCH + SECOND)
    second = json.loads(log.path.read_text().splitlines()[1])
    assert all(port["counters"] == {} for port in second["ports"])
    assert len(log.path.read_bytes()) < 2 * first
    with log.path.open("a") as file:
        file.write(" " * MAX_BYTES)
    log.write(EPOCH + 2 * SECOND)
    assert not log.path.exists()
    log.write(EPOCH + 3 * SECOND)
    assert json.loads(log.path.read_text())["ports"][0]["counters"]


def test_a_node_without_rdma_gets_no_file(tmp_path: Path) -> None:
    assert PortLog(tmp_path / "kept", tmp_path).write(EPOCH) == 0
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    "damage",
    [
        '{"host":"a","time_ns":1,"ports":[{"device":"x","port":1}]}',
        '{"host":"a","time_ns":1,"ports":{"device":"x"}}',
        '{"host":"a","time_ns":1,"ports":[{"device":"y","port":1,"state":"UP","counters":{"a":1e999}}]}',
        '{"schema":"megatrace.ports/1"',
        "null",
        '{"host":1,"time_ns":"x","ports":[]}',
    ],
)
def test_a_reading_that_is_damaged_is_left_out(tmp_path: Path, damage: str) -> None:
    log = PortLog(tmp_path / "kept", node(tmp_path / "sys"), program="no-such-program")
    log.write(EPOCH)
    with log.path.open("a") as file:
        file.write(damage + "\n")
    trace = open_trace([tmp_path / "kept"])
    assert any("1 of 2 readings are damaged" in note for note in trace.coverage.notes)


def test_collect_writes_the_ports_beside_the_rings_and_diagnose_names_the_sick_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    rings = tmp_path / "rings"
    rings.mkdir()
    ring = torch_ring.Ring(str(rings), 64)
    ring.put(TAIL, COMM, 0, 400, -1)
    words = ["collect", "--out", str(tmp_path / "kept"), "--once", "--rings", str(rings)]
    for sick in ({}, {"state": "1: DOWN"}):
        node(tmp_path / "sys", **sick)
        subprocess.run(
            [*MEGATRACE, *words, "--sysfs", str(tmp_path / "sys")], check=True, capture_output=True
        )
    assert len(list((tmp_path / "kept").glob("ports-*.jsonl"))) == 1
    done = subprocess.run(
        [*MEGATRACE, "diagnose", str(tmp_path / "kept")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 10
    assert "mlx5_2/1 went down 1 time" in done.stdout
