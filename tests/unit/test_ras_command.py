"""`megatrace ras` against a server that speaks RAS's protocol, on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from megatrace.collect.ras_client import PORT, Address, ask, parse_address
from megatrace.commands.main import main
from megatrace.errors import CollectError, UsageError
from tests.unit.test_ras import answer, level, text


@contextmanager
def server(answers: list[str], *, knows_json: bool = True) -> Iterator[int]:
    """Gives one answer a connection, in turn."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for content in answers:
            connection, _ = listening.accept()
            with connection, connection.makefile("rw", newline="\n") as lines:
                for line in lines:
                    word = line.strip().upper()
                    if word.startswith("CLIENT PROTOCOL"):
                        lines.write("SERVER PROTOCOL 2\n")
                    elif word.startswith("SET FORMAT") and not knows_json:
                        lines.write("ERROR: Unknown command SET FORMAT json\n")
                    elif word == "VERBOSE STATUS":
                        lines.write(content)
                        break
                    else:
                        lines.write("OK\n")
                    lines.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        listening.close()
        thread.join(5)


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("node7", "node7", PORT), ("node7:99", "node7", 99), (":99", "localhost", 99),
        ("[fe80::1]:7", "fe80::1", 7), ("fe80::1", "fe80::1", PORT), ("[fe80::1]", "fe80::1", PORT),
    ],
)  # fmt: skip
def test_addresses(given: str, host: str, port: int) -> None:
    assert parse_address(given) == Address(host, port)


@pytest.mark.parametrize("given", ["node7:x", "node7:0", "node7:99999"])
def test_no_addresses(given: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(given)


def test_two_answers_of_a_job_that_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = level(40)
    ranks[3]["collective_counts"]["AllReduce"] = 39
    both = [answer(("0xa", ranks, []), at=f"2025-12-19 13:06:{second}") for second in (10, 20)]
    slept: list[float] = []
    monkeypatch.setattr("megatrace.commands.ras.time.sleep", slept.append)
    with server(both) as port:
        code = main(["ras", f"127.0.0.1:{port}", "--apart", "10", "--save", str(tmp_path / "out")])
    assert code == 10
    assert slept == [10.0]
    shown = " ".join(capsys.readouterr().out.split())
    assert "rank 3 (10.0.0.0 GPU 3, process 1003) never launched AllReduce #40" in shown
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["ras_1.json", "ras_2.json"]
    assert main(["diagnose", str(tmp_path / "out")]) == 10


def test_a_server_that_only_knows_text() -> None:
    rows = "    0         1         4         8        32        32   RUNNING      OK"
    with server([text(rows)], knows_json=False) as port:
        got = ask(Address("127.0.0.1", port), timeout_s=10)
    assert got.startswith(b"NCCL version 2.27.5")


def test_nobody_there_is_said_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = int(closed.getsockname()[1])
    with pytest.raises(CollectError, match="NCCL_RAS_ENABLE"):
        ask(Address("127.0.0.1", port), timeout_s=5)


def test_somebody_else_there_is_said() -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(CollectError, match="not as NCCL's RAS does"):
        ask(Address("127.0.0.1", int(listening.getsockname()[1])), timeout_s=5)
    listening.close()
    thread.join(5)
