"""What is not the machine itself, as a ``System``: a node's board, a switch, a scheduler, asked from here.

The name is that of the thing, so that findings accuse it and not the machine that asked. The programs that
ask (``bot.backends``) run with the interpreter that runs this, under the name by which a recording keeps
them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from megatrace.bot.backends import PROGRAMS
from megatrace.bot.live_system import LiveSystem
from megatrace.model.system import RUN_TIMEOUT_S, Ran


class TargetSystem(LiveSystem):
    """``name`` is that of the board, switch or scheduler; programs run on this machine."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._target = name

    @property
    def name(self) -> str:
        """The name of what is looked at."""
        return self._target

    def run(self, argv: Sequence[str], timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """See ``System.run``; the project's own programs are found wherever it is installed."""
        module = PROGRAMS.get(argv[0])
        if module is None:
            return super().run(argv, timeout_s)
        ran = super().run([sys.executable, "-m", module, *argv[1:]], timeout_s)
        return replace(ran, argv=tuple(argv))
