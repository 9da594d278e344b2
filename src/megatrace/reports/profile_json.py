"""A profile for machines: ``megatrace.profile/1``, everything in ns and bytes.

The shape is that of ``model.profile_result``, field by field, with enums as their words; a field of it that
is renamed or removed makes a new version. The pieces of critical paths (as many as the recording has
activities) come with ``verbose`` only.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any

from megatrace import __version__
from megatrace.model.profile_result import ProfileResult
from megatrace.reports import ReportOptions

SCHEMA = "megatrace.profile/1"
_LONG = frozenset({"pieces"})


def render(result: ProfileResult, options: ReportOptions) -> str:
    """The profile as JSON, one object, ends with a newline."""
    left_out = frozenset() if options.verbose else _LONG
    whole = {"schema": SCHEMA, "tool_version": __version__, **_plain(result, left_out)}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _plain(value: Any, left_out: frozenset[str]) -> Any:
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {
            item.name: _plain(getattr(value, item.name), left_out)
            for item in fields(value)
            if item.name not in left_out
        }
    if isinstance(value, tuple):
        return [_plain(item, left_out) for item in value]
    return value
