"""What a job leaves on its node when it dies by its own libraries."""

from __future__ import annotations

from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of
from megatrace.bot.look import Look, Problem
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind

LIBRARIES = (
    "libnccl",
    "libcuda",
    "libcublas",
    "libcudnn",
    "libtorch",
    "libibverbs",
    "libmlx5",
    "libucp",
    "libfabric",
)
"""Beginnings of the names of libraries whose crash ends a rank and tells nothing in the job's own log."""


@check(
    "JOB-03",
    summary="crashes inside libraries of communication and computing",
    subject="job",
    severity="P3",
    step="A2",
    kind="software",
    period_s=30,
)
def library_crash(look: Look) -> Iterator[Problem]:
    """Segmentation faults whose address lies in NCCL, CUDA, PyTorch or verbs.

    The rank is gone without a word in its log, and its peers wait. Source: the kernel log (`segfault at … in
    libnccl.so…`). Threshold: any in the last 24 hours; P3, because it says nothing against the machine,
    unless it comes back on one machine with several jobs. Remedy: restart the job; take the versions of the
    library and of the driver to whoever built the image."""
    for fact in of(kernel_facts(look), FactKind.KERNEL, "segfault"):
        library = str(fact.get("library") or "")
        if library.startswith(LIBRARIES):
            process = str(fact.get("process") or "a process").rpartition(": ")[2]
            yield look.warn(
                f"{process} crashed in {library}",
                severity=Severity.P3,
                since=fact.time,
                evidence=(fact.text[:200],),
                key=library,
                remedy="restart the job; check that the image's library fits the driver",
            )
