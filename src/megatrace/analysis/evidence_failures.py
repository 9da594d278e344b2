"""Exceptions: the first cause among what fails after it. How processes ended is told in ``evidence_ends``.

CUDA reports errors late and repeats them at every later call: all lines of one kind of error are one failure, and
the Python line that met it is not its place. An exception about a connection, a watchdog or a child process is the
echo of somebody else's failure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.analysis.evidence_torch import rank_of
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import say_ranks


@dataclass(frozen=True, slots=True)
class _Class:
    """One kind of error, by its message."""

    name: str
    form: re.Pattern[str]
    kind: Kind
    order: Order
    severity: Severity
    text: str
    remedy: str
    no: tuple[str, ...] = ()


def _class(
    name: str, form: str, kind: Kind, order: Order, severity: Severity, text: str, remedy: str, *no: str
) -> _Class:
    return _Class(name, re.compile(form, re.IGNORECASE), kind, order, severity, text, remedy, no)


_NOT_CODE = "not the line of Python in the traceback: CUDA reports errors late, at some other call, and goes on failing"
_GPU = "Find that GPU's Xid (48, 63, 64, 94, 95) in dmesg and its ECC counters and remapped rows; drain the node and reset the GPU; RMA by policy."
_CLASSES = (
    _class("ecc", r"uncorrectable ECC error", Kind.HARDWARE, Order.HARDWARE, Severity.P0, "uncorrectable ECC error of GPU memory: hardware", _GPU, "not the user's code, and not its precision (bf16, fp16)", _NOT_CODE, "not a timeout and not a desync of collectives, though the watchdog thread prints it"),
    _class("nvlink", r"uncorrectable NVLink error|NVLink error|nvlink.*(?:failure|fatal)", Kind.HARDWARE, Order.HARDWARE, Severity.P0, "uncorrectable NVLink error: hardware", "Look for Xid 74 or 144–150 in dmesg; drain the node, reset all its GPUs together.", _NOT_CODE),
    _class("lost", r"GPU is lost|fallen off the bus|device.*has been removed|unknown error.*999", Kind.HARDWARE, Order.HARDWARE, Severity.P0, "the GPU is lost", "Look for Xid 79 in dmesg; drain, power-cycle the node.", _NOT_CODE),
    _class("hw_stack", r"hardware stack error|hardware error", Kind.HARDWARE, Order.HARDWARE, Severity.P1, "the GPU reports a hardware error", "Look for Xids in dmesg; test the GPU (dcgmi diag -r 3).", _NOT_CODE),
    _class("gpu_oom", r"CUDA out of memory|CUDA error: out of memory|cuda_?OutOfMemory|OutOfMemoryError|failed.*'?out of memory'?|CUBLAS_STATUS_ALLOC_FAILED", Kind.RESOURCE, Order.HOST, Severity.P1, "out of GPU memory", "Reduce the micro-batch or the sequence, use activation recomputation or sharding; check with nvidia-smi that no other process holds the GPU's memory; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.", "not a fault of the GPU", "not the host's memory: its out-of-memory killer would have left no exception"),
    _class("assert", r"device-side assert", Kind.SOFTWARE, Order.SOFTWARE, Severity.P1, "a device-side assertion failed: usually an index out of range (labels, embeddings, gather)", "Run with CUDA_LAUNCH_BLOCKING=1 to find the kernel; check label and token ids against the sizes of the layers.", "not hardware: an assertion of the program's kernel", _NOT_CODE),
    _class("illegal", r"illegal memory access|misaligned address|illegal instruction|invalid (?:program counter|address space)|warp out-of-range|unspecified launch failure", Kind.SOFTWARE, Order.SOFTWARE, Severity.P1, "a CUDA kernel made an illegal access", "Run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; look for Xid 13 or 31 in dmesg. If it happens on one GPU only and with different programs, test that GPU.", "no hardware fault is shown: an Xid other than 13 and 31 would have to say so", _NOT_CODE),
    _class("not_ready", r"system not yet initialized|error 802", Kind.CONFIGURATION, Order.SOFTWARE, Severity.P1, "CUDA says that the system is not yet initialized: the fabric manager does not run", "Start nvidia-fabricmanager in the driver's version; check nvidia-smi -q -d FABRIC."),
    _class("no_device", r"no CUDA-capable device|invalid device ordinal|No CUDA GPUs are available|no NVIDIA GPU", Kind.CONFIGURATION, Order.SOFTWARE, Severity.P1, "the process does not see the GPU that it was told to use", "Check CUDA_VISIBLE_DEVICES, the number of processes per node, and whether nvidia-smi lists all GPUs."),
    _class("driver", r"driver version is insufficient|forward compatibility|driver/library version mismatch|no kernel image is available", Kind.CONFIGURATION, Order.SOFTWARE, Severity.P1, "driver, CUDA and PyTorch do not fit each other", "Update the driver, or use a build for this driver and GPU."),
    _class("space", r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]", Kind.RESOURCE, Order.HOST, Severity.P1, "a disk or /dev/shm is full (no space left)", "df -h and df -i of the path in the message; for /dev/shm use --shm-size or --ipc=host; then restart from the last whole checkpoint.", "not a GPU and not the network"),
    _class("stale", r"Stale (?:NFS )?file handle|\[Errno 116\]", Kind.RESOURCE, Order.HOST, Severity.P1, "stale file handle: the file on the network file system was replaced or the export changed", "Remount, and do not replace files that a job has open; restart the job.", "not a GPU and not the network of NCCL"),
    _class("io", r"Input/output error|\[Errno 5\]|Read-only file system|\[Errno 30\]", Kind.HARDWARE, Order.HOST, Severity.P1, "the storage failed (input/output error)", "Look into dmesg of that node for the disk or the file server; drain if it is a local disk.", "not a GPU"),
    _class("shm", r"unable to (?:open|allocate|write).*shared memory|Bus error.*shared memory|insufficient shared memory|bus error.*shm", Kind.RESOURCE, Order.HOST, Severity.P1, "shared memory (/dev/shm) is too small for the data loader's workers", "Start the container with --shm-size=… or --ipc=host, or use fewer workers.", "not a GPU"),
    _class("host_memory", r"Cannot allocate memory|\[Errno 12\]|MemoryError|std::bad_alloc|DefaultCPUAllocator", Kind.RESOURCE, Order.HOST, Severity.P1, "out of host memory", "Use less host memory (data loader workers, caches) or raise the limit.", "not GPU memory"),
    _class("cublas", r"CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+", Kind.SOFTWARE, Order.SOFTWARE, Severity.P1, "a CUDA library failed", "Often out of memory or an earlier illegal access in disguise: look for the first error, run with CUDA_LAUNCH_BLOCKING=1.", _NOT_CODE),
)  # fmt: skip
_ECHO = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|SignalException|BrokenPipe|ConnectionReset|ConnectionRefused|ConnectionError|ConnectionAborted|RendezvousError|"
    r"RayActorError|ActorDiedError|WorkerCrashed|RayTaskError|CheckpointException|CalledProcessError|ProcessExitedException|ProcessRaisedException|NCCL (?:error|communicator)|Broken pipe|Connection (?:reset|closed)|"
    r"Socket Timeout|[Ww]atchdog|wait timeout|KeyboardInterrupt|SystemExit|Detected mismatch|\[Rank \d+\]|taking the entire process down|unhandled (?:cuda|system) error|gloo"
)


def judge_failures(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about exceptions, and losses that are no numbers."""
    raised = [f for f in facts if f.kind is FactKind.EXCEPTION and f.name not in ("traceback", "frames")]
    raised += [f for f in facts if f.kind is FactKind.NCCL and f.name == "cuda"]
    claims, rest = _known(_placed(raised, facts))
    claims += _unknown(rest)
    return claims + _numbers(facts)


