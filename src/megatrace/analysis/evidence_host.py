"""What a kernel log says of the host: PCIe, memory, the out-of-memory killer, network ports, disks, lock-ups.

One finding per thing (device, port, DIMM, file system), with how often and how long; a corrected error is a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, on_node, plural, span, times
from megatrace.analysis.evidence_gpu import address
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import NS_PER_S, format_size

FLAPS = 3
"""Losses of carrier within ten minutes from which a port flaps rather than was unplugged once."""
FLAP_WINDOW = 600 * NS_PER_S
"""A cable that is moved once comes back within it; a bad optic goes down again."""
_KIB = 1024


def judge_host(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about the host."""
    claims: list[Claim] = []
    for judge in (_memory, _oom, _ports, _nics, _storage, _stuck, _pcie):
        claims += judge(facts)
    return claims


def _grouped(facts: Sequence[LogFact], key: Callable[[LogFact], object]) -> list[list[LogFact]]:
    groups: dict[object, list[LogFact]] = defaultdict(list)
    for fact in facts:
        groups[key(fact)].append(fact)
    return list(groups.values())


def _of(facts: Sequence[LogFact], kind: FactKind, *names: str) -> list[LogFact]:
    return [fact for fact in facts if fact.kind is kind and (not names or fact.name in names)]


# ---- memory


