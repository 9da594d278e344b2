"""File systems of servers: evictions and servers that do not answer, as the kernel sees them."""

from __future__ import annotations

from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.model.check import Step
from megatrace.model.series import FactKind

GPFS_STATE = ("/usr/lpp/mmfs/bin/mmgetstate", "-Y")


@check(
    "FS-04",
    summary="servers of file systems that do not answer, evictions",
    subject="filesystem",
    severity="P1",
    step="A0",
    kind="slow_storage",
    period_s=60,
    observe=True,
)
def remote_servers(look: Look) -> Iterator[Problem]:
    """NFS servers that stopped answering and evictions of this client by Lustre.

    A checkpoint that is written to such a file system stands, and the job with it. Source: the kernel log
    (`nfs: server … not responding`, without a later `OK`; `LustreError … evict`). Threshold: any in the last
    24 hours; watched only, because the server's own trouble shows on every client at once and is counted
    there. Remedy: the storage team, with the name of the server; no action on this node."""
    facts = of(kernel_facts(look), FactKind.STORAGE, "nfs_down", "nfs_up", "lustre")
    state: dict[str, tuple[str, int | None]] = {}
    for fact in facts:
        if fact.name == "lustre":
            if "evict" in fact.text.lower():
                yield look.warn(
                    "Lustre evicted this client", since=fact.time, evidence=(fact.text[:200],), key="lustre"
                )
            continue
        state[str(fact.get("server") or "?")] = (fact.name, fact.time)
    for server, (name, since) in state.items():
        if name == "nfs_down":
            yield look.fail(
                f"the NFS server {server} does not answer", device=server, since=since, step=Step.OBSERVE
            )


@check(
    "FS-06",
    summary="GPFS on this node",
    subject="filesystem",
    severity="P1",
    step="A1",
    kind="slow_storage",
    period_s=60,
    timeout_s=20,
    observe=True,
)
def gpfs_state(look: Look) -> Iterator[Problem]:
    """Whether mmfsd is active here.

    Source: `mmgetstate -Y`. Threshold: any state but `active`. Remedy: `mmstartup` on this node."""
    text = look.output(*GPFS_STATE)
    heads: list[str] = []
    seen = 0
    for line in text.splitlines():
        cells = line.split(":")
        if "HEADER" in cells:
            heads = cells
        elif heads and len(cells) >= len(heads):
            row = dict(zip(heads, cells, strict=False))
            seen += 1
            look.said = f"mmfsd is {row.get('state')}"
            if row.get("state") != "active":
                yield look.fail(f"mmfsd is {row.get('state') or 'in no known state'}")
    if not seen:
        raise Skipped("mmgetstate lists no node")
