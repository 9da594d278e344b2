"""Damaged input may cost no more memory than this: a test that wants more fails instead of the machine."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

MEMORY = 6 << 30
"""Bytes of address space: what the libraries map, and a hundred times what any input here holds."""


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard < 0 else min(MEMORY, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
