"""NCCL's own words: failed transfers, sockets, set-up.

Most of them are echoes: a socket that a peer closed says that the peer died, or the path to it, and not which. A
completion with status 12 is a path or a dead peer as well; with status 4, 9 or 10 it is the registration of memory on
the host that prints it. Calls that do not fit each other are found in ``evidence_calls``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from megatrace.analysis.evidence_calls import judge_calls
from megatrace.analysis.evidence_claim import ALL_LOGS, Claim, Order, claim, listed, on_node, plural
from megatrace.model.finding import Culprits, Device, Endpoint, Kind, Link, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import format_count, format_duration, format_size

STATUS = {
    1: ("IBV_WC_LOC_LEN_ERR", "a message longer than its buffer"),
    2: ("IBV_WC_LOC_QP_OP_ERR", "an inconsistent queue pair"),
    4: ("IBV_WC_LOC_PROT_ERR", "local protection error: the memory is not registered as it is used"),
    5: ("IBV_WC_WR_FLUSH_ERR", "flushed after an earlier error on the same queue pair"),
    7: ("IBV_WC_BAD_RESP_ERR", "an unexpected response"),
    8: ("IBV_WC_LOC_ACCESS_ERR", "local access error"),
    9: ("IBV_WC_REM_INV_REQ_ERR", "the peer found the request invalid"),
    10: ("IBV_WC_REM_ACCESS_ERR", "the peer's memory refused the access"),
    11: ("IBV_WC_REM_OP_ERR", "the peer could not carry out the operation"),
    12: ("IBV_WC_RETRY_EXC_ERR", "retry exceeded: no acknowledgement from the peer"),
    13: ("IBV_WC_RNR_RETRY_EXC_ERR", "the receiver was not ready for too long"),
}
"""Status of a completion: its name and what it means (rdma-core)."""
_REGISTRATION = frozenset({1, 2, 4, 8, 9, 10, 11})
_FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: what was queued when the queue pair failed, never the cause
_COUNTERS = NextStep(
    "perfquery -x; ibstat; mlxlink -d MLX_DEVICE -m -c -e",
    "on both ends: port state, error counters, cable and optic",
)


def judge_nccl(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about what NCCL says."""
    claims = judge_calls([f for f in facts if f.kind is FactKind.NCCL_CALL])
    claims += _completions([f for f in facts if f.name == "completion"])
    claims += _sizes([f for f in facts if f.name == "size_mismatch"])
    claims += _truncated([f for f in facts if f.name == "truncated"])
    claims += _setup(facts) + _events(facts) + _requests(facts)
    firm = bool(claims)
    return claims + _sockets(facts) + ([] if firm else _warnings(facts))


# ---- transfers


def _completions(found: Sequence[LogFact]) -> list[Claim]:
    groups: dict[str, list[LogFact]] = defaultdict(list)
    for fact in found:
        status = int(fact.number("status") or 0)
        groups[
            "registration" if status in _REGISTRATION else "flushed" if status == _FLUSHED else "path"
        ].append(fact)
    claims = []
    if groups["registration"]:
        claims.append(_registration(groups["registration"]))
    paths: dict[object, list[LogFact]] = defaultdict(list)
    for fact in groups["path"] or ([] if claims else groups["flushed"]):
        paths[fact.node, fact.word("hca"), fact.word("remote_gid") or _host(fact.word("peer"))].append(fact)
    if paths:
        claims.append(_paths(list(paths.values())))
    return claims


def _host(peer: str) -> str:
    return re.sub(r"<\w+>$", "", peer)


def _said(status: int, vendor: float | None) -> str:
    name, meaning = STATUS.get(status, ("unknown status", "see the vendor's table"))
    extra = "" if vendor is None else f", vendor err {int(vendor)}"
    return f"status {status} = {name}{extra}: {meaning}"


