"""Small texts of every kind that the log reader knows, as their programs write them, and how they are judged."""

from __future__ import annotations

from pathlib import Path

from megatrace.analysis.diagnosing import diagnose
from megatrace.model.finding import Diagnosis
from megatrace.readers.opening import open_trace
from megatrace.reports.terminal import render


def judged(folder: Path, **files: str | bytes) -> Diagnosis:
    """The diagnosis of files written into a folder; ``__`` in a name stands for a point."""
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return diagnose(open_trace([folder]))


def said(diagnosis: Diagnosis) -> str:
    """The report with everything, on one line."""
    return " ".join(render(diagnosis, width=300, verbose=True).split())


def timeout(
    rank: int,
    seq: int,
    op: str = "ALLREDUCE",
    *,
    own: int | None = None,
    at: str = "08:02:19.113217",
    numel: int = 16,
) -> str:
    """A watchdog's line of PyTorch 2.5."""
    return (
        f"[rank{rank}]:[E1017 {at} ProcessGroupNCCL.cpp:629] [Rank {rank if own is None else own}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600012 "
        "milliseconds before timing out.\n"
    )


def position(
    rank: int, seq: int, enqueued: int, completed: int, pg: str = "PG ID 0 PG GUID 0(default_pg)"
) -> str:
    """Where a rank stood, as PyTorch 2.6 prints it."""
    return (
        f"[rank{rank}]:[E1017 08:02:19.113471 ProcessGroupNCCL.cpp:2271] [{pg} Rank {rank}]  failure detected by watchdog at "
        f"work sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}\n"
    )


def xid(code: int, pci: str = "0000:3b:00", text: str = "text", at: int = 3, node: str = "gpu-1") -> str:
    """A line of the driver in a system log."""
    return f"2025-01-06T01:02:{at:02d}.000000+00:00 {node} kernel: NVRM: Xid (PCI:{pci}): {code}, pid=12, name=python3, {text}\n"
