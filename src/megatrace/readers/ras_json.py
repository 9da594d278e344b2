"""The JSON that RAS answers with since NCCL 2.28.7, and the events of its monitor (2.29).

The fields differ between releases; what is not there is not known. Names of operations are taken as they
come.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timezone
from typing import Any

from megatrace.model.ras import Absence, Missing, Process, RasCommunicator, RasSnapshot, Tally
from megatrace.readers.ras_text import MAX_SIZE
from megatrace.units import NS_PER_S

MAX_VALUES = 64
"""Documents in one file: somebody who queries every minute writes more, and the last ones tell."""
ERRORS = {
    1: "Unhandled CUDA error", 2: "Unhandled System error", 3: "Internal error", 4: "Invalid argument",
    5: "Invalid usage", 6: "Remote process error", 8: "Timeout",
}  # fmt: skip
"""``ncclResult_t`` beyond success (0) and in progress (7)."""


def is_ras_json(head: bytes) -> bool:
    """Whether a file with this head is an answer of RAS in JSON, or events of its monitor."""
    begins = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"
    answer = b'"communicators"' in head and (b'"communicators_count"' in head or b'"nccl_version"' in head)
    return begins and (answer or (b'"LIFECYCLE"' in head and b'"peer"' in head))


def read_ras_json(text: str, source: str) -> list[RasSnapshot]:
    """Every answer in a text. Raises ValueError where it is no JSON."""
    decoder, at = json.JSONDecoder(parse_constant=_nothing), 0
    found: list[RasSnapshot] = []
    dead: list[Process] = []
    while at < len(text):
        while at < len(text) and text[at] in " \t\r\n,\x00\ufeff":
            at += 1
        if at >= len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            if found or dead:
                break  # a cut end: what came before is whole
            raise
        if isinstance(value, dict):
            event = _event(value)
            if event is not None:
                dead.append(event)
            elif isinstance(value.get("communicators"), list):
                found.append(_snapshot(value, source))
        if len(found) > MAX_VALUES:
            found = [found[0], *found[-MAX_VALUES + 1 :]]
    if dead:
        found.append(RasSnapshot(source, dead=tuple(dict.fromkeys(dead))))
    return found


def _nothing(_: str) -> None:
    return None


def _event(value: dict[str, Any]) -> Process | None:
    """The peer that an event of the monitor declares dead."""
    peer = value.get("peer")
    if value.get("event") != "PEER_DEAD" or not isinstance(peer, dict):
        return None
    devices = peer.get("cuda_devs")
    gpu = ",".join(str(item) for item in devices[:16]) if isinstance(devices, list) else None
    return Process(_word(peer.get("host")), _number(peer.get("pid")), gpu)


def _snapshot(value: dict[str, Any], source: str) -> RasSnapshot:
    listed = _list(value["communicators"])
    communicators = tuple(item for one in listed if (item := _communicator(one)) is not None)
    processes = {(process.host, process.pid) for item in communicators for _, process in item.places}
    gpus = {(p.host, p.pid, p.gpu) for item in communicators for _, p in item.places}
    gone = [one for item in communicators for one in item.missing]
    ras = value.get("ras")
    return RasSnapshot(
        source=source,
        version=_word(value.get("nccl_version")) or "",
        taken_at=_time(value.get("timestamp")),
        nodes=len({host for host, _ in processes}) or None,
        processes=len(processes) or None,
        gpus=len(gpus) or None,
        communicators=communicators,
        groups=tuple((1, item.size, item.status, "") for item in communicators),
        dead=tuple(dict.fromkeys(one.process for one in gone if one.why is Absence.DEAD)),
        unresponsive=tuple(dict.fromkeys(one.process for one in gone if one.why is Absence.UNRESPONSIVE)),
        timeouts=(_number(ras.get("timeouts_count")) or 0) if isinstance(ras, dict) else 0,
    )


def _communicator(value: dict[str, Any]) -> RasCommunicator | None:
    size = _number(value.get("size"))
    if size is None or not 0 < size <= MAX_SIZE:
        return None
    ranks = [item for item in _list(value.get("ranks")) if (_number(item.get("rank")) or 0) < size]
    ranks = [item for item in ranks if _number(item.get("rank")) is not None]
    places = {int(item["rank"]): _process(item) for item in ranks}
    missing = tuple(
        one for item in _list(value.get("missing_ranks")) if (one := _missing(item, size)) is not None
    )
    for one in missing:
        places.setdefault(one.rank, one.process)
    tallies, counts = _counted(ranks)
    return RasCommunicator(
        hash=(_word(value.get("hash")) or "").removeprefix("0x").lower(),
        size=size,
        nodes=len({process.host for process in places.values()}) or None,
        status=_most([_status(item) for item in ranks]),
        tallies=(*tallies, *_statuses(ranks)),
        counts=counts,
        missing=missing,
        places=tuple(sorted(places.items())),
    )


def _counted(ranks: list[dict[str, Any]]) -> tuple[list[Tally], tuple[tuple[str, int], ...]]:
    """Operations of which ranks launched different numbers, and the numbers of those on which all agree."""
    names = {str(name)[:40] for item in ranks[:64] for name in _counts(item)}
    tallies: list[Tally] = []
    agreed: list[tuple[str, int]] = []
    for name in sorted(names):
        by_value: dict[int, list[int]] = {}
        for item in ranks:
            number = _number(_counts(item).get(name))
            if number is not None:
                by_value.setdefault(number, []).append(int(item["rank"]))
        if len(by_value) == 1:
            agreed.append((name, next(iter(by_value))))
        for number, members in sorted(by_value.items(), key=lambda item: -len(item[1])):
            if len(by_value) > 1:
                tallies.append(Tally(name, number, len(members), tuple(sorted(members))))
    return tallies, tuple(agreed)


def _statuses(ranks: list[dict[str, Any]]) -> list[Tally]:
    """Statuses where ranks differ, and errors."""
    tallies: list[Tally] = []
    statuses: dict[str, list[int]] = {}
    errors: dict[tuple[str, str], list[int]] = {}
    for item in ranks:
        rank = int(item["rank"])
        statuses.setdefault(_status(item), []).append(rank)
        said = item.get("status")
        for key, what in (("init_state", "initialization error"), ("async_error", "asynchronous error")):
            code = _number(said.get(key)) if isinstance(said, dict) else None
            if code is not None and code not in (0, 7):
                errors.setdefault((what, ERRORS.get(code, f"error {code}")), []).append(rank)
    if len(statuses) > 1:
        tallies += [Tally("status", 0, len(who), tuple(sorted(who)), text) for text, who in statuses.items()]
    tallies += [Tally(what, 0, len(who), tuple(sorted(who)), text) for (what, text), who in errors.items()]
    return tallies


def _status(item: dict[str, Any]) -> str:
    status = item.get("status")
    if not isinstance(status, dict):
        return "UNKNOWN"
    if status.get("abort_flag") is True:
        return "ABORT"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "FINALIZE"
    return "RUNNING" if status.get("init_state", 0) == 0 else "INIT"


def _most(values: list[str]) -> str:
    return Counter(values).most_common(1)[0][0] if values else ""


def _missing(item: dict[str, Any], size: int) -> Missing | None:
    rank = _number(item.get("rank"))
    if rank is None or not 0 <= rank < size:
        return None
    status = item.get("status")
    why = Absence.UNKNOWN
    if isinstance(status, dict):
        if status.get("considered_dead") is True:
            why = Absence.DEAD
        elif status.get("unresponsive") is True:
            why = Absence.UNRESPONSIVE
        elif status.get("unresponsive") is False:
            why = Absence.NO_COMMUNICATOR
    return Missing(rank, _process(item), why)


def _process(item: dict[str, Any]) -> Process:
    gpu, nvml = _number(item.get("cuda_dev")), _number(item.get("nvml_dev"))
    device = gpu if gpu is not None else nvml
    return Process(_word(item.get("host")), _number(item.get("pid")), None if device is None else str(device))


def _counts(item: dict[str, Any]) -> dict[str, Any]:
    counts = item.get("collective_counts")
    return counts if isinstance(counts, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _word(value: object) -> str | None:
    return value[:120] if isinstance(value, str) else None


def _time(value: object) -> int | None:
    """ns of "2025-12-19 13:06:53" (the node's own time zone is not said: taken as UTC)."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip().removesuffix("Z"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1_000