def _registration(found: Sequence[LogFact]) -> Claim:
    nodes = list(dict.fromkeys(f.node for f in found if f.node))
    status = int(found[0].number("status") or 0)
    many = len(nodes) > 1
    where = f"on {len(nodes)} hosts alike ({listed(nodes)})" if many else f"on {listed(nodes)}"
    local = "the LOCAL side of " + (f"{len(nodes)} hosts" if many else "one host")
    no = ["not a cable and not a link that is down: that would be status 12 (retry exceeded)"]
    if many:
        no.append("no single bad node: every host that prints has the same error")
    return claim(
        Order.SOFTWARE, Kind.CONFIGURATION, Severity.P1, f"error {_said(status, found[0].number('vendor'))}, {where}: memory registration or GPUDirect RDMA, a software or configuration fault", found,
        evidence=[f"{plural(len(found), 'completion')} with it, on {local}", f"peers: {listed(_host(f.word('peer')) for f in found)}"], no=no, confidence=0.7,
        remedy="Check nvidia-peermem or dma-buf support, IOMMU and ACS settings, driver and OFED versions on every host; NCCL_NET_GDR_LEVEL=0 (no GPUDirect) as a test.",
        steps=(NextStep("lsmod | grep -e peermem; dmesg -T | grep -e peermem -e DMAR -e IOMMU; ulimit -l", "whether GPUDirect can register memory"),),
    )  # fmt: skip


def _paths(paths: Sequence[Sequence[LogFact]]) -> Claim:
    """Completions without an answer: one path, or many with an end in common."""
    flat = [fact for path in paths for fact in path]
    first = flat[0]
    status = int(first.number("status") or 0)
    said = [
        f"{_end(path[0])} towards {_far(path[0])}: {plural(len(path), 'error')}{_queue_pairs(path)}"
        for path in paths
    ]
    common = _common(paths)
    text = f"{_said(status, first.number('vendor'))}"
    if len(paths) == 1:
        place = (
            f"all {len(flat)} errors are on one path: {_end(first)} towards {_far(first)}"
            if len(flat) > 1
            else f"the path {_end(first)} towards {_far(first)}"
        )
    else:
        place = f"{len(paths)} paths" + (f", all at {common}" if common else "")
    link = Link(
        Endpoint(node=first.node, device=first.word("hca") or None),
        Endpoint(node=_host(first.word("peer")) or None),
    )
    return claim(
        Order.TRANSPORT, Kind.HARDWARE, Severity.P3, f"{place}: {text}; a problem of the link or path, or the death of the peer", flat, weak=True,
        evidence=said[:8], culprits=Culprits(links=(link,)) if len(paths) == 1 else Culprits(), ambiguous=True, confidence=0.5,
        no=["not several broken NICs: the errors share one path" if len(paths) == 1 and len(flat) > 1 else "no end of the path can be blamed from this side alone"],
        remedy=f"Check port counters, cable and optic of {first.word('hca') or 'the NIC'} on both ends; look whether the peer's process had died before.",
        either=("the link, cable or switch port between the two ends loses packets", "the peer's process or node died first"), steps=(_COUNTERS, ALL_LOGS),
    )  # fmt: skip


def _end(fact: LogFact) -> str:
    gpu = f" (GPU {fact.word('gpu_index')})" if fact.get("gpu_index") is not None else ""
    hca = f"hca {fact.word('hca')} of " if fact.word("hca") else ""
    return f"{hca}{fact.node or 'this host'}{gpu}"


def _far(fact: LogFact) -> str:
    peer = _host(fact.word("peer")) or "an unnamed peer"
    return f"{peer} (GID {fact.word('remote_gid')})" if fact.word("remote_gid") else peer


def _queue_pairs(path: Sequence[LogFact]) -> str:
    ports = list(dict.fromkeys(f.word("peer") for f in path))
    return (
        f" with {len(ports)} ports of the peer ({listed(ports)}): {len(ports)} queue pairs or channels of one path"
        if len(ports) > 1
        else ""
    )


