"""What all tests share: the handed inputs, markers that may not be skipped, time per marker.

A test that needs something this machine may lack carries a marker and skips with a reason.
MEGATRACE_REQUIRE=a,b names the markers whose skips are failures; CI sets it, so that it cannot pass by
skipping.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pluggy import Result

ROOT = Path(__file__).resolve().parent.parent
MARKERS = "markers"
NOT_OURS = frozenset(
    {"parametrize", "skip", "skipif", "xfail", "usefixtures", "filterwarnings", "tryfirst", "trylast"}
    | {"hypothesis", "xdist_group"}
)
"""Markers of pytest and its plug-ins: they say how a test runs, not what it needs."""

# Derandomized: a property that fails in CI fails on every machine. No deadline: a busy machine is no bug.
hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("fuzz", max_examples=3_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deterministic"))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of handed inputs; the test skips where there is none. Use it with the marker `shared`."""
    path = Path(os.environ.get("MEGATRACE_SHARED") or ROOT.parent / "shared")
    if not path.is_dir():
        pytest.skip(f"no handed inputs at {path} (set MEGATRACE_SHARED)")
    return path


def _project_markers(config: pytest.Config) -> frozenset[str]:
    """The markers that pyproject.toml declares."""
    lines = (str(line) for line in config.getini("markers"))
    return frozenset(line.partition(":")[0].partition("(")[0].strip() for line in lines) - NOT_OURS


def _required(config: pytest.Config) -> frozenset[str]:
    """The markers of MEGATRACE_REQUIRE. Raises UsageError for one that pyproject.toml does not declare."""
    names = frozenset(filter(None, os.environ.get("MEGATRACE_REQUIRE", "").replace(" ", "").split(",")))
    unknown = ", ".join(sorted(names - _project_markers(config)))
    if unknown:
        raise pytest.UsageError(f"MEGATRACE_REQUIRE names {unknown}, which is no marker of this project")
    return names


def pytest_configure(config: pytest.Config) -> None:
    _required(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = _project_markers(config)
    for item in items:
        # user_properties travel from the xdist workers to the process that prints the summary
        item.user_properties.append((MARKERS, sorted({mark.name for mark in item.iter_markers()} & ours)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Result[pytest.TestReport], None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail"):
        broken = sorted({mark.name for mark in item.iter_markers()} & _required(item.config))
        if broken:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            report.outcome = "failed"
            report.longrepr = f"MEGATRACE_REQUIRE names {', '.join(broken)}, but the test says: {reason}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, Result[pytest.CollectReport], None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and _required(collector.config):
        # A module that skips as a whole has not come to its markers: nobody knows what it would test.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"a module may not skip as a whole under MEGATRACE_REQUIRE; it says: {reason}"


def seconds_per_marker(reports: Iterable[object]) -> dict[str, tuple[int, float]]:
    """Tests and seconds (set-up and tear-down included) per marker; "(none)" for tests without one.

    A test with two markers counts for both, so the rows may add up to more than the whole.
    """
    tests: dict[str, set[str]] = defaultdict(set)
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        if not isinstance(report, pytest.TestReport):
            continue
        names = next((value for key, value in report.user_properties if key == MARKERS), [])
        for name in names if isinstance(names, list) and names else ["(none)"]:
            tests[name].add(report.nodeid)
            seconds[name] += report.duration
    return {name: (len(tests[name]), seconds[name]) for name in sorted(tests)}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for group in terminalreporter.stats.values() for report in group]
    rows = seconds_per_marker(reports)
    if rows:
        terminalreporter.section("time per marker", sep="-")
    for name, (count, seconds) in rows.items():
        terminalreporter.write_line(f"{name:<12} {count:>5} tests {seconds / 60:>7.2f} min")
