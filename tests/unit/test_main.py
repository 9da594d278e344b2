"""The command line: help that fits a screen, errors of one line, the right exit code, never a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated

import pytest
import typer

import megatrace
from megatrace.commands import COMMANDS
from megatrace.commands import main as program
from megatrace.errors import CorruptTrace, MegatraceError, NotInstalled, UsageError
from megatrace.registry import Declaration

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = program.main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int | None]], str]:
    """Adds a verb for one test, beside the real ones."""

    def add(function: Callable[..., int | None]) -> str:
        monkeypatch.setattr(COMMANDS, "_declared", {d.name: d for d in COMMANDS.declarations()})
        monkeypatch.setattr(COMMANDS, "_values", dict(COMMANDS._values))
        COMMANDS.register("probe", summary="tests", examples=["megatrace probe --count 3"], order=99)(
            function
        )
        return "probe"

    return add


def test_help_fits_a_screen_with_the_examples_first(run: Run) -> None:
    code, out, err = run("--help")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines.index(next(line for line in lines if line.startswith("  megatrace "))) < lines.index(
        next(line for line in lines if line.startswith("Commands"))
    )
    for name in COMMANDS.names():
        assert any(line.startswith(f"  {name} ") for line in lines), name


def test_no_argument_gives_the_help_and_counts_as_wrong_usage(run: Run) -> None:
    code, out, _ = run()
    assert code == 2
    assert out == run("--help")[1]


def test_version_option(run: Run) -> None:
    assert run("--version") == (0, f"megatrace {megatrace.__version__}\n", "")


def test_version_says_what_is_installed_and_about_the_native_part(run: Run) -> None:
    code, out, err = run("version")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, err) == (0, "")
    assert rows["megatrace"] == megatrace.__version__
    assert rows["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert list(rows) == ["megatrace", "python", "numpy", "native"]
    assert rows["native"].startswith(("loaded: ", "not loaded: "))
    assert len(rows["native"]) > len("not loaded: ")


def test_an_unknown_verb_names_the_likely_one(run: Run) -> None:
    code, out, err = run("versio")
    assert (code, out) == (2, "")
    assert err.startswith("error: no command is called 'versio'; did you mean version? (there are: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--foo",), "no such option: --foo; see megatrace --help"),
        (("version", "--foo"), "no such option: --foo; see megatrace version --help"),
        (("version", "extra"), "got unexpected extra argument(s) (extra); see megatrace version --help"),
    ],
)
def test_wrong_usage_is_one_line_with_the_way_to_the_help(
    run: Run, arguments: tuple[str], message: str
) -> None:
    assert run(*arguments) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("arguments", [("inject",), ("diagnose", "x", "--lang", "fr")])
def test_a_list_of_choices_stays_on_the_line(run: Run, arguments: tuple[str, ...]) -> None:
    _, _, err = run(*arguments)
    assert err.count("\n") == 1
    assert "\t" not in err
    assert "Value error" not in err


def test_a_verbs_help_has_its_examples_before_its_options(run: Run, verb: Callable[..., str]) -> None:
    def probe(count: Annotated[int, typer.Option(help="how many")] = 1) -> None:
        """Not shown.

        The rest of the docstring is shown.
        """

    _, out, _ = run(verb(probe), "--help")
    assert "Not shown" not in out
    assert (
        out.index("Tests.")
        < out.index("  megatrace probe --count 3\n")
        < out.index("The rest of the docstring")
    )
    assert out.index("The rest") < out.index("how many")


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (10, 10), (11, 11)])
def test_what_a_verb_returns_is_the_exit_code(
    run: Run, verb: Callable[..., str], returned: int | None, code: int
) -> None:
    def probe() -> int | None:
        return returned

    assert run(verb(probe)) == (code, "", "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such rank: 9"), 2, "no such rank: 9"),
        (CorruptTrace("a.log", "cut off", line=3), 3, "a.log line 3: cut off"),
        (
            NotInstalled("report", "html", "jinja2 is missing"),
            2,
            "report html cannot be used here: jinja2 is missing",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "out.html"),
            3,
            "out.html: No space left on device",
        ),
    ],
)
def test_errors_are_one_line_on_stderr(
    run: Run, verb: Callable[..., str], error: Exception, code: int, line: str
) -> None:
    def probe() -> None:
        raise error

    assert run(verb(probe)) == (code, "", f"error: {line}\n")


def test_ctrl_c_is_quiet(run: Run, verb: Callable[..., str]) -> None:
    def probe() -> None:
        raise KeyboardInterrupt

    assert run(verb(probe)) == (130, "", "")


def test_a_bug_keeps_its_traceback(run: Run, verb: Callable[..., str]) -> None:
    def probe() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(verb(probe))


def test_every_error_class_is_caught_at_the_top() -> None:
    from megatrace import errors

    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(classes) >= 12
    assert all(issubclass(cls, MegatraceError) for cls in classes)


def test_a_reader_that_goes_away_is_no_error() -> None:
    end_read, end_write = os.pipe()
    os.close(end_read)
    done = subprocess.run(
        [sys.executable, "-m", "megatrace", "version"], stdout=end_write, stderr=subprocess.PIPE, check=False
    )
    os.close(end_write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_ascii_terminal_gets_question_marks_and_no_traceback() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "megatrace", "µ×"], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: no command is called '??'")


def test_help_imports_neither_numpy_nor_a_verb() -> None:
    script = (
        "import sys\nfrom megatrace.commands.main import main\nmain(['--help'])\n"
        "heavy = ('numpy', 'pyarrow', 'pydantic', 'yaml', 'jinja2')\n"
        "print([m for m in sys.modules if m.partition('.')[0] in heavy"
        " or m.startswith('megatrace.commands.') and m != 'megatrace.commands.main'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_verbs_are_listed_by_order_then_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        name: Declaration(name, f"does {name}", "m", {"order": order, "examples": [f"megatrace {name}"]})
        for name, order in (("zeta", 10), ("alpha", 50), ("beta", 50))
    }
    monkeypatch.setattr(COMMANDS, "_declared", rows)
    help_text = program.group_help()
    assert help_text.index("does zeta") < help_text.index("does alpha") < help_text.index("does beta")
    assert help_text.index("  megatrace zeta") < help_text.index("  megatrace alpha")