def _common(paths: Sequence[Sequence[LogFact]]) -> str:
    for names in (
        {f"{path[0].word('hca')} of {path[0].node}" for path in paths if path[0].word("hca")},
        {str(path[0].node) for path in paths if path[0].node},
        {f"peer {_host(path[0].word('peer'))}" for path in paths},
    ):
        if len(names) == 1:
            return next(iter(names))
    return ""


def _sizes(found: Sequence[LogFact]) -> list[Claim]:
    if not found:
        return []
    first = found[0]
    local, remote = int(first.number("local_size") or 0), int(first.number("remote_size") or 0)
    return [
        claim(
            Order.SOFTWARE,
            Kind.CONFIGURATION,
            Severity.P1,
            f"sizes disagree on one connection: {first.node or 'this host'} sends or expects {format_count(local)} B, peer {_host(first.word('peer'))} {format_count(remote)} B",
            found,
            evidence=[
                f"local size {format_count(local)} B, remote size {format_count(remote)} B ({format_size(local)} and {format_size(remote)})",
                "the ranks run different collectives or sizes, or NCCL has different settings on the two hosts (algorithm, protocol, buffer size, environment, version)",
            ],
            no=["not the link: the connection works, its two ends disagree"],
            or_kinds=(Kind.MISMATCH,),
            confidence=0.7,
            ambiguous=True,
            remedy="First compare the NCCL environment and version on both hosts; then look for a rank that makes another call.",
            steps=(
                NextStep(
                    "env | grep NCCL_ | sort; python -c 'import torch; print(torch.cuda.nccl.version())'",
                    "on both hosts: settings and version must be the same",
                ),
            ),
        )
    ]


def _truncated(found: Sequence[LogFact]) -> list[Claim]:
    """A message longer than the buffer that waited for it: sender and receiver called different things."""
    if not found:
        return []
    first = found[0]
    got, room = int(first.number("received") or 0), int(first.number("expected") or 0)
    return [
        claim(
            Order.DISAGREE,
            Kind.MISMATCH,
            Severity.P1,
            f"sizes disagree on one connection: {first.node or 'this host'} receives {format_count(got)} B where it expected {format_count(room)} B",
            found,
            evidence=[first.text[:200]],
            no=["not the link: the message arrived, longer than what was asked for"],
            confidence=0.7,
            ambiguous=True,
            ended=True,
            remedy="Find the call whose size, type or order differs between the two ranks; then compare the NCCL environment and version on both hosts.",
            steps=(
                NextStep(
                    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL NCCL_DEBUG_FILE=nccl.%h.%p.log …",
                    "the calls of all ranks",
                ),
            ),
        )
    ]


# ---- set-up


