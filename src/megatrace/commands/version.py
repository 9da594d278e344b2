"""`megatrace version`: what is installed, and whether the native part is there.

The first thing to ask for in a report of a problem: a pure wheel gives the same verdicts, only slower, and
cannot record. It loads the native part to find out; it starts nothing.
"""

from __future__ import annotations

import platform

import numpy as np

from megatrace import __version__, native
from megatrace.commands import command


@command(
    "version",
    summary="says what is installed, and whether the native part is",
    examples=["megatrace version"],
    order=90,
)
def version() -> None:
    """Prints one line for each part."""
    status = native.status()
    print(f"megatrace  {__version__}")
    system = f"{platform.machine()}, {platform.system()} {platform.release()}"
    print(f"python     {platform.python_version()} ({system})")
    print(f"numpy      {np.__version__}")
    print(f"native     {'loaded: ' + status.path if status.loaded else 'not loaded: ' + status.reason}")
