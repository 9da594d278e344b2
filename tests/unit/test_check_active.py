"""Checks that put load on a machine: read, judged by model or template, never beside a job."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import Machine, machine
from megatrace.model.check import CheckResult, Cost, Outcome
from megatrace.model.system import Ran

ALL_REDUCE = ("all_reduce_perf", "-b", "8G", "-e", "8G", "-g", "8")
COPIES = ("nvbandwidth", "-t", "host_to_device_memcpy_ce")
DIAG = ("dcgmi", "diag", "-r", "1", "-j")


def looked(
    made: Machine,
    name: str,
    answers: Mapping[tuple[str, ...], str | Ran],
    template: Mapping[str, object] | None = None,
) -> CheckResult:
    recording = written(made)
    for argv, answer in answers.items():
        recording.commands[argv] = answer if isinstance(answer, Ran) else Ran(argv, 0, answer)
    wanted = select(catalogue(), costs=(Cost.ACTIVE,), names=(name,))
    (result,) = inspect_recording(recording, wanted, template=template).results
    return result


def ring(made: Machine, slow: Mapping[str, float]) -> dict[tuple[str, ...], str | Ran]:
    """ib_write_bw between neighbours; ``slow``: device → Gb/s of every pair that it is in."""
    devices = [port.device for port in made.ports]
    answers: dict[tuple[str, ...], str | Ran] = {}
    options = "-F --report_gbits -D 3 -s 1048576"
    for index, server in enumerate(devices):
        client = devices[(index + 1) % len(devices)]
        value = min(slow.get(server, 394.9), slow.get(client, 394.9))
        ask = f"ib_write_bw -d {client} {options} localhost"
        script = f"ib_write_bw -d {server} {options} >/dev/null & sleep 1; {ask}; wait"
        argv = ("sh", "-c", f"command -v ib_write_bw >/dev/null || exit 127; {script}")
        answers[argv] = (
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
            f" 1048576    141000           0.00               {value}              0.047\n"
        )
    return answers


@pytest.mark.parametrize("name", ["GPU-28", "NVL-07", "PCI-07", "IB-14", "MEM-05"])
def test_without_the_program_or_beside_a_job_nothing_is_run(name: str) -> None:
    idle = machine("h100-ib")
    missing = looked(idle, name, {} if name != "IB-14" else dict.fromkeys(ring(idle, {}), Ran((), 127)))
    assert missing.outcome is Outcome.SKIPPED
    assert "not installed" in missing.reason
    busy = machine("h100-ib")
    busy.job()
    result = looked(busy, name, {})
    assert (result.outcome, result.reason) == (
        Outcome.SKIPPED,
        "a job is running: load needs an idle machine",
    )


@pytest.mark.parametrize(
    ("value", "template", "outcome"),
    [
        (468.0, {}, Outcome.OK),
        (380.0, {}, Outcome.FAIL),
        (380.0, {"active.allreduce_gbs": 390}, Outcome.OK),
        (200.0, {"active.allreduce_gbs": 390}, Outcome.FAIL),
    ],
)
def test_an_all_reduce_is_judged_against_the_model_or_the_template(
    value: float, template: Mapping[str, object], outcome: Outcome
) -> None:
    said = f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {value}\n#\n"
    result = looked(machine("h100-ib"), "NVL-07", {ALL_REDUCE: said}, template)
    assert result.outcome is outcome
    assert result.measured == {"all-reduce GB/s": value}


def test_copies_name_the_gpu_that_is_slow() -> None:
    said = (
        "Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0         1         2         3         4         5         6         7\n"
        " 0     55.10     55.20     26.10     55.30     55.10     55.20     55.30     55.10\n\n"
    )
    result = looked(machine("h100-ib"), "PCI-07", {COPIES: said})
    (finding,) = result.findings
    assert finding.culprits.devices[0].device == "0000:52:00.0"
    assert result.reason == "26.1 to 55.3 GB/s"
    cut = looked(machine("h100-ib"), "PCI-07", {COPIES: said.replace("     55.10\n\n", "\n")})
    assert cut.outcome is Outcome.UNKNOWN


def test_a_slow_port_is_in_two_slow_pairs_and_named() -> None:
    made = machine("h100-ib")
    result = looked(made, "IB-14", ring(made, {"mlx5_3": 180.0}))
    assert {finding.culprits.devices[0].device for finding in result.findings} == {"mlx5_3/1"}
    assert len(result.findings) == 2
    assert looked(made, "IB-14", ring(made, {})).outcome is Outcome.OK


def test_of_one_slow_pair_neither_port_is_accused_for_sure() -> None:
    made = machine("l40s-roce")
    result = looked(made, "IB-14", ring(made, {"mlx5_0": 90.0}))
    (finding,) = result.findings
    assert "one of the two is slow" in finding.summary
    assert finding.confidence == 0.5


def test_dcgm_names_the_test_and_the_gpu_whatever_the_form_of_its_answer() -> None:
    old = {
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {
                    "category": "Hardware",
                    "tests": [
                        {"name": "GPU Memory", "results": [{"gpu_ids": "0", "status": "Pass"}]},
                        {
                            "name": "PCIe",
                            "results": [
                                {"gpu_ids": "3", "status": "Fail", "warnings": "bandwidth below minimum"}
                            ],
                        },
                    ],
                }
            ]
        }
    }
    argv = DIAG
    result = looked(machine("h100-ib"), "GPU-28", {argv: Ran(argv, 226, json.dumps(old))})
    (finding,) = result.findings
    assert finding.summary == "DCGM: PCIe fails on GPU 3"
    assert "below minimum" in finding.evidence[0].text
    assert looked(machine("h100-ib"), "GPU-28", {argv: "no json"}).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(("goal", "outcome"), [(None, Outcome.OK), (320, Outcome.OK), (400, Outcome.FAIL)])
def test_stream_is_measured_and_judged_only_against_a_template(goal: float | None, outcome: Outcome) -> None:
    said = "Function    Best Rate MB/s  Avg time\nTriad:      318220.5     0.012\n"
    template = {} if goal is None else {"active.triad_gbs": goal}
    result = looked(machine("h100-ib"), "MEM-05", {("stream",): said}, template)
    assert result.outcome is outcome
    assert result.measured == {"Triad GB/s": 318.2205}
