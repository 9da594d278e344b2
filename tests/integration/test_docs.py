"""The how-to pages show what the commands print: each is run on the input that the page shows.

A page names a file in its command, shows the file's lines, and then the report. Where a page cannot show its
input whole (many ranks, binary dumps), ``PREPARED`` makes it. A report that ends in "…" is compared up to
there.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from megatrace.commands.main import main
from tests.unit.log_cases import timeout
from tests.unit.test_inspector import job as inspector_job
from tests.unit.test_ras import answer, member

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
SHOWN = (
    "i-have-a-traceback",
    "i-have-a-watchdog-message",
    "i-have-an-nccl-debug-log",
    "i-have-the-output-of-a-tool",
)
"""Pages that show their input whole."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_VERDICT = re.compile(r"^(HANG|SLOW|FAILED|CANNOT TELL|HEALTHY) ")
_COMMAND = re.compile(r"^megatrace diagnose (\S+)/?$", re.MULTILINE)
REST = "…"
"""The last line of a block that shows only its beginning."""


def _blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of the blocks of a page at the left margin."""
    return _BLOCK.findall((PAGES / f"{page}.md").read_text(encoding="utf-8"))


def _shown(page: str) -> tuple[str, str, str]:
    """(argument of the first diagnose command, input shown after it or "", report shown after that)."""
    command = ""
    given: list[str] = []
    for language, text in _blocks(page):
        found = _COMMAND.search(text) if language == "sh" else None
        if found and not command:
            command = found.group(1)
        elif command and language == "text":
            if _VERDICT.match(text):
                return command, "".join(given), text
            given.append(text)
    raise AssertionError(f"{page} shows no report")


def _ran(*arguments: str) -> str:
    """What the program prints in the working directory."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(list(arguments))
    assert code in (0, 10, 11), printed.getvalue()
    return printed.getvalue()


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _compare(shown: str, printed: str) -> None:
    lines, real = shown.rstrip("\n").split("\n"), printed.rstrip("\n").split("\n")
    if lines[-1] == REST:
        lines = lines[:-1]
        while lines and not lines[-1]:
            lines.pop()
        real = real[: len(lines)]
    assert lines == real


@pytest.mark.parametrize(
    "page",
    SHOWN,
)
def test_a_page_shows_what_is_printed_for_the_input_that_it_shows(page: str, tmp_path: Path) -> None:
    name, given, report = _shown(page)
    (tmp_path / name).write_text(given, encoding="utf-8")
    _compare(report, _ran("diagnose", name))


def _training_log(folder: Path) -> None:
    lines = []
    for i in range(9):
        ms = 1300.0 if i >= 5 else 1010.0 if i % 3 == 1 else 1000.0
        lines.append(
            f" [2024-07-01 10:00:{10 + i}] iteration {4100 + i}/ 9000 | "
            f"consumed samples: {(4100 + i) * 1024} | elapsed time per iteration (ms): {ms} | "
            f"throughput per GPU (TFLOP/s/GPU): {400_000 / ms:.1f} | "
            f"learning rate: 1.0E-04 | lm loss: 2.{10 + i}E+00 | grad norm: 0.15 |\n"
        )
    (folder / "slow.log").write_text("".join(lines))


def _ras_answers(folder: Path) -> None:
    ranks = [member(rank, {"AllReduce": 639 if rank == 3 else 640}) for rank in range(8)]
    (folder / "ras").mkdir()
    for i in (1, 2):
        text = answer(("fa93dae0000b060b", ranks, []), at=f"2025-12-19 13:06:{i}0")
        (folder / "ras" / f"ras_{i}.json").write_text(text)


def _inspector_files(folder: Path) -> None:
    inspector_job(folder / "nccl-inspector-8812", late=5, calls=400, name="0x9e7a479f95a66c")


def _dumps(_: Path) -> None:
    _ran("simulate", "stuck-host", "--out", "dumps", "--dialect", "flight-recorder")


def _kernel_log(folder: Path) -> None:
    (folder / "k").mkdir()
    (folder / "k" / "kernel.log").write_text(_shown("i-have-a-kernel-log")[1])
    (folder / "k" / "train.log").write_text(
        timeout(21, 904, numel=1_379_328)
        + "[rank2]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process "
        "exited or there was a network error, NCCL version 2.21.5\n"
    )


PREPARED: dict[str, Callable[[Path], None]] = {
    "i-have-a-training-log": _training_log,
    "i-have-ras-output": _ras_answers,
    "i-have-inspector-files": _inspector_files,
    "i-have-a-flight-recorder-dump": _dumps,
    "i-have-a-kernel-log": _kernel_log,
}


@pytest.mark.parametrize("page", sorted(PREPARED))
def test_a_page_shows_what_is_printed_for_an_input_like_its(page: str, tmp_path: Path) -> None:
    PREPARED[page](tmp_path)
    name, given, report = _shown(page)
    if given.endswith(f"{REST}\n"):
        assert given.removesuffix(f"{REST}\n") in (tmp_path / name).read_text()
    _compare(report, _ran("diagnose", name))


def test_every_page_about_an_artefact_is_run() -> None:
    here = {path.stem for path in PAGES.glob("i-have-*.md")}
    run = {*PREPARED, *SHOWN}
    assert here == run
