"""Finds and loads the compiled part of MegaTrace, and says why when it cannot.

Everything compiled has a slower twin in Python with the same result, so that a machine without a
compiler can still read every trace; this module never raises. The library is looked for, in this order,
at ``MEGATRACE_NATIVE`` (a path, or ``off``), in the installed package, and in the build folder of a
source checkout.

It knows nothing of what the library does: whoever calls a function declares its signature.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

LIBRARY = "libmegatrace_native.so"
ABI_VERSION = 3
"""The interface that this release speaks; the twin of ``megatrace_abi_version`` in the library."""
ENV = "MEGATRACE_NATIVE"


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Whether the library is there; ``reason`` is a sentence where it is not, ``path`` where it was
    found or tried."""

    loaded: bool
    reason: str
    path: str


def status() -> NativeStatus:
    """What became of the library in this process."""
    return _load(os.environ.get(ENV, ""))[1]


def library() -> ctypes.CDLL | None:
    """The library, or None where it is not there or switched off. Calls into it release the GIL."""
    return _load(os.environ.get(ENV, ""))[0]


@lru_cache(maxsize=8)
def _load(wish: str) -> tuple[ctypes.CDLL | None, NativeStatus]:
    if wish.lower() in ("off", "0", "no", "false"):
        return None, NativeStatus(False, f"switched off by {ENV}={wish}", "")
    failed = ""
    for path in [Path(wish)] if wish else _candidates():
        if not path.is_file():
            failed = failed or (f"{ENV} names {path}, which is no file" if wish else "")
            continue
        try:
            loaded = ctypes.CDLL(str(path))
            loaded.megatrace_abi_version.restype = ctypes.c_uint32
            version = int(loaded.megatrace_abi_version())
        except (OSError, AttributeError) as error:
            failed = failed or f"{path.name} does not load ({error})"
            continue
        if version != ABI_VERSION:
            failed = (
                failed
                or f"{path.name} speaks interface {version}, this release {ABI_VERSION}: build it again"
            )
            continue
        return loaded, NativeStatus(True, "", str(path))
    reason = (
        failed or "this installation was built without a compiler (the Python paths are used, same results)"
    )
    return None, NativeStatus(False, reason, wish)


def _candidates() -> Iterator[Path]:
    package = Path(__file__).resolve().parent
    yield package / "_native" / LIBRARY
    checkout = package.parent.parent
    if (checkout / "native" / "CMakeLists.txt").is_file():
        yield from sorted((checkout / "build").glob(f"**/{LIBRARY}"), key=_age)


def _age(path: Path) -> float:
    """Negative modification time: the newest build first."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
