"""Payloads of Alertmanager: webhooks (versions 3 and 4), its API's list of alerts, Prometheus' list.

Whether an alert fires stands in its own status; where that is absent an end of year 1 says so. The API fills
in an end in the near future for alerts that fire: a deadline for the next message, no resolution.
"""

from __future__ import annotations

import json
from typing import Any

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.log_clean import iso_ns
from megatrace.readers.source import ReadOptions, Source
from megatrace.readers.statements import Statements

MAX_BYTES = 64 << 20
MAX_ALERTS = 20_000
"""A storm that takes a whole cluster down is some thousands; the rest is counted."""
MAX_TEXT = 300
"""Characters of a label or summary: what a line of the report holds, and some."""


@registry.register("alerts", summary="Alertmanager webhooks and lists of alerts (JSON)")
class AlertsReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._read = Statements("alerts")

    def refuses(self, head: bytes) -> str | None:
        """JSON with alerts in it."""
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
            return "no JSON"
        return (
            None
            if b'"alertname"' in head or (b'"alerts"' in head and b'"labels"' in head)
            else "JSON without alerts"
        )

    def add(self, source: Source) -> None:
        """Reads one payload."""
        data = source.read_whole(self._limit)
        try:
            found, notes = _alerts(json.loads(data))
        except (ValueError, RecursionError) as error:
            self._read.notes.append(f"{source.name} was not read: it is cut or damaged ({str(error)[:100]}).")
            return
        self._read.notes += [f"{source.name}: {note}" for note in notes]
        shape = f"payload of {len(found):,} alert{'s' if len(found) != 1 else ''}"
        self._read.take(source.name, found[:MAX_ALERTS], shape=shape, lines=0, stated=len(found))

    def finish(self) -> Trace:
        """A Trace of facts. Raises TraceError where no payload could be read."""
        return self._read.trace(" ".join(self._read.notes) or "no alert was read")


def _alerts(data: Any) -> tuple[list[LogFact], list[str]]:
    notes: list[str] = []
    rows: Any = data
    if isinstance(data, dict):
        inner = data.get("data")
        rows = data.get("alerts", inner.get("alerts") if isinstance(inner, dict) else None)
        version = data.get("version")
        if version is not None and str(version) != "4":
            notes.append(f'payload version "{str(version)[:20]}" is an old one; it was accepted')
        if isinstance(data.get("groupKey"), int | float):
            notes.append("its groupKey is a number, as old versions have it; it was accepted")
    if not isinstance(rows, list):
        raise ValueError("no list of alerts")
    return [_alert(row) for row in rows if isinstance(row, dict)], notes


def _alert(row: dict[str, Any]) -> LogFact:
    labels = row.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    annotations = row.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    state, why = _state(row)
    starts, ends, updated = (
        iso_ns(str(row.get(key) or row.get(other) or ""))
        for key, other in (("startsAt", "activeAt"), ("endsAt", ""), ("updatedAt", ""))
    )
    fields: list[tuple[str, Value]] = [("state", state), ("why", why)]
    for key in ("severity", "instance", "job", "service", "node", "name"):
        said = labels.get(key)
        fields += [(key, said[:MAX_TEXT])] if isinstance(said, str) else []
    summary = annotations.get("summary") or annotations.get("description") or annotations.get("message")
    if isinstance(summary, str):
        fields.append(("summary", summary[:MAX_TEXT]))
    for key, number in (("ends", ends), ("updated", updated)):
        if number is not None and number > 0:
            fields.append((key, number))
    if isinstance(row.get("updatedAt"), str):
        fields.append(("updated_text", row["updatedAt"][:40]))
    fields.append(("key", str(row["fingerprint"])[:40] if row.get("fingerprint") else ""))
    receivers = row.get("receivers")
    if isinstance(receivers, list):
        fields.append(("receivers", len(receivers)))
    text = ",".join(
        f"{key}={labels[key]}" for key in sorted(map(str, labels)) if isinstance(labels.get(key), str)
    )
    name = str(labels.get("alertname") or "an alert without a name")[:MAX_TEXT]
    return LogFact(FactKind.ALERT, text[:MAX_TEXT], time=starts, name=name, fields=tuple(fields))


def _state(row: dict[str, Any]) -> tuple[str, str]:
    """Whether it fires, and by what that is known."""
    status = row.get("status")
    if isinstance(status, dict):
        state = str(status.get("state") or "active")
        silenced = status.get("silencedBy") or status.get("inhibitedBy")
        return ("silenced" if silenced or state == "suppressed" else "firing"), f'its state is "{state[:20]}"'
    if isinstance(status, str) and status in ("firing", "resolved"):
        return status, f'its own status is "{status}"'
    if isinstance(row.get("state"), str):
        state = row["state"][:20]
        return ("firing" if state == "firing" else state), f'its state is "{state}"'
    ends = str(row.get("endsAt") or "")
    if not ends or ends.startswith("0001-01-01"):
        return "firing", "it has no status of its own: firing, because endsAt is 0001-01-01 (not ended)"
    return "resolved", "it has no status of its own, and an end"
