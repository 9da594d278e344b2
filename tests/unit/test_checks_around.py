"""Checks of what stands around a node: schedulers, optics, runtimes, servers; on systems written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.recorded_system import Recording
from megatrace.model.check import CheckResult, Cost, Outcome, Scope
from megatrace.model.finding import Severity

NOW = datetime(2026, 12, 1, 2, 20, tzinfo=timezone.utc)
SINFO = ("sinfo", "-N", "-h", "-o", "%N|%T|%H|%u|%E")
BER = ("mlxlink", "-d", "mlx5_0", "--show_ber", "--json")
MODULE = ("mlxlink", "-d", "mlx5_0", "-m", "--json")


def machine(**more: Any) -> Recording:
    return Recording(name="node188", time=int(NOW.timestamp()) * 1_000_000_000, **more)


def result(recording: Recording, name: str, template: Mapping[str, object] | None = None) -> CheckResult:
    wanted = select(catalogue(), scopes=tuple(Scope), costs=tuple(Cost), names=(name,))
    return inspect_recording(recording, wanted, template=template).results[0]


class TestSlurm:
    def sinfo(self, *lines: str) -> CheckResult:
        recording = machine()
        recording.answer(SINFO, "\n".join(lines) + "\n")
        return result(recording, "SLM-01")

    def test_a_node_that_does_not_respond_is_accused_itself(self) -> None:
        found = self.sinfo(
            "node1|idle|Unknown|Unknown|none",
            "node188|down*|2026-12-01T02:00:00|slurm|Not responding",
        )
        assert [finding.culprits.nodes for finding in found.findings] == [("node188",)]
        assert found.steps[0].value == "A0"  # asked first, never power-cycled for this alone

    @pytest.mark.parametrize(
        "line",
        [
            "node1|drained|2026-11-20T00:00:00|root|MT#12 GPU-02",  # ours
            "node1|drained|2026-12-01T01:00:00|anna|memory test",  # an hour ago
            "node1|reboot^|2026-12-01T01:00:00|root|upgrade",
            "node1|down$|2026-12-01T01:00:00|root|window",  # within a reservation for maintenance
            "node1|idle~|Unknown|Unknown|none",  # powered down to save power
            "node1|mixed|Unknown|Unknown|none",
            "node1|idle*|Unknown|Unknown|none",  # resumed a moment ago, not yet asked
        ],
    )
    def test_planned_or_owned_states_are_silent(self, line: str) -> None:
        assert self.sinfo(line).outcome is Outcome.OK

    def test_a_node_that_stays_mute_is_told(self) -> None:
        counters = Counters()
        for seconds in (0, 60, 130):
            recording = machine()
            recording.time += seconds * 1_000_000_000
            recording.answer(SINFO, "node7|idle*|Unknown|Unknown|none\n")
            wanted = select(catalogue(), scopes=(Scope.SCHEDULER,), names=("SLM-01",))
            found = inspect_recording(recording, wanted, counters=counters).results[0]
            assert bool(found.findings) == (seconds > 120)

    def test_a_forgotten_drain_names_who_set_it(self) -> None:
        found = self.sinfo("node7|drained|2026-11-20T00:00:00|anna|memory | test")
        assert found.outcome is Outcome.WARN
        assert "anna" in found.findings[0].remedy
        assert "memory | test" in found.findings[0].summary

    def test_a_node_without_slurm_is_skipped(self) -> None:
        assert result(machine(), "SLM-01").outcome is Outcome.SKIPPED

    def test_the_controller(self) -> None:
        recording = machine()
        recording.answer(("scontrol", "ping"), "Slurmctld(primary) at ctl1 is DOWN\n")
        found = result(recording, "SLM-03")
        assert (found.findings[0].severity, found.observed) == (Severity.P0, True)


class TestKubernetes:
    def nodes(self, ready: str, since: str, usable: int, capacity: int = 8) -> CheckResult:
        conditions = [
            {"type": "Ready", "status": ready, "lastTransitionTime": since, "reason": "KubeletNotReady"}
        ]
        node = {
            "metadata": {"name": "gpu-1"},
            "status": {
                "conditions": conditions,
                "capacity": {"nvidia.com/gpu": str(capacity)},
                "allocatable": {"nvidia.com/gpu": str(usable)},
            },
        }
        recording = machine()
        recording.answer(("kubectl", "get", "nodes", "-o", "json"), json.dumps({"items": [node]}))
        return result(recording, "K8S-01")

    def test_a_node_is_not_ready_only_after_five_minutes(self) -> None:
        assert self.nodes("False", "2026-12-01T02:17:00Z", 8).outcome is Outcome.OK
        found = self.nodes("Unknown", "2026-12-01T02:00:00Z", 8)
        assert found.findings[0].culprits.nodes == ("gpu-1",)
        assert "20 min" in found.findings[0].summary

    def test_a_gpu_that_the_plug_in_took_back(self) -> None:
        assert self.nodes("True", "2026-11-01T00:00:00Z", 8).outcome is Outcome.OK
        assert (
            "offers 7 GPUs, expected 8" in self.nodes("True", "2026-11-01T00:00:00Z", 7).findings[0].summary
        )

    def test_an_answer_that_is_no_json_is_unknown(self) -> None:
        recording = machine()
        recording.answer(("kubectl", "get", "nodes", "-o", "json"), "Unable to connect")
        assert result(recording, "K8S-01").outcome is Outcome.UNKNOWN


class TestOptics:
    def port(self, **files: str) -> Recording:
        place = "/sys/class/infiniband/mlx5_0/ports/1"
        base = {
            "link_layer": "InfiniBand",
            "state": "4: ACTIVE",
            "lid": "0x1f",
            "sm_lid": "0x1",
            "pkeys/0": "0xffff",
        }
        return machine(files={f"{place}/{name}": text for name, text in (base | files).items()})

    def test_a_bit_error_rate_above_the_limit(self) -> None:
        recording = self.port()
        for rate, outcome in (("15E-255", Outcome.OK), ("3E-12", Outcome.WARN)):
            said = {"result": {"output": {"Effective Physical BER": rate, "Raw Physical BER": "1E-8"}}}
            recording.answer(BER, json.dumps(said))
            assert result(recording, "IB-06").outcome is outcome

    def test_one_dark_lane_is_named(self) -> None:
        recording = self.port()
        values = {"values": ["-1.2", "-1.5", "-12.4", "-1.1"]}
        said = {
            "result": {
                "output": {"Module Info": {"Rx Power Current [dBm]": values, "Temperature [C]": "41 [0..70]"}}
            }
        }
        recording.answer(MODULE, json.dumps(said))
        found = result(recording, "IB-13")
        assert [finding.summary for finding in found.findings] == ["mlx5_0: lane 2 receives -12.4 dBm"]

    def test_a_port_without_an_address(self) -> None:
        assert result(self.port(), "IB-16").outcome is Outcome.OK
        assert "LID 0" in result(self.port(lid="0x0"), "IB-16").findings[0].summary
        assert result(self.port(lid="0x0", link_layer="Ethernet"), "IB-16").outcome is Outcome.OK
        assert result(self.port(), "IB-16", {"infiniband.pkey": "0x8001"}).outcome is Outcome.WARN


class TestContainer:
    def test_a_runtime_that_fails(self) -> None:
        recording = machine()
        recording.answer(("crictl", "info"), "", 1, "connection refused")
        assert result(recording, "CTR-02").outcome is Outcome.FAIL
        assert result(machine(), "CTR-02").outcome is Outcome.SKIPPED

    def ranks(self, *environments: str) -> Recording:
        files: dict[str, str] = {}
        for pid, environment in enumerate(environments, 100):
            stat = f"{pid} (python) R 1 {' '.join(['0'] * 20)}"
            files |= {f"/proc/{pid}/stat": stat, f"/proc/{pid}/environ": environment}
        return machine(files=files)

    def test_ranks_that_differ_and_ranks_that_break_the_policy(self) -> None:
        same = self.ranks(
            "RANK=0\0NCCL_IB_HCA=mlx5_0", "RANK=1\0NCCL_IB_HCA=mlx5_0", "HOME=/x\0NCCL_IB_HCA=eth"
        )
        assert result(same, "CTR-04").outcome is Outcome.OK
        found = result(same, "CTR-04", {"nccl.env.NCCL_IB_HCA": "mlx5"})
        assert "the template says mlx5" in found.findings[0].summary
        other = self.ranks("RANK=0\0NCCL_ALGO=Ring", "RANK=1\0NCCL_DEBUG=TRACE")
        summaries = [finding.summary for finding in result(other, "CTR-04").findings]
        assert summaries == [
            "ranks on this node differ in NCCL_ALGO: Ring, not set",
            "NCCL_DEBUG is TRACE on a running rank",
        ]


class TestKernelLog:
    def log(self, *lines: str) -> Recording:
        begin = int(NOW.timestamp())
        files = {
            "/dev/kmsg": "".join(f"6,{n},{1_000_000 * n},-;{line}\n" for n, line in enumerate(lines, 1)),
            "/proc/uptime": "600.0 1.0",
            "/proc/stat": f"btime {begin - 600}\n",
        }
        return machine(files=files)

    def test_a_crash_inside_nccl_is_the_jobs_and_not_the_machines(self) -> None:
        line = "python[4242]: segfault at 10 ip 00007f1 sp 00007ffd error 4 in libnccl.so.2.21.5[7f10+100]"
        found = result(self.log(line), "JOB-03")
        assert (found.findings[0].severity, found.steps[0].value) == (Severity.P3, "A2")
        assert "libnccl.so.2.21.5" in found.findings[0].summary
        assert result(self.log(line.replace("libnccl.so.2.21.5", "app")), "JOB-03").outcome is Outcome.OK

    def test_a_server_that_came_back_is_forgiven(self) -> None:
        down = "nfs: server nas1 not responding, still trying"
        assert result(self.log(down), "FS-04").findings[0].culprits.devices[0].device == "nas1"
        assert result(self.log(down, "nfs: server nas1 OK"), "FS-04").outcome is Outcome.OK
