"""Counters of RDMA ports from a tree like /sys, and queue pairs from what rdma prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.collect.sysfs import frozen, queue_pairs, rates, read_ports, read_queue_pairs

QUEUES = """[{"ifname": "mlx5_0", "port": 1, "lqpn": 301, "rqpn": 77, "type": "RC", "state": "RTS",
"sq-psn": %d, "rq-psn": 5, "path-mig-state": "MIGRATED", "pid": 4711, "comm": "python"},
{"ifname": "mlx5_0", "lqpn": 1, "type": "GSI", "state": "RTS", "sq-psn": %d, "comm": "[ib_core]"},
{"ifname": "mlx5_0", "lqpn": 9, "state": "RESET", "sq-psn": 0}, 7]"""


def tree(root: Path, sent: int) -> Path:
    port = root / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True, exist_ok=True)
    (port / "hw_counters").mkdir(exist_ok=True)
    (port / "gids").mkdir(exist_ok=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "gids" / "0").write_text("fe80:0000:0000:0000:0000:0000:0000:0b01\n")
    (port / "counters" / "port_xmit_data").write_text(f"{sent}\n")
    (port / "counters" / "symbol_error").write_text("N/A\n")
    (port / "hw_counters" / "out_of_sequence").write_text("3\n")
    return root


def test_counters_of_data_are_bytes_and_what_is_no_number_is_absent(tmp_path: Path) -> None:
    (port,) = read_ports(7, tree(tmp_path, 1000))
    assert (port.name, port.state, port.rate, port.time) == ("mlx5_0/1", "ACTIVE", 400.0, 7)
    assert port.gid == "fe80:0000:0000:0000:0000:0000:0000:0b01"
    assert port.counters == {"port_xmit_data": 4000, "out_of_sequence": 3}


def test_rates_are_differences_and_a_reset_counts_from_zero(tmp_path: Path) -> None:
    (first,) = read_ports(0, tree(tmp_path, 1000))
    (second,) = read_ports(2_000_000_000, tree(tmp_path, 1500))
    (third,) = read_ports(3_000_000_000, tree(tmp_path, 10))
    assert rates(first, second) == {"port_xmit_data": 1000.0, "out_of_sequence": 0.0}
    assert rates(second, third)["port_xmit_data"] == 40.0
    with pytest.raises(ValueError, match="make no rate"):
        rates(second, first)


def test_a_node_without_rdma_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(0, tmp_path) == ()


def test_queue_pairs_that_did_not_move_are_found_and_unconnected_ones_are_not() -> None:
    before, after = queue_pairs(QUEUES % (10, 4)), queue_pairs(QUEUES % (10, 5))
    assert [(pair.number, pair.remote, pair.pid) for pair in before] == [
        (301, 77, 4711),
        (1, None, None),
        (9, None, None),
    ]
    assert [pair.number for pair in frozen(before, after)] == [301]


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, "error"])
def test_what_is_no_list_of_queue_pairs_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="rdma printed no"):
        queue_pairs(text)


def test_a_missing_program_is_a_reason(tmp_path: Path) -> None:
    assert read_queue_pairs(str(tmp_path / "rdma")) == (
        (),
        "rdma is not installed (package iproute2 or rdma)",
    )
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'Failed to open NETLINK_RDMA socket' >&2\nexit 1\n")
    failing.chmod(0o755)
    assert read_queue_pairs(str(failing)) == ((), "rdma: Failed to open NETLINK_RDMA socket")