def _memory(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for same in _grouped(
        _of(facts, FactKind.MEMORY, "edac"), lambda f: (f.node, f.word("dimm"), f.word("class"))
    ):
        first = same[0]
        bad = first.word("class") == "UE"
        count = int(sum(f.number("count") or 1 for f in same))
        word = "uncorrectable (UE)" if bad else "corrected (CE)"
        claims.append(
            claim(
                Order.HARDWARE if bad else Order.NOTE,
                Kind.HARDWARE,
                Severity.P0 if bad else Severity.P3,
                f"{count} {word} host memory error{'s' if count != 1 else ''}{on_node(first.node)} on DIMM {first.word('dimm')}{_slot(first)}",
                same,
                evidence=[f'{first.word("what")}{span(same)}: "{first.text[:200]}"'],
                no=["not GPU memory: EDAC and MCE speak of the host's DIMMs"],
                remedy="Drain the node and replace the DIMM."
                if bad
                else "Warning: count it; schedule the DIMM's replacement if it repeats at the same address. One corrected error is no reason to drain.",
                culprits=Culprits(devices=(Device(first.node, f"DIMM {first.word('dimm')}"),)),
                confidence=0.95,
            )
        )
    loud = _of(facts, FactKind.MEMORY, "mce", "mce_panic", "memory_failure")
    fatal = [
        f
        for f in loud
        if f.name != "mce" or f.word("class").startswith(("Uncorr", "Fatal")) or _uncorrected(f)
    ]
    if fatal:
        claims.append(claim(Order.HARDWARE, Kind.HARDWARE, Severity.P0, f"uncorrected machine check{on_node(fatal[0].node)}: memory or processor of the host", fatal,
                            evidence=[f.text[:200] for f in fatal[:3]], no=["not GPU memory: a machine check is the host's"], remedy="Drain the node; read the BMC's event log for the DIMM or CPU, replace it."))  # fmt: skip
    elif loud and not claims:
        claims.append(claim(Order.NOTE, Kind.HARDWARE, Severity.P3, f"{plural(len(loud), 'corrected machine check')}{on_node(loud[0].node)}", loud, evidence=[loud[0].text[:200]], remedy="Count them; look at the BMC's event log if they repeat."))  # fmt: skip
    hot = _of(facts, FactKind.MEMORY, "thermal")
    if hot:
        claims.append(claim(Order.HOST, Kind.HARDWARE, Severity.P2, f"the CPUs{on_node(hot[0].node)} throttle: temperature above threshold ({plural(len(hot), 'line')}{span(hot)})", hot, remedy="Check fans and inlet temperature; the node is slow while it lasts."))  # fmt: skip
    return claims


def _slot(fact: LogFact) -> str:
    detail = fact.word("detail")
    parts = [
        f"{name} {word}"
        for name in ("socket", "channel", "slot")
        for word in [_after(detail, f"{name}:")]
        if word
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _after(text: str, key: str) -> str:
    rest = text.partition(key)[2]
    return rest.split()[0] if rest.split() else ""


def _uncorrected(fact: LogFact) -> bool:
    """Bit 61 (UC) of a machine check's status."""
    try:
        return bool(int(fact.word("status") or "0", 16) >> 61 & 1)
    except ValueError:
        return False


# ---- out of memory


def _oom(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for fact in _of(facts, FactKind.OUT_OF_MEMORY, "host_oom"):
        limited = (
            "MEMCG" in fact.word("constraint")
            or "cgroup" in fact.word("scope").lower()
            or bool(fact.get("cgroup"))
        )
        rss = fact.number("anon_kb")
        size = f", anon-rss {format_size(rss * _KIB)}" if rss else ""
        who = f"{fact.word('process')} (pid {fact.word('pid')})"
        scope = (
            "a cgroup's memory limit was hit (not the whole host)"
            if limited
            else "the whole host ran out of memory (global, not a cgroup)"
        )
        evidence = [
            f"victim {who}{size}",
            f"{scope}" + (f": {fact.word('cgroup')}" if fact.get("cgroup") else ""),
        ]
        if fact.get("invoker") and fact.word("invoker") != fact.word("process"):
            evidence.append(
                f'the kill was invoked by an allocation of "{fact.word("invoker")}", which is not the process that was killed'
            )
        evidence.append("the kernel's lines about it are one event")
        evidence += _same_process(fact, facts)
        claims.append(
            claim(
                Order.HOST,
                Kind.RESOURCE,
                Severity.P1,
                f"out of host memory{on_node(fact.node)}: the kernel killed {who}{size}; {scope}",
                [fact],
                evidence=evidence,
                no=["not GPU memory: that would be a CUDA error in the program"],
                remedy="Raise the memory limit of the job (cgroup, --mem, container limit), or use less: data loader workers, pinned buffers, checkpoints in RAM."
                if limited
                else "Find what used the memory (the killed process need not be the guilty one): fewer data loader workers, smaller caches, no other jobs on the node.",
                culprits=Culprits(nodes=(fact.node,) if fact.node else ()),
                confidence=0.95,
                steps=(
                    NextStep(
                        "dmesg -T | grep -A 40 'invoked oom-killer'",
                        "the table of processes at that moment: who had the memory",
                    ),
                ),
            )
        )
    for name, text in (
        ("slurm_oom", "Slurm's memory limit of the step"),
        ("ray_oom", "Ray's memory monitor (the node was running low on memory)"),
        ("pod_oom", "the memory limit of a container (OOMKilled)"),
    ):
        found = _of(facts, FactKind.OUT_OF_MEMORY, name)
        if found:
            node = next((f.node for f in found if f.node), None)
            tasks = listed(dict.fromkeys(f.word("tasks") for f in found if f.get("tasks") is not None))
            claims.append(claim(Order.HOST, Kind.RESOURCE, Severity.P1, f"out of host memory{on_node(node)}: processes were killed by {text}" + ("" if tasks == "none" else f" (task {tasks})"), found,
                                evidence=[f.text[:200] for f in found[:2]], no=["not GPU memory: that would be a CUDA error in the program"], remedy="Give the job more host memory, or use less of it (data loader workers, caches, pinned buffers).", confidence=0.9,
                                culprits=Culprits(nodes=(node,) if node else ()), steps=(NextStep("dmesg -T | grep -i -A 40 oom", "on that node: which process had the memory"),)))  # fmt: skip
    return claims


def _same_process(fact: LogFact, facts: Sequence[LogFact]) -> list[str]:
    """The rank whose process was killed, where the job's own log has its number."""
    ended = [f for f in facts if f.kind is FactKind.PROCESS_EXIT and f.word("pid") == fact.word("pid")]
    named = next((f for f in ended if f.local_rank is not None), None)
    if named is None:
        return []
    rank = f"rank {named.rank}, " if named.rank is not None else ""
    return [
        f"pid {fact.word('pid')} is {rank}local rank {named.local_rank} in the job's log: that rank ended because of this"
    ]


# ---- network ports


def _ports(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for same in _grouped(_of(facts, FactKind.LINK, "lost", "gained"), lambda f: (f.node, f.word("port"))):
        lost = [f for f in same if f.name == "lost"]
        if not lost:
            continue
        gained = len(same) - len(lost)
        first = same[0]
        port = first.word("port")
        known = [f.time for f in lost if f.time is not None]
        flaps = len(lost) >= FLAPS and (
            not known or known[-1] - known[0] <= max(FLAP_WINDOW, FLAP_WINDOW * len(lost) // FLAPS)
        )
        back = (
            "it came back every time"
            if gained >= len(lost)
            else f"it came back {times(gained)}"
            if gained
            else "it did not come back in this log"
        )
        text = (
            f"port {port}{on_node(first.node)} flaps: {plural(len(lost), 'carrier loss', 'carrier losses')}{span(same)}"
            if flaps
            else f"port {port}{on_node(first.node)} lost its link {times(len(lost))}"
        )
        stays = gained < len(lost)
        claims.append(
            claim(
                Order.HOST,
                Kind.HARDWARE,
                Severity.P1 if flaps or stays else Severity.P2,
                f"{text}; {back}",
                same,
                evidence=[
                    f"{plural(len(lost), 'line')} of carrier lost and {gained} of carrier gained, all on one port: {port}"
                ],
                remedy="Check cable, optic and switch port; drain the node by policy if it flaps again while a job runs.",
                culprits=Culprits(devices=(Device(first.node, port),)),
                confidence=0.9,
                steps=(
                    NextStep(
                        f"ethtool {port}; ibstat; mlxlink -d MLX_DEVICE -m -c -e",
                        "state, module and error counters of the port",
                    ),
                ),
            )
        )
    return claims


def _nics(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    words = {
        "nic_health": (
            "reports a failure of its firmware or hardware",
            Severity.P1,
            "Drain the node; reset the NIC (mlxfwreset) or power-cycle; replace it if it comes back.",
        ),
        "nic_hot": (
            "is too hot",
            Severity.P1,
            "Check airflow and the optic; a hot NIC throttles or drops its link.",
        ),
        "nic_cable": (
            "reports a fault of its cable or optic",
            Severity.P1,
            "Reseat or replace the cable or optic.",
        ),
        "nic_power": (
            "warns of its slot's power",
            Severity.P3,
            "A warning of many cards at start-up; check the slot's power budget if the link is unstable.",
        ),
        "tx_timeout": (
            "has a transmit queue that timed out",
            Severity.P1,
            "Reset the NIC; update firmware and driver if it comes back.",
        ),
    }
    for same in _grouped(
        [f for f in facts if f.kind is FactKind.LINK and f.name in words],
        lambda f: (f.node, f.device or f.word("port"), f.name),
    ):
        text, severity, remedy = words[same[0].name]
        name = f"NIC {same[0].device or same[0].word('port')}"
        claims.append(claim(Order.HARDWARE if severity <= Severity.P2 else Order.NOTE, Kind.HARDWARE, severity, f"{name}{on_node(same[0].node)} {text} ({times(len(same))}{span(same)})", same, evidence=list(dict.fromkeys(f.text[:200] for f in same[:3])), remedy=remedy, culprits=Culprits(devices=(Device(same[0].node, name),))))  # fmt: skip
    return claims


# ---- disks and file systems


def _storage(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    down, up = _of(facts, FactKind.STORAGE, "nfs_down"), _of(facts, FactKind.STORAGE, "nfs_up")
    for same in _grouped(down, lambda f: (f.node, f.word("server"))):
        server = same[0].word("server")
        back = [f for f in up if f.word("server") == server and (f.time or 0) >= (same[-1].time or 0)]
        state = "and answers again" if back else "and is not seen to come back"
        claims.append(claim(Order.HOST, Kind.RESOURCE, Severity.P2 if back else Severity.P1, f"the NFS server {server} did not respond{on_node(same[0].node)} ({times(len(same))}{span([*same, *back])}) {state}", [*same, *back],
                            evidence=[same[0].text[:200]], no=["not a GPU: whoever reads or writes there waits (data loader, checkpoint)"], remedy="Check the server and the path to it; processes in state D come back by themselves when it answers."))  # fmt: skip
    hard = [
        f
        for f in facts
        if f.kind is FactKind.STORAGE
        and f.name in ("nvme_timeout", "io_error", "medium_error", "fs_error", "read_only", "raid", "lustre")
    ]
    for same in _grouped(
        hard, lambda f: (f.node, (f.device or f.name)[:5] if f.name != "lustre" else "lustre")
    ):
        kinds = dict.fromkeys(f.name for f in same)
        device = next((f.device for f in same if f.device), None)
        if "lustre" in kinds:
            text, remedy = (
                "Lustre lost a connection or a request",
                "Check the Lustre servers and the network to them; clients recover by themselves if the servers answer.",
            )
        else:
            text, remedy = (
                "disk or file system errors",
                "Drain the node; read smartctl -x of the disk, replace it; a file system that turned read-only needs a check before use.",
            )
        claims.append(claim(Order.HOST, Kind.HARDWARE if "lustre" not in kinds else Kind.RESOURCE, Severity.P1, f"{'disk ' + device + ': ' if device else ''}{text}{on_node(same[0].node)} ({plural(len(same), 'line')}{span(same)})", same, evidence=list(dict.fromkeys(f.text[:200] for f in same))[:4], remedy=remedy, culprits=Culprits(devices=(Device(same[0].node, device),) if device else ())))  # fmt: skip
    return claims


# ---- lock-ups and crashes


def _stuck(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    hung = _of(facts, FactKind.KERNEL, "hung_task")
    for same in _grouped(hung, lambda f: f.node):
        names = listed(dict.fromkeys(f"{f.word('process')} (pid {f.word('pid')})" for f in same), 6)
        longest = int(max(f.number("seconds") or 0 for f in same))
        claims.append(claim(Order.WAITING, Kind.HANG_HOST, Severity.P1, f"{plural(len({f.word('pid') for f in same}), 'process', 'processes')}{on_node(same[0].node)} stuck in the kernel for more than {longest} s: {names}", same,
                            evidence=[f.text[:200] for f in same[:3]], remedy="Look at the stack below the line: nfs, lustre or ext4 means storage, nvidia means the GPU driver, mlx5 the NIC. A process in state D cannot be killed.",
                            or_kinds=(Kind.SLOW_STORAGE,), confidence=0.6, steps=(NextStep("echo w > /proc/sysrq-trigger; dmesg -T | tail -200", "stacks of all blocked processes"),)))  # fmt: skip
    for kinds, text, severity, remedy in (
        (
            ("panic", "oops"),
            "the kernel crashed",
            Severity.P0,
            "Reboot the node; keep the crash dump. Memory or a driver is the usual cause.",
        ),
        (
            ("soft_lockup", "hard_lockup", "rcu_stall"),
            "CPUs are locked up",
            Severity.P1,
            "The node stalls while it lasts: look at the stack below the line; reboot if it does not end.",
        ),
        (
            ("iommu",),
            "the IOMMU refused DMA of a device",
            Severity.P2,
            "Check IOMMU and ACS settings: GPUs that talk to each other need iommu=pt, and ACS off on the PCIe switches.",
        ),
    ):
        for same in _grouped(_of(facts, FactKind.KERNEL, *kinds), lambda f: f.node):
            broken = severity <= Severity.P1
            claims.append(claim(Order.HOST, Kind.HARDWARE if broken else Kind.CONFIGURATION, severity, f"{text}{on_node(same[0].node)} ({plural(len(same), 'line')}{span(same)})", same, evidence=list(dict.fromkeys(f.text[:200] for f in same))[:3], remedy=remedy, culprits=Culprits(nodes=(same[0].node,) if same[0].node else ()), confidence=0.8))  # fmt: skip
    crashed = _of(facts, FactKind.KERNEL, "segfault")
    if crashed:
        names = listed(dict.fromkeys(f"{f.word('process')} (pid {f.word('pid')})" for f in crashed), 5)
        claims.append(claim(Order.SOFTWARE, Kind.SOFTWARE, Severity.P2, f"segmentation fault of {names}{on_node(crashed[0].node)}", crashed, evidence=[f.text[:200] for f in crashed[:2]], remedy="Keep a core dump (ulimit -c unlimited); look at the library that is named. The same fault on one node only: test its memory."))  # fmt: skip
    return claims


# ---- PCIe


def _pcie(facts: Sequence[LogFact]) -> list[Claim]:
    """Errors of links; those before a lost GPU are its evidence and make no finding of their own."""
    lost = any(f.kind is FactKind.XID and f.code in (79, 167) for f in facts)
    errors = _of(facts, FactKind.PCIE, "aer", "link_down")
    if not errors or lost:
        return []
    claims = []
    for same in _grouped(errors, lambda f: (f.node, address(f.device) or f.word("slot"))):
        fatal = any(
            ("Fatal" in f.word("severity") and "Non-Fatal" not in f.word("severity")) or f.name == "link_down"
            for f in same
        )
        soft = all(f.word("severity").startswith("Correct") for f in same if f.name == "aer")
        bits = [f for f in _of(facts, FactKind.PCIE, "aer_bit") if f.source == same[0].source]
        what = listed(dict.fromkeys(f.word("what") for f in bits), 4)
        name = f"PCIe {address(same[0].device) or same[0].word('slot')}"
        severity = Severity.P3 if soft and not fatal else Severity.P1
        claims.append(claim(Order.HARDWARE if severity is Severity.P1 else Order.NOTE, Kind.HARDWARE, severity, f"{name}{on_node(same[0].node)}: {'corrected' if soft and not fatal else 'fatal' if fatal else 'uncorrected'} link errors {times(len(same))}{span(same)}" + ("" if what == "none" else f" ({what})"), same, evidence=[same[0].text[:200]],
                            remedy="Count them: a link that corrects many errors is slow. Reseat the card or cable at the next maintenance." if severity is Severity.P3 else "Drain the node; reseat the card behind this port, check riser, cable and power; replace if it comes back.",
                            culprits=Culprits(devices=(Device(same[0].node, name),))))  # fmt: skip
    for fact in _of(facts, FactKind.PCIE, "width"):
        at = fact.word("at")
        claims.append(claim(Order.NOTE, Kind.HARDWARE, Severity.P3, f"PCIe {fact.device}{on_node(fact.node)} runs at {fact.word('have')} of {fact.word('can')}, limited at {at}", [fact], remedy="Normal where the slot is narrower by design; else reseat the card."))  # fmt: skip
    return claims
