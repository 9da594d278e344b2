"""The gate of a scheduler: closed only for a definite fault and with a token, and never for long."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from megatrace.bot.check_runner import Switches
from megatrace.bot.gate import FAST, Decision, completed, decide, fast, told, within
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import machine
from megatrace.commands.main import main
from megatrace.errors import UsageError
from megatrace.model.check import CheckResult, Inspection, Outcome

Answer = Callable[[dict[str, Any]], object]


@contextmanager
def controller(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A controller on the loopback: its address, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            said = json.dumps(answer(asked[-1])).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *words: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def inspected(sick: bool = True, switches: Switches | None = None) -> Inspection:
    made = machine("h100-ib")
    if sick:
        made.dark[3, 7] = "<inactive>"
    return inspect_recording(written(made), fast(catalogue()), switches=switches)


def granting(granted: bool) -> Answer:
    return lambda asked: {"granted": granted, "reason": "2 of 3 nodes are out"}


def test_the_fast_checks_are_all_there() -> None:
    assert tuple(item.id for item in fast(catalogue())) == FAST


def test_a_definite_fault_with_a_token_closes() -> None:
    with controller(granting(True)) as (url, asked):
        verdict = decide(inspected(), url, "8812")
    assert verdict.closed
    assert (asked[0]["node"], asked[0]["job"]) == ("node188", "8812")
    assert asked[0]["reasons"][0]["fingerprint"].startswith("NVL-01:node188:0000:61:00.0")
    assert "0000:61:00.0" in told(verdict, inspected())


def test_without_a_token_the_job_passes_and_the_fault_is_told() -> None:
    with controller(granting(False)) as (url, _):
        verdict = decide(inspected(), url)
    assert (verdict.decision, verdict.closed) == (Decision.NO_BUDGET, False)
    assert verdict.reasons
    assert "2 of 3 nodes are out" in told(verdict, inspected())


@pytest.mark.parametrize("answer", [{}, [], {"granted": "yes"}, {"granted": 1}])
def test_an_answer_that_is_no_token_is_none(answer: object) -> None:
    with controller(lambda asked: answer) as (url, _):
        assert decide(inspected(), url).decision is Decision.NO_CONTROLLER


def test_a_controller_that_takes_its_time_is_not_waited_for() -> None:
    release = threading.Event()

    def slow(asked: dict[str, Any]) -> object:
        release.wait(20)
        return {"granted": True}

    with controller(slow) as (url, _):
        verdict = decide(inspected(), url)  # the server still stands in its answer here
        release.set()
    assert verdict.decision is Decision.NO_CONTROLLER
    assert not verdict.closed


def test_no_controller_at_all() -> None:
    assert decide(inspected(), None).decision is Decision.NO_CONTROLLER
    assert decide(inspected(), "http://127.0.0.1:9").decision is Decision.NO_CONTROLLER
    with pytest.raises(UsageError, match="is no address"):
        decide(inspected(), "controller:80")


def test_nobody_is_asked_where_nothing_is_definite() -> None:
    with controller(granting(True)) as (url, asked):
        assert decide(inspected(sick=False), url).decision is Decision.WELL
        watched = inspected(switches=Switches(frozenset(), frozenset({"NVL-01"})))
        assert decide(watched, url).decision is Decision.NOT_SURE
        hung = replace(inspected(sick=False), results=(CheckResult("GPU-03", Outcome.UNKNOWN, "no time"),))
        assert decide(hung, url).decision is Decision.NOT_SURE
    assert asked == []


def test_checks_share_the_time_there_is() -> None:
    checks = fast(catalogue())
    limits = []
    for item in within(checks, 2.0, 0.1):
        limits.append(item.timeout_s)
        if len(limits) == 2:
            time.sleep(1.9)  # the second one uses up what is left
    assert len(limits) == 2
    assert max(limits) <= 1.9
    found = completed(inspected(sick=False), checks)
    assert found.of(Outcome.UNKNOWN) == ()
    cut = replace(found, results=found.results[:3])
    assert [item.check for item in completed(cut, checks).of(Outcome.UNKNOWN)] == list(FAST[3:])


def test_the_command_on_this_machine(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    state, ledger = str(tmp_path / "state.json"), str(tmp_path / "ledger.db")
    assert main(["inspect", "--gate", "--state", state, "--ledger", ledger]) == 0
    assert capsys.readouterr().err.startswith("megatrace gate: ")
    assert main(["inspect", "--scope", "switch"]) == 2
    assert "needs --name" in capsys.readouterr().err


def test_a_board_that_is_asked_from_here_is_skipped_where_nobody_says_how(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "state.json")
    code = main(["inspect", "--scope", "switch", "--name", "leaf1", "--state", state, "--format", "json"])
    said = json.loads(capsys.readouterr().out)
    assert (code, said["node"]) == (0, "leaf1")
    assert {item["outcome"] for item in said["results"]} == {"SKIPPED"}
