"""Xids by NVIDIA's library, where the kernel log may not be read: an event becomes a finding while somebody
watches."""

from __future__ import annotations

import select as waiting
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.kernel_events import LOG_CHECKS, GpuEvents
from megatrace.bot.recorded_system import Recording
from megatrace.clock import FakeClock
from megatrace.model.check import Outcome
from megatrace.model.system import Ran, Why
from tests.components.fake_nvml import ADDRESSES, FakeNvml

pytestmark = [pytest.mark.nvml, pytest.mark.xdist_group("nvml")]
NOW = 1_780_000_000 * 10**9


@pytest.fixture
def events(fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuEvents]:
    """The source, its library the fake one."""
    for name, value in fake_nvml.environment.items():
        monkeypatch.setenv(name, value)
    made = GpuEvents(tmp_path / "nvml-events", FakeClock(NOW))
    yield made
    made.close()


def _take(events: GpuEvents) -> tuple[str, ...]:
    assert waiting.select([events], [], [], 60)[0], "the library told nothing"
    return events.take()


def test_an_event_is_written_with_its_time_and_place_and_brings_its_checks_forward(
    events: GpuEvents, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    assert _take(events) == ()  # eight GPUs are watched
    fake_nvml.broken("xid 3 79")
    assert _take(events) == LOG_CHECKS
    assert (tmp_path / "nvml-events").read_text("utf-8") == f"{NOW} xid 79 {ADDRESSES[3]}\n"
    assert not events.ended


def test_a_machine_without_the_library_ends_the_source(tmp_path: Path) -> None:
    made = GpuEvents(tmp_path / "nvml-events", FakeClock(NOW))
    if not _take(made):
        made._process.wait(60)
    assert made.ended
    made.close()


def test_what_the_library_told_is_a_finding_where_the_kernel_log_may_not_be_read() -> None:
    path = "/state/nvml-events"
    recording = Recording(
        time=NOW + 10**9,
        root=False,
        files={path: f"{NOW} xid 79 0000:4c:00.0\nhalf a li"},
        refused={"/dev/kmsg": Why.DENIED},
    )
    argv = ("dmesg",)
    recording.commands[argv] = Ran(argv, 1, error="Operation not permitted")
    wanted = select(catalogue(), names=("GPU-05",))
    (skipped,) = inspect_recording(recording, wanted).results
    assert (skipped.outcome, skipped.reason) == (Outcome.SKIPPED, "the kernel log needs root")
    (result,) = inspect_recording(recording, wanted, template={"nvml.events": path}).results
    (finding,) = result.findings
    assert finding.summary == "GPU 0000:4c:00: Xid 79: the GPU has fallen off the bus"
    assert finding.culprits.devices[0].device == "0000:4c:00.0"
    assert "NVIDIA's library" in finding.evidence[-1].text
