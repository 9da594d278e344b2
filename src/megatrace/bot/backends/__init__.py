"""Protocols of what is not a node: boards' controllers, switches. Each is a program that asks and prints
JSON.

A check runs it as it runs ``nvidia-smi`` (``System.run``): it is killed at its limit, its answer can be
recorded and replayed, and the library that speaks the protocol is imported in that program alone, never in
the agent. Secrets come from a file, since every user of a machine sees a program's arguments.

    python -m megatrace.bot.backends.redfish URL --login FILE
    python -m megatrace.bot.backends.snmp ADDRESS --login FILE

Belongs here: asking, and putting the answer into one shape. Does not: judging it (``checks``)."""

from __future__ import annotations

from collections.abc import Mapping

PROGRAMS: Mapping[str, str] = {
    "megatrace-redfish": f"{__name__}.redfish",
    "megatrace-snmp": f"{__name__}.snmp",
}
"""The name under which a check runs a program, and a recording keeps its answer → its module."""
MAX_LOGIN = 4096
"""Bytes of a file with a user and a password."""
