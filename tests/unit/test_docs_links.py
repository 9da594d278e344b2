"""The documents are true where a machine can tell: links lead somewhere, commands exist, samples are real."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from megatrace.commands import COMMANDS
from megatrace.commands.main import build, main
from tools.budget import tracked

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in tracked(ROOT) if path.suffix == ".md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SAMPLE = re.compile(r"<!-- sample: (\S+)( zh)? -->\n```text\n(.*?)\n```", re.DOTALL)
STOPS = {"|", "||", "&&", ";", ">", "#"}


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of every `megatrace …` line of the fenced blocks of a page."""
    for kind, block in FENCE.findall(text):
        for line in block.splitlines():
            line = line.strip().removeprefix("$ ")
            if not line.startswith("megatrace ") or (kind == "text" and "$ " + line not in block):
                continue  # a line of output may begin with the name of the program
            words = shlex.split(line, comments=True)
            end = next((i for i, word in enumerate(words) if word.strip("0123456789") in STOPS), len(words))
            yield words[1:end]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", (ROOT / page).read_text("utf-8"))
    targets = [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    broken = [link for link in targets if not ((ROOT / page).parent / link.partition("#")[0]).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_exist_with_their_options(page: Path) -> None:
    for verb, *arguments in commands((ROOT / page).read_text("utf-8")):
        if verb.startswith("--"):
            assert verb in ("--help", "--version")
            continue
        assert verb in COMMANDS.names(), f"{page}: there is no megatrace {verb}"
        options = {name for parameter in build(verb).params for name in parameter.opts} | {"--help"}
        own = takewhile(lambda word: word != "--", arguments)  # what follows is somebody else's command
        used = {word.partition("=")[0] for word in own if word.startswith("--")}
        assert used <= options, f"{page}: megatrace {verb} has no {used - options}"


def test_commands_are_found_at_all() -> None:
    shell = "```sh\nmegatrace diagnose a b --now now | jq .x # why\n```\n"
    text = shell + "```text\n$ megatrace dump\nmegatrace is a line of output\n```"
    assert list(commands(text)) == [["diagnose", "a", "b", "--now", "now"], ["dump"]]
    assert sum(len(list(commands((ROOT / page).read_text("utf-8")))) for page in PAGES) > 20


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    assert main(["simulate", "slow-gpu", "--out", str(folder / "logs")]) == 0
    return folder / "logs"


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "docs/tutorial/first-diagnosis.md"])
def test_samples_are_what_the_tool_says(page: str, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = SAMPLE.findall((ROOT / page).read_text("utf-8"))
    assert samples, f"{page} has no sample"
    for name, chinese, text in samples:
        if name == "inspect":
            continue
        assert name == "slow-gpu", "make the logs of this scenario, too"
        assert main(["diagnose", str(logs), *(["--lang", "zh"] if chinese else [])]) == 10
        told = capsys.readouterr().out
        shown = [line for line in text.splitlines() if not line.startswith("$ ")]
        assert shown[-1].strip() == "…"
        assert told.startswith("\n".join(shown[:-1])), f"{page}: run the command above the sample and paste"


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_what_an_inspection_says_is_as_shown(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [
        text for name, _, text in SAMPLE.findall((ROOT / page).read_text("utf-8")) if name == "inspect"
    ]
    assert samples, f"{page} has no sample"
    for text in samples:
        command, *shown = text.splitlines()
        assert main(shlex.split(command.removeprefix("$ megatrace "))) == 10
        told = _timeless(capsys.readouterr().out)
        for part in _timeless("\n".join(shown)).split("…"):  # what is left out is marked so
            assert part.strip() in told, f"{page}: run the command of the sample and paste"


def _timeless(text: str) -> str:
    """Without line breaks, which follow from the seconds that it took, and without these."""
    return re.sub(r"in [\d.]+ s\b", "in … s", " ".join(text.split()))
