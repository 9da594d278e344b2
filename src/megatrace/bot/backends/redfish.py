"""A board's controller through Redfish: fans, temperatures, power supplies, leaks, its event log, its
firmware.

Both layouts are read, the old (Thermal, Power) and the new (ThermalSubsystem, PowerSubsystem), because boards
in service have either. A resource that is missing or broken is left out and named in ``missing``: a partial
answer is one. Reads only; nothing here writes to a controller."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sushy
from sushy.resources.base import ResourceBase

from megatrace.bot.backends.login import read_login
from megatrace.errors import MegatraceError, sentence

MOST = 64
"""Members of a collection that are read: a board has fewer fans, supplies and leak detectors."""
MOST_EVENTS = 500
"""Newest events of the log: a page of most controllers has 50 to 1,000."""
TIMEOUT_S = 10.0
"""For one request; a controller under load answers in seconds."""

Json = dict[str, Any]


class Board:
    """One Redfish service. ``missing`` collects what it has not, or cannot give."""

    def __init__(self, url: str, login: dict[str, str], verify: bool) -> None:
        kind = sushy.auth.BasicAuth if login else None
        auth = kind(username=login.get("user"), password=login.get("password")) if kind else None
        self._root = sushy.Sushy(url, auth=auth, verify=verify, server_side_retries=0, read_timeout=TIMEOUT_S)
        self.missing: list[str] = []

    def get(self, path: str) -> Json:
        """One resource as JSON; empty where there is none."""
        try:
            found = ResourceBase(self._root._conn, path).json  # the one way to a raw resource
        except sushy.exceptions.SushyError as error:
            self.missing.append(f"{path}: {type(error).__name__}")
            return {}
        return found if isinstance(found, dict) else {}

    def follow(self, resource: Json, *names: str) -> Json:
        """The resource that a link leads to, link by link; empty where one is missing."""
        for name in names:
            link = resource.get(name)
            path = link.get("@odata.id") if isinstance(link, dict) else None
            if not isinstance(path, str):
                return {}
            resource = self.get(path)
        return resource

    def members(self, collection: Json, most: int = MOST) -> Iterator[Json]:
        """Members of a collection, fetched one by one where only links are given."""
        for item in _list(collection, "Members")[:most]:
            path = item.get("@odata.id")
            yield self.get(path) if set(item) <= {"@odata.id"} and isinstance(path, str) else item

    @property
    def root(self) -> Json:
        """The service's root."""
        return dict(self._root.json)


def read_board(board: Board) -> Json:
    """Everything that the checks of a board look at, as plain JSON."""
    lists = ("fans", "temperatures", "supplies", "redundancy", "leaks", "log")
    found: Json = {"system": {}, "firmware": {}} | {name: [] for name in lists}
    root = board.root
    for system in board.members(board.follow(root, "Systems")):
        found["system"] = {
            name: system.get(name) for name in ("Name", "SerialNumber", "PowerState", "Status")
        }
    for chassis in board.members(board.follow(root, "Chassis")):
        _chassis(board, chassis, found)
    for manager in board.members(board.follow(root, "Managers")):
        for service in board.members(board.follow(manager, "LogServices")):
            found["log"] += [_event(item) for item in _newest(board, service)]
    for item in board.members(board.follow(root, "UpdateService", "FirmwareInventory")):
        found["firmware"][str(item.get("Name") or item.get("Id"))] = item.get("Version")
    found["missing"] = board.missing[:20]
    return found


def _chassis(board: Board, chassis: Json, found: Json) -> None:
    thermal, power = board.follow(chassis, "Thermal"), board.follow(chassis, "Power")
    found["fans"] += [_part(item, "Reading") for item in _list(thermal, "Fans")]
    found["temperatures"] += [_part(item, "ReadingCelsius") for item in _list(thermal, "Temperatures")]
    found["supplies"] += [_part(item, "PowerInputWatts") for item in _list(power, "PowerSupplies")]
    found["redundancy"] += [_part(item, "") for item in _list(power, "Redundancy")]
    cooling = board.follow(chassis, "ThermalSubsystem") if "ThermalSubsystem" in chassis else {}
    if cooling and not thermal:
        found["fans"] += [_part(item, "") for item in board.members(board.follow(cooling, "Fans"))]
    detectors = board.follow(cooling, "LeakDetection", "LeakDetectors") if cooling else {}
    found["leaks"] += [
        _part(item, "") | {"state": item.get("DetectorState")} for item in board.members(detectors)
    ]
    if "PowerSubsystem" in chassis and not power:
        supplies = board.follow(chassis, "PowerSubsystem", "PowerSupplies")
        found["supplies"] += [_part(item, "") for item in board.members(supplies)]


def _part(item: Json, reading: str) -> Json:
    status = item.get("Status") if isinstance(item.get("Status"), dict) else {}
    return {
        "name": str(item.get("Name") or item.get("MemberId") or item.get("Id")),
        "health": (status or {}).get("Health"),
        "enabled": (status or {}).get("State"),
        "value": item.get(reading) if reading else None,
        "serial": item.get("SerialNumber"),
        "place": item.get("PhysicalContext"),
        "high": item.get("UpperThresholdCritical"),
    }


def _newest(board: Board, service: Json) -> list[Json]:
    entries = board.follow(service, "Entries")
    items = list(board.members(entries, MOST_EVENTS))
    return sorted(items, key=lambda item: str(item.get("Created") or ""))[-MOST_EVENTS:]


def _event(item: Json) -> Json:
    return {
        "id": str(item.get("Id")),
        "created": item.get("Created"),
        "severity": item.get("Severity"),
        "sensor": item.get("SensorType"),
        "name": item.get("Name"),
        "message": item.get("Message"),
        "code": item.get("EntryCode"),
    }


def _list(resource: Json, name: str) -> list[Json]:
    found = resource.get(name)
    return [item for item in found if isinstance(item, dict)][:MOST_EVENTS] if isinstance(found, list) else []


def main(arguments: list[str] | None = None) -> int:
    """0 with JSON on the output, 1 with a sentence where the controller gave no answer."""
    parser = argparse.ArgumentParser(prog="megatrace-redfish", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--login", type=Path, help="file with user: and password:")
    parser.add_argument("--insecure", action="store_true", help="a certificate that nobody signed is taken")
    given = parser.parse_args(arguments)
    try:
        board = Board(given.url, read_login(given.login), not given.insecure)
        found = read_board(board)
    except MegatraceError as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    except (sushy.exceptions.SushyError, OSError, ValueError) as error:
        said = sentence(
            "no answer through Redfish", where=given.url, found=f"{type(error).__name__}: {error!s:.200}"
        )
        print(said, file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    print(json.dumps(found, indent=1))  # noqa: T201 - this is a program
    return 0


if __name__ == "__main__":
    sys.exit(main())
