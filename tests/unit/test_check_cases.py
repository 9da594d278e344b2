"""Outputs that somebody posted, seen by the checks as a machine would show them: the right findings, and no
others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megatrace.bot.inspecting import inspect_recording
from megatrace.bot.recorded_system import Recording
from megatrace.model.check import Inspection
from megatrace.readers.log_clean import clean
from megatrace.units import NS_PER_S

Put = Callable[[Recording, str], None]


def _log(recording: Recording, text: str) -> None:
    """A kernel log, looked at a second after its last line."""
    recording.answer(("dmesg",), text)
    _look_after(recording, text)


def _fabric_log(recording: Recording, text: str) -> None:
    recording.files["/var/log/fabricmanager.log"] = text
    _look_after(recording, text)


def _look_after(recording: Recording, text: str) -> None:
    lines = [
        line
        for number, raw in enumerate(text.encode().split(b"\n"), start=1)
        for line in clean(raw, number, "log", 1_780_000_000 * NS_PER_S)
        if line.time is not None
    ]
    wall = [line.time or 0 for line in lines if line.clock == "wall"]
    boot = [line.time or 0 for line in lines if line.clock == "boot"]
    recording.time = max(wall, default=1_780_000_000 * NS_PER_S) + NS_PER_S
    recording.files["/proc/uptime"] = f"{max(boot, default=10**15) / NS_PER_S + 1:.2f} 0"


def _prints(*argv: str) -> Put:
    return lambda recording, text: recording.answer(argv, text)


def _disk(name: str) -> Put:
    def put(recording: Recording, text: str) -> None:
        recording.files[f"/sys/class/nvme/{name}/state"] = "live\n"
        recording.files[f"/sys/class/nvme/{name}/transport"] = "pcie\n"
        recording.answer(("smartctl", "-a", "-j", f"/dev/{name}"), text)

    return put


FILES: dict[str, Put] = {
    **dict.fromkeys(("dmesg.log", "kmsg.txt", "messages.log", "syslog", "journal.log", "kernel.log"), _log),
    "fabricmanager.log": _fabric_log,
    "nvlink-s.txt": _prints("nvidia-smi", "nvlink", "-s"),
    "nvidia-smi-q.txt": _prints("nvidia-smi", "-q"),
    "nvidia-smi-q-retired.txt": _prints("nvidia-smi", "-q"),
    "nvidia-smi.xml": _prints("nvidia-smi", "-q", "-x"),
    "nvidia-smi.txt": _prints("nvidia-smi"),
    "ibstatus.txt": _prints("ibstatus"),
    "perfquery.txt": _prints("perfquery", "-x"),
    "metrics.prom": _prints("curl", "-s", "--max-time", "10", "http://127.0.0.1:9400/metrics"),
    "nvme8.json": _disk("nvme8"),
    "nvme9.json": _disk("nvme9"),
}
"""Where a machine shows what was posted."""


def _inspected(folder: Path) -> Inspection:
    recording = Recording(complete=False)
    for path in sorted(folder.iterdir()):
        if path.name != "expected.md":
            FILES[path.name](recording, path.read_text("utf-8", "replace"))
    return inspect_recording(recording)


EXPECTED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "D01": (("P0", "GPU-05", "Xid 119 ×5"),),
    "D03": (("P0", "GPU-05", "0000:02:00: Xid 79"),),
    "D05": (("P3", "CPU-03", "1 corrected (CE)"),),
    "D08": (("P1", "MEM-03", "perl (pid 1442070)"),),
    "D10": (),
    "D12": (("P3", "NVL-06", "SXid 12028 once, non-fatal"),),
    "D14": (("P3", "NVL-05", "NV_WARN_NOTHING_TO_DO"),),
    "D16": (("P1", "IB-04", "port ib6 flaps: 6 carrier losses"),),
    "D17": (),
    "D19": (("P0", "GPU-05", "000d:00:00: Xid 48"),),
    "D22": (("P2", "GPU-05", "Xid 13 ×3"),),
    "D24": (("P1", "GPU-05", "Xid 145"),),
    "E01": (("P1", "NVL-01", "6 NVLink ends are inactive"),),
    "E03": (
        *(("P1", "GPU-08", f"gpu{index} ") for index in (1, 3, 5, 7)),
        *(("P1", "GPU-11", f"gpu{index} ") for index in (0, 1, 5, 7)),
    ),
    "E04": (("P1", "NVL-01", "GPU 6: all NVLinks are inactive"),),
    "E05": (("P2", "GPU-23", "gpu7 (0008:00:00.0)"),),
    "E08": (),
    "E10": (),
    "E12": (),
    "E15": (),
    "E17": (("P1", "DSK-01", "nvme9: available spare 0"),),
    "F01": (),
    "F03": (),
    "E18": (("P1", "GPU-08", "gpu0 (0000:10:1c.0)"), ("P3", "GPU-05", "Xid 63")),
}
"""By case: severity, check and words of every finding, in order."""


@pytest.mark.shared
@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_what_was_posted_gives_the_right_findings_and_no_other(case: str, shared_dir: Path) -> None:
    found = [
        (finding.severity.name, result.check, finding.summary)
        for result, finding, _ in _inspected(shared_dir / "cases" / case).troubles
        if not result.observed
    ]
    expected = EXPECTED[case]
    assert [item[:2] for item in found] == [item[:2] for item in expected], found
    for (_, _, summary), (_, _, words) in zip(found, expected, strict=True):
        assert words in summary


@pytest.mark.shared
def test_a_row_remap_is_no_reason_to_drain_or_replace(shared_dir: Path) -> None:
    troubles = _inspected(shared_dir / "cases" / "E18").troubles
    remedies = " ".join(finding.remedy for _, finding, _ in troubles).lower()
    assert "when the job" in remedies
    assert "rma" not in remedies
    assert "drain the node" not in remedies
