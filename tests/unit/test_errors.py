"""An error is one sentence that names the place, what was expected, what was found, and what to do."""

from __future__ import annotations

import doctest

import pytest

from megatrace import errors


def test_the_example_in_the_docstring_is_true() -> None:
    assert doctest.testmod(errors).attempted > 0
    assert doctest.testmod(errors).failed == 0


def test_exit_codes_follow_from_the_class() -> None:
    assert {
        cls.__name__: cls.exit_code for cls in (errors.UsageError, errors.ConfigError, errors.UnknownName)
    } == {
        "UsageError": 2,
        "ConfigError": 2,
        "UnknownName": 2,
    }
    for cls in (errors.TraceError, errors.UnknownFormat, errors.CorruptTrace, errors.UnsupportedVersion):
        assert issubclass(cls, errors.TraceError)
        assert cls.exit_code == 3
    assert (errors.EXIT_FAULT_FOUND, errors.EXIT_CANNOT_TELL) == (10, 11)
    assert sorted(errors.EXIT_CODES) == [0, 2, 3, 10, 11]


def test_a_wrong_configuration_names_key_value_and_what_is_allowed() -> None:
    error = errors.ConfigError("parallel.tensor", -4, "a whole number of at least 1", path="job.yaml")
    assert str(error) == "job.yaml: parallel.tensor is wrong: expected a whole number of at least 1, found -4"
    assert (error.key, error.value) == ("parallel.tensor", -4)


def test_an_unknown_name_lists_the_names_and_the_likely_one() -> None:
    error = errors.UnknownName("command", "diagnos", ["version", "diagnose"])
    assert (
        str(error) == "no command is called 'diagnos'; did you mean diagnose? (there are: diagnose, version)"
    )
    assert error.close == "diagnose"
    assert str(errors.UnknownName("check", "x", [])) == "no check is called 'x' (there are: none)"


def test_an_unknown_format_gives_the_reason_of_each_reader() -> None:
    error = errors.UnknownFormat("x.bin", {"ring": "no magic", "calllog": "no line matches"}, do="name a log")
    assert str(error) == "x.bin: no reader takes it (calllog: no line matches; ring: no magic); name a log"
    assert (error.path, error.reasons["ring"]) == ("x.bin", "no magic")


@pytest.mark.parametrize(
    ("offset", "line", "where"),
    [(None, None, "r.log"), (None, 18_135, "r.log line 18,135"), (4096, None, "r.log at byte 4,096")],
)
def test_a_corrupt_trace_names_its_place(offset: int | None, line: int | None, where: str) -> None:
    error = errors.CorruptTrace("r.log", "the line is cut off", offset=offset, line=line, do="nothing to do")
    assert str(error) == f"{where}: the line is cut off; nothing to do"
    assert (error.offset, error.line, error.path) == (offset, line, "r.log")


def test_an_unsupported_version_says_which_are_read() -> None:
    error = errors.UnsupportedVersion(
        "a.ring", "a ring file", found=9, supported="1 to 2", do="upgrade megatrace"
    )
    assert (
        str(error)
        == "a.ring: a ring file of an unsupported version: expected 1 to 2, found 9; upgrade megatrace"
    )


def test_refusals_are_all_listed() -> None:
    error = errors.ActionRefused(
        "drain node188", ["3 nodes are drained already", "the job is 2 minutes from its end"]
    )
    assert (
        str(error)
        == "drain node188 is refused: 3 nodes are drained already; the job is 2 minutes from its end"
    )
    assert len(error.refusals) == 2


def test_what_can_be_retried_says_so() -> None:
    assert errors.NotifyFailed("429", permanent=False, retry_after=3.0).retry_after == 3.0
    assert errors.ActionFailed("no such node", permanent=True).permanent is True


def test_values_from_outside_cannot_fill_or_break_the_line() -> None:
    assert len(errors.clip("x" * 10_000)) == 60
    assert errors.clip("a\x1b[31m\n") == "'a\\x1b[31m\\n'"
