"""Asks the RAS thread of a running NCCL job for its status, as ``ncclras`` does.

Every process of a job listens on one TCP port of its node (28028 by default, NCCL 2.24 and later) and answers
for the whole job. The protocol is lines of text; the answer ends with the connection. Where the server is too
old for JSON (before 2.28.7) the text form is taken.

Changes nothing in the job. Does not read the answer: ``readers.ras`` does.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from megatrace.errors import CollectError, UsageError

PORT = 28028
MAX_BYTES = 512 << 20
"""Of one answer: the JSON of 10,000 ranks in thirty communicators each is 200 MB."""
MAX_LINE = 1 << 16
"""Of one line of the protocol before the answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a RAS thread listens."""

    host: str
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """ "node7", "node7:28028", "[fe80::1]:28028", ":28028". Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not text.startswith("[")):
        return Address(text.strip("[]") or "localhost")
    if text.endswith("]"):
        return Address(text.strip("[]"))
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no address: give HOST or HOST:PORT, as in node7:28028")
    return Address(host.strip("[]") or "localhost", int(port))


def ask(address: Address, *, timeout_s: float = 30.0, as_json: bool = True) -> bytes:
    """The answer to one query, with every rank in it.

    ``timeout_s`` bounds the whole query. Raises CollectError with what to do.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection((address.host, address.port), timeout=timeout_s) as connection:
            lines = _Lines(connection, deadline)
            lines.send("CLIENT PROTOCOL 2")
            hello = lines.line()
            if not hello.upper().startswith("SERVER PROTOCOL"):
                raise CollectError(f"{address} answers, but not as NCCL's RAS does ({hello[:60]!r})")
            lines.send(f"TIMEOUT {max(timeout_s / 2, 1):.0f}")
            lines.line()
            if as_json:
                lines.send("SET FORMAT json")
                lines.line()  # "OK", or an error of a server that only knows text
            lines.send("VERBOSE STATUS")
            return lines.rest()
    except TimeoutError as error:
        raise CollectError(
            f"{address} did not answer within {timeout_s:.0f} s: NCCL's RAS thread there may be stuck; "
            "ask another node"
        ) from error
    except OSError as error:
        raise CollectError(
            f"{address} cannot be asked ({error.strerror or error}): is a job with NCCL 2.24 or later "
            "running there, and is NCCL_RAS_ENABLE not 0? By default RAS listens on localhost only: run this "
            "on a node"
        ) from error


class _Lines:
    """A connection, line by line, within one deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline, self._have = connection, deadline, b""

    def send(self, line: str) -> None:
        self._left()
        self._connection.sendall(f"{line}\n".encode("ascii"))

    def line(self) -> str:
        while b"\n" not in self._have:
            if len(self._have) > MAX_LINE or not self._more():
                return self._take(len(self._have))
        return self._take(self._have.index(b"\n") + 1)

    def rest(self) -> bytes:
        parts, total = [self._have], len(self._have)
        while total <= MAX_BYTES and (part := self._receive()):
            parts.append(part)
            total += len(part)
        return b"".join(parts)

    def _take(self, size: int) -> str:
        line, self._have = self._have[:size], self._have[size:]
        return line.decode("utf-8", "replace").strip()

    def _more(self) -> bool:
        part = self._receive()
        self._have += part
        return bool(part)

    def _receive(self) -> bytes:
        self._left()
        return self._connection.recv(1 << 16)

    def _left(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