SUMMARY = 40
"""Lines below a launcher's entry that its traceback may have."""


def _placed(raised: Sequence[LogFact], facts: Sequence[LogFact]) -> list[LogFact]:
    """Exceptions without a rank in the traceback that a launcher's summary quotes get that entry's rank."""
    entries = [f for f in facts if f.name in ("summary_root", "summary_other") and f.rank is not None]
    keys = [(entry.source, entry.line) for entry in entries]  # facts come in this order
    placed = []
    for fact in raised:
        at = bisect_left(keys, (fact.source, fact.line)) - 1
        entry = entries[at] if at >= 0 else None
        near = entry is not None and entry.source == fact.source and fact.line - entry.line <= SUMMARY
        if entry is not None and near and rank_of(fact) is None:
            fact = replace(fact, rank=entry.rank, local_rank=entry.local_rank, node=entry.node)
        placed.append(fact)
    return placed


def _message(fact: LogFact) -> str:
    if fact.get("type") is not None:
        return f"{fact.word('type')}: {fact.word('detail')}"
    return f"CUDA error: {fact.word('detail')}" if fact.kind is FactKind.NCCL else fact.word("detail")


def _known(raised: Sequence[LogFact]) -> tuple[list[Claim], list[LogFact]]:
    """Errors whose cause is known by their message, one claim for all lines of a kind."""
    groups: dict[str, list[LogFact]] = defaultdict(list)
    rest = []
    for fact in raised:
        message = _message(fact)
        kind = next((item for item in _CLASSES if item.form.search(message)), None)
        if kind is None:
            rest.append(fact)
        else:
            groups[kind.name].append(fact)
    return [
        _one(next(item for item in _CLASSES if item.name == name), same) for name, same in groups.items()
    ], rest


