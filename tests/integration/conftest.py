"""Fixtures of the integration tests."""

from __future__ import annotations

from tests.integration.browser import browser, opened

__all__ = ["browser", "opened"]
