"""The same work written with other libraries, run in environments of their own; nothing imports it."""

from __future__ import annotations