def _one(kind: _Class, same: Sequence[LogFact]) -> Claim:
    ranks = tuple(sorted({rank for f in same if (rank := rank_of(f)) is not None}))
    locals_ = sorted({f.local_rank for f in same if f.local_rank is not None})
    node = next((f.node for f in same if f.node), None)
    who = say_ranks(ranks) if ranks else "a rank that is not named"
    evidence = [f'"{_message(same[0])[:180]}" ({plural(len(same), "line")} of one failure)']
    if ranks and locals_:
        evidence.append(
            f"{say_ranks(ranks)} is local rank {listed(locals_)} of its node: GPU {listed(locals_)} there, unless CUDA_VISIBLE_DEVICES says otherwise"
        )
    evidence += _unlabelled(same, ranks)
    own = next((f for f in same if f.get("user_file") is not None), None)
    if own is not None and kind.kind is not Kind.HARDWARE:
        evidence.append(
            f"last line of the user's own code: {own.word('user_file')}:{own.word('user_line')} in {own.word('user_function')}"
        )
    device = (
        (Device(node, f"GPU of local rank {locals_[0]}" if locals_ else f"GPU of {who}"),)
        if kind.kind is Kind.HARDWARE and len(ranks) == 1
        else ()
    )
    gpu = f" -i {locals_[0]}" if len(locals_) == 1 else ""
    steps = (
        (
            NextStep(
                f"nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT{gpu}; dmesg -T | grep -i xid",
                "on the node of that rank: which GPU, which error",
            ),
        )
        if kind.kind is Kind.HARDWARE
        else ()
    )
    where = f" (local rank {listed(locals_)} of its node)" if locals_ and len(ranks) == 1 else ""
    return claim(
        kind.order, kind.kind, kind.severity, f"{who}{where}: {kind.text}", same, evidence=evidence, no=kind.no, remedy=kind.remedy,
        culprits=Culprits(ranks=ranks, devices=device), confidence=0.9 if ranks else 0.7, ambiguous=not ranks, steps=steps,
    )  # fmt: skip


