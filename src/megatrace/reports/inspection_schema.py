"""The shape of an inspection as JSON (``megatrace.inspection/1``), published for programs that read it.

Declared beside `inspection.as_json` and `model.check_json`, which fill it; a test holds every made machine
against it."""

from __future__ import annotations

from typing import Any

from megatrace.model.check import Outcome, Step
from megatrace.model.finding import Kind, Severity, Status
from megatrace.reports.inspection import SCHEMA

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_MAYBE_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_TIME: dict[str, Any] = {"type": "string", "pattern": "^[0-9]+$", "description": "ns since the epoch"}


def _object(**properties: Any) -> dict[str, Any]:
    """All parts are always there; unknown ones are null."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _finding() -> dict[str, Any]:
    maybe_int = {"type": ["integer", "null"]}
    end = _object(rank=maybe_int, node=_MAYBE_TEXT, device=_MAYBE_TEXT, port=maybe_int)
    culprits = _object(
        nodes=_list(_TEXT),
        devices=_list(_object(node=_MAYBE_TEXT, device=_MAYBE_TEXT)),
        links=_list(_object(src=end, dst=end)),
    )
    return _object(
        fingerprint=_TEXT,
        kind={"enum": [kind.value for kind in Kind]},
        severity={"enum": [severity.name for severity in Severity]},
        status={"enum": [status.value for status in Status]},
        summary=_TEXT,
        confidence={"type": "number", "minimum": 0, "maximum": 1},
        ambiguous={"type": "boolean"},
        culprits=culprits,
        since_ns={"anyOf": [_TIME, {"type": "null"}]},
        until_ns={"anyOf": [_TIME, {"type": "null"}]},
        evidence=_list(_object(text=_TEXT, value={"type": ["number", "null"]}, unit=_MAYBE_TEXT)),
        exonerated=_list(_TEXT),
        caused_by=_list(_TEXT),
        remedy=_TEXT,
        step={"enum": [step.value for step in Step]},
    )


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12)."""
    outcomes = [outcome.value for outcome in Outcome]
    result = _object(
        check=_TEXT,
        outcome={"enum": outcomes},
        reason=_TEXT,
        seconds=_NUMBER,
        observed={"type": "boolean"},
        measured={"type": "object", "additionalProperties": _NUMBER},
        findings=_list(_finding()),
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "An inspection of one machine by MegaTrace",
        **_object(
            schema={"const": SCHEMA},
            tool_version=_TEXT,
            node=_TEXT,
            time_ns=_TIME,
            about=_TEXT,
            seconds=_NUMBER,
            exit_code={"enum": [0, 10, 11]},
            counts=_object(**{name: {"type": "integer", "minimum": 0} for name in outcomes}),
            results=_list(result),
            notes=_list(_TEXT),
        ),
    }
