"""The house keeps its own rules: budgets, catalogues, documents, markers that may not be skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import grimp
import pytest

import megatrace
from megatrace import native
from megatrace.errors import EXIT_CODES
from tools import budget, docs

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = (ROOT / "tests" / "conftest.py").read_text("utf-8")


def test_the_tree_is_within_its_budgets() -> None:
    assert [str(breach) for breach in budget.check(ROOT) if breach.fatal] == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(400, []), (401, [False]), (700, [False]), (701, [True])],
    ids=["ok", "warn", "edge", "fail"],
)
def test_long_files_warn_and_longer_ones_fail(lines: int, expected: list[bool]) -> None:
    assert [breach.fatal for breach in budget.check_size(Path("a.cc"), "x\n" * lines)] == expected


def test_a_function_of_91_lines_fails_and_one_of_90_does_not() -> None:
    source = "def f():\n" + "    x = 1\n" * 89
    assert list(budget.check_size(Path("a.py"), source)) == []
    (breach,) = budget.check_size(Path("a.py"), "\n" + source + "    x = 2\n")
    assert str(breach) == "error: a.py:2: f has 91 lines, the limit is 90"


def test_the_percentile_is_the_length_that_95_of_100_do_not_exceed() -> None:
    assert budget.percentile95([10] * 95 + [80] * 5) == 10
    assert budget.percentile95([10] * 94 + [80] * 6) == 80
    assert budget.percentile95([]) == 0


@pytest.mark.parametrize("name", ["src/megatrace/utils.py", "helpers/a.py", "core.cc", "a/Common.h"])
def test_names_that_say_nothing_are_refused(name: str) -> None:
    assert [breach.fatal for breach in budget.check_name(Path(name))] == [True]
    assert list(budget.check_name(Path("src/megatrace/units.py"))) == []


@pytest.mark.parametrize("line", ["see /" + "work/x", "cd /" + "root/", "https://deb." + "debian.org/x"])
def test_paths_of_one_machine_are_refused(line: str) -> None:
    (breach,) = budget.check_machine(Path("a.md"), f"fine\n{line}\n")
    assert str(breach).startswith("error: a.md:2: ")
    assert list(budget.check_machine(Path("a.md"), "the network/" + "work/load of a node\n")) == []


def test_generated_pages_follow_the_code() -> None:
    assert docs.stale() == [], "run make docs"


def test_plugins_of_one_catalogue_do_not_import_each_other() -> None:
    graph = grimp.build_graph("megatrace")
    catalogues = list(docs.catalogues())
    assert "megatrace.commands" in {catalogue.package for catalogue in catalogues}
    for catalogue in catalogues:
        plugins = {declared.module for declared in catalogue.declarations()}
        for plugin in plugins:
            neighbours = graph.find_modules_directly_imported_by(plugin) & (plugins - {plugin})
            assert not neighbours, f"{plugin} imports {neighbours}: a plug-in may not know its neighbours"


def test_every_package_says_what_belongs_there() -> None:
    for init in (ROOT / "src" / "megatrace").rglob("__init__.py"):
        first = init.read_text("utf-8").partition("\n")[0]
        assert first.startswith('"""'), f"{init} has no docstring"
        assert len(first) > 20, f"{init} says nothing of what belongs there"


def test_the_readmes_name_the_exit_codes() -> None:
    for name in ("README.md", "README.zh.md"):
        text = (ROOT / name).read_text("utf-8")
        assert set(map(int, re.findall(r"^\| (\d+) \|", text, re.MULTILINE))) == set(EXIT_CODES), name


def test_links_between_documents_lead_somewhere() -> None:
    local = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
    broken = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for link in local.findall(path.read_text("utf-8"))
        if not (path.parent / link).exists()
    ]
    assert broken == []


def test_the_changelog_knows_this_version_or_what_is_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"## [{megatrace.__version__}]" in text or "## [Unreleased]" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler here: the wheel is pure")
def test_where_there_is_a_compiler_the_native_part_is_loaded() -> None:
    if native.status().reason.startswith("switched off"):
        pytest.skip(native.status().reason)
    assert native.status().loaded, native.status().reason


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A small project with this project's conftest."""
    monkeypatch.delenv("MEGATRACE_REQUIRE", raising=False)
    monkeypatch.setenv("MEGATRACE_SHARED", str(pytester.path / "nowhere"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n    shared: handed inputs\n    torch: needs PyTorch\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.shared
        def test_reads(shared_dir):
            assert (shared_dir / "x").exists()

        @pytest.mark.torch
        def test_trains():
            pytest.skip("no torch")

        @pytest.mark.torch
        @pytest.mark.xfail(reason="known")
        def test_known():
            assert False

        def test_plain():
            pass
        """
    )
    return pytester


def test_without_the_handed_inputs_a_test_skips_with_the_reason(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)
    result.stdout.fnmatch_lines(["*no handed inputs at *nowhere (set MEGATRACE_SHARED)*"])


def test_a_required_marker_may_not_skip(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRACE_REQUIRE", "torch")
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1, skipped=1, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(["*MEGATRACE_REQUIRE names torch, but the test says: *no torch*"])


def test_required_inputs_that_are_absent_fail(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATRACE_REQUIRE", "shared, torch")
    project.runpytest_subprocess().assert_outcomes(passed=1, errors=1, failed=1, xfailed=1)


def test_a_required_marker_that_does_not_exist_is_refused(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATRACE_REQUIRE", "sharde")
    result = project.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*MEGATRACE_REQUIRE names sharde, which is no marker of this project*"])


def test_a_module_may_not_skip_as_a_whole_in_ci(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(test_whole="import pytest\npytest.importorskip('no_such_module_at_all')\n")
    project.runpytest_subprocess().assert_outcomes(passed=1, skipped=3, xfailed=1)
    monkeypatch.setenv("MEGATRACE_REQUIRE", "shared")
    result = project.runpytest_subprocess("test_whole.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a module may not skip as a whole under MEGATRACE_REQUIRE*"])


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
def test_the_time_per_marker_is_printed(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    result = project.runpytest_subprocess(*workers)
    lines = [line for line in result.stdout.str().splitlines() if line.strip()]
    start = next(number for number, line in enumerate(lines) if "time per marker" in line)
    rows = {line.split()[0]: line.split()[1:3] for line in lines[start + 1 : start + 4]}
    assert rows == {"(none)": ["1", "tests"], "shared": ["1", "tests"], "torch": ["2", "tests"]}


def test_ci_is_a_script_that_needs_no_terminal() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    done = subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