def _setup(facts: Sequence[LogFact]) -> list[Claim]:
    table = {
        "version_mismatch": ("ranks run different versions of NCCL", Kind.CONFIGURATION, "Install the same NCCL (PyTorch, container image) on every node."),
        "duplicate_gpu": ("two ranks use the same GPU", Kind.CONFIGURATION, "Set the device from LOCAL_RANK (torch.cuda.set_device), and as many processes per node as it has GPUs."),
        "shared_memory": ("NCCL could not create its shared memory (/dev/shm is too small or full)", Kind.RESOURCE, "Start the container with --shm-size=… or --ipc=host; remove left-over /dev/shm/nccl-* files."),
        "no_interface": ("NCCL found no usable network interface", Kind.CONFIGURATION, "Set NCCL_SOCKET_IFNAME to the interface that all nodes share; check that it is up."),
        "files": ("too many open files", Kind.RESOURCE, "Raise ulimit -n (LimitNOFILE) for the job."),
        "registration": ("RDMA memory registration failed", Kind.CONFIGURATION, "Set the locked-memory limit to unlimited (ulimit -l, LimitMEMLOCK); load nvidia-peermem for GPU memory."),
        "verbs": ("a verbs call of the InfiniBand library failed", Kind.CONFIGURATION, "Check driver (OFED), device permissions (/dev/infiniband) and the locked-memory limit."),
    }  # fmt: skip
    claims = []
    for name, (text, kind, remedy) in table.items():
        found = [f for f in facts if f.kind is FactKind.NCCL and f.name == name]
        if found:
            nodes = listed(dict.fromkeys(f.node for f in found if f.node))
            ranks = sorted(
                {int(n) for f in found for key in ("rank_a", "rank_b") if (n := f.number(key)) is not None}
            )
            who = f" (ranks {listed(ranks)})" if ranks else ""
            claims.append(claim(Order.SOFTWARE, kind, Severity.P1, f"{text}{who}" + ("" if nodes == "none" else f" on {nodes}"), found, evidence=list(dict.fromkeys(f'"{f.text[:200]}"' for f in found))[:3], no=["no hardware fault: a matter of set-up"], remedy=remedy, confidence=0.85))  # fmt: skip
    sockets = [
        f
        for f in facts
        if f.kind is FactKind.NCCL_SETUP
        and f.name == "network"
        and f.word("network").strip().startswith("Socket")
    ]
    no_ib = [f for f in facts if f.kind is FactKind.NCCL and f.name == "no_ib"]
    if sockets:
        hosts = listed(dict.fromkeys(f.node for f in sockets if f.node))
        text = f"NCCL uses TCP sockets, not RDMA, on {hosts}"
        claims.append(claim(Order.NOTE, Kind.CONFIGURATION, Severity.P3, text + (": it found no InfiniBand device" if no_ib else ""), [*sockets, *no_ib], evidence=[sockets[0].text[:160]], remedy="Slow where the nodes have InfiniBand or RoCE: check ibstat, NCCL_IB_HCA, NCCL_IB_DISABLE, the container's devices (/dev/infiniband)."))  # fmt: skip
    return claims