def _unlabelled(same: Sequence[LogFact], ranks: tuple[int, ...]) -> list[str]:
    bare = [f for f in same if rank_of(f) is None]
    if bare and ranks:
        return [
            f"the traceback itself has no rank; {say_ranks(ranks)} comes from the watchdog's line about the same error"
        ]
    return []


def _unknown(raised: Sequence[LogFact]) -> list[Claim]:
    """Exceptions of the program; echoes of other failures only where there is nothing else."""
    own = [
        f
        for f in raised
        if f.name in ("raised", "signal", "cuda", "storage", "shm")
        and not _ECHO.search(_message(f))
        and not f.word("type").endswith("Warning")
    ]
    echo = [
        f
        for f in raised
        if f not in own and _ECHO.search(_message(f)) and "Detected mismatch" not in _message(f)
    ]
    claims = []
    groups: dict[str, list[LogFact]] = defaultdict(list)
    for fact in own:
        groups[_message(fact)[:80]].append(fact)
    for same in groups.values():
        first = same[0]
        ranks = tuple(sorted({rank for f in same if (rank := rank_of(f)) is not None}))
        at = next((f for f in same if f.get("user_file") is not None), None)
        place = (
            ""
            if at is None
            else f" at {at.word('user_file').rpartition('/')[2]}:{at.word('user_line')} in {at.word('user_function')}"
        )
        evidence = [f'"{_message(first)[:220]}"' + (f" ({len(same)} times)" if len(same) > 1 else "")]
        if at is not None:
            evidence.append(
                f"last line of the user's own code: {at.word('user_file')}:{at.word('user_line')} in {at.word('user_function')}"
            )
        who = f"{say_ranks(ranks)} raised " if ranks else "an exception of the program: "
        claims.append(
            claim(
                Order.SOFTWARE,
                Kind.SOFTWARE,
                Severity.P1,
                f"{who}{_message(first)[:120]}{place}",
                same,
                evidence=evidence,
                culprits=Culprits(ranks=ranks),
                no=["no hardware fault is shown: an exception of the program"],
                remedy="Fix what the message says; the other ranks' errors about connections and watchdogs follow from it.",
                confidence=0.75,
                ambiguous=len(ranks) != 1,
            )
        )
    if echo:
        ranks = tuple(sorted({rank for f in echo if (rank := rank_of(f)) is not None}))
        who = say_ranks(ranks) if ranks else "the rank that printed this"
        claims.append(
            claim(
                Order.AFTERMATH,
                Kind.DEAD_RANK,
                Severity.P3,
                f"{who} reports the failure of others: {_message(echo[0])[:140]}",
                echo,
                evidence=[f'"{_message(f)[:200]}"' for f in echo[:3]],
                weak=True,
                no=[f"not {who}: it is a victim" if ranks else "not the rank that prints it: it is a victim"],
                remedy="Look for the first error over all ranks; this message comes after it.",
                either=("a peer died first (exception, kill, node)", "the network between the two failed"),
                steps=(
                    NextStep(
                        "megatrace diagnose LOGS_OF_ALL_RANKS/ KERNEL_LOGS/",
                        "the first error over all ranks and nodes",
                    ),
                ),
            )
        )
    return claims


def _numbers(facts: Sequence[LogFact]) -> list[Claim]:
    found = [
        f
        for f in facts
        if f.kind is FactKind.ITERATION
        and (
            f.name == "not_a_number"
            or (f.number("number of nan iterations") or 0) > 0
            or f.word("lm loss").lower() in ("nan", "inf")
        )
    ]
    if not found:
        return []
    return [
        claim(
            Order.NOTE,
            Kind.SOFTWARE,
            Severity.P3,
            f"the loss is not a number in {plural(len(found), 'line')}: a numerical problem (learning rate, precision, data)",
            found,
            evidence=[found[0].text[:200]],
            no=[
                "no hardware fault: NaN alone shows none; suspect a GPU only if the same step on other GPUs gives a finite loss"
            ],
            remedy="Look at learning rate, precision and the batch; repeat the step on other nodes before suspecting a GPU.",
        )
    ]
