"""What the fabric manager of NVSwitch machines wrote: its own log, and its lines in the journal of the
kernel."""

from __future__ import annotations

from contextlib import suppress

from megatrace.bot.kernel_log import facts_in, kernel_facts
from megatrace.bot.look import Look, Skipped, Unknown
from megatrace.model.series import FactKind, LogFact
from megatrace.model.system import Unreadable

FM_LOG = "/var/log/fabricmanager.log"
MAX_LOG = 8 << 20


def fabric_facts(look: Look) -> list[LogFact]:
    """Statements about the fabric and its switches within the window; none where nothing was written."""
    return look.memo("fabric facts", lambda: _facts(look))


def _facts(look: Look) -> list[LogFact]:
    found: list[LogFact] = []
    with suppress(Unreadable):
        found = facts_in(look, look.system.read(FM_LOG, MAX_LOG), FM_LOG)
    with suppress(Skipped, Unknown):
        # A switch's errors in the kernel log are read where they belong; here only what the service says.
        found += [fact for fact in kernel_facts(look) if fact.kind is FactKind.FABRIC]
    return [fact for fact in found if fact.kind in (FactKind.FABRIC, FactKind.SXID)]