def _events(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    events = [f for f in facts if f.name == "async_event"]
    if events:
        first = events[0]
        name = f"{first.word('hca') or 'a NIC'}{on_node(first.node)}"
        claims.append(claim(Order.HOST, Kind.HARDWARE, Severity.P1, f"{name} reported \"{first.word('event')[:60]}\" while the job ran ({plural(len(events), 'event')})", events, evidence=[first.text[:200]], culprits=Culprits(devices=(Device(first.node, first.word("hca") or None),)), remedy="Check cable, optic and switch port of that NIC; transfers that fail after it follow from it.", confidence=0.8, steps=(_COUNTERS,)))  # fmt: skip
    failed = [f for f in facts if f.name == "qp_failed"]
    if failed:
        first = failed[0]
        late = "110" in first.word("errno") or "timed out" in first.text
        text = "the peer's NIC could not be reached" if late else "a queue pair could not be set up"
        claims.append(claim(Order.TRANSPORT, Kind.CONFIGURATION, Severity.P1, f"{text}{on_node(first.node)}: {first.word('detail')[:100] or 'ibv_modify_qp failed'}", failed, evidence=[first.text[:240]], or_kinds=(Kind.HARDWARE,), ambiguous=True, confidence=0.6,
                            remedy="RoCE: check NCCL_IB_GID_INDEX, VLAN and that the subnets reach each other; InfiniBand: subnet manager and partition; NCCL_IB_HCA must name ports of one fabric.", steps=(NextStep("ibstat; show_gids; ping the peer's RDMA address", "whether the two ports can reach each other"),)))  # fmt: skip
    return claims


def _requests(facts: Sequence[LogFact]) -> list[Claim]:
    """Work requests that NCCL's own monitor found slow or stalled (2.32 and later)."""
    claims = []
    for name, kind, text in (
        ("wqe_stall", Kind.HANG_NETWORK, "work requests stall without a completion"),
        ("wqe_slow", Kind.SLOW_NETWORK, "work requests are slow"),
    ):
        found = [f for f in facts if f.name == name]
        if not found:
            continue
        paths = Counter((f.node, f.word("hca"), f.word("peer")) for f in found)
        (node, hca, peer), most = paths.most_common(1)[0]
        ages = [f.number("age_ns") or 0 for f in found]
        link = Link(Endpoint(node=node, device=hca or None), Endpoint(node=_host(peer) or None))
        claims.append(claim(Order.TRANSPORT, kind, Severity.P1, f"{text}: {most} of {len(found)} on {hca or 'a NIC'}{on_node(node)} towards {peer}, up to {format_duration(max(ages))}" if max(ages) else f"{text}: {most} of {len(found)} on {hca}{on_node(node)} towards {peer}", found,
                            evidence=[f.text[:200] for f in found[:3]], culprits=Culprits(links=(link,)), ambiguous=True, confidence=0.6, remedy="Check port counters, cable and congestion on both ends of this path.", steps=(_COUNTERS,)))  # fmt: skip
    return claims


# ---- echoes


def _sockets(facts: Sequence[LogFact]) -> list[Claim]:
    """Connections that somebody closed: victims' reports."""
    found = [
        f
        for f in facts
        if f.kind is FactKind.NETWORK_ERROR and f.name in ("socket", "peer_gone", "proxy", "timeout")
    ]
    if not found:
        return []
    peers = list(dict.fromkeys(f.word("peer") for f in found if f.word("peer")))
    words = list(dict.fromkeys(f.word("detail").strip(" .:") for f in found if f.word("detail").strip(" .:")))
    first = found[0]
    refused = any(re.search(r"refused|no route|unreachable|timed out", f.text, re.IGNORECASE) for f in found)
    what = "could not be reached" if refused else "reset or closed the connection"
    who = f"a peer ({listed(peers, 4)})" if peers else "a peer"
    counted = Counter(peers)
    remedy = "Look for the first error over all ranks; check the state of the network (ibstat, ping) on the peer's node."
    if refused:
        remedy += " For refused or unreachable addresses: firewall, NCCL_SOCKET_IFNAME, and whether the peer's process has started."
    return [
        claim(
            Order.AFTERMATH,
            Kind.DEAD_RANK,
            Severity.P3,
            f"{who} {what}{' (' + words[0][:80] + ')' if words else ''}: a victim's report; the peer's death or the network, not decidable here",
            found,
            weak=True,
            evidence=[f'"{f.text[:200]}"' for f in found[:3]]
            + [f"{plural(len(found), 'line')}{on_node(first.node)}, {plural(len(counted), 'peer')}"],
            no=["not the rank that prints this: it is a victim"],
            remedy=remedy,
            or_kinds=(Kind.HANG_NETWORK,),
            ambiguous=True,
            confidence=0.3,
            either=("the peer's process died first", "the network between the two failed"),
            steps=(
                ALL_LOGS,
                NextStep(
                    "ibstat; ip -s link; dmesg -T | grep -e mlx5 -e NVRM -e oom",
                    "on the peer's node: its network, its GPUs, its processes",
                ),
            ),
        )
    ]


def _warnings(facts: Sequence[LogFact]) -> list[Claim]:
    found = [f for f in facts if f.kind is FactKind.NCCL and f.name == "warning"]
    if not found:
        return []
    return [
        claim(
            Order.AFTERMATH,
            Kind.SOFTWARE,
            Severity.P3,
            f"NCCL warns: {found[0].word('detail')[:160]}{on_node(found[0].node)}",
            found,
            weak=True,
            evidence=list(dict.fromkeys(f'"{f.text[:200]}"' for f in found))[:4],
            remedy="Collect the logs of all ranks with NCCL_DEBUG=INFO.",
            confidence=0.3,
            steps=(ALL_LOGS,),
        )
    ]
