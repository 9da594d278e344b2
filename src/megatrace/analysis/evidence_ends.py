"""Processes that ended: by a signal, by the scheduler, by a limit; and who was only closed after them.

A launcher's summary names the first that failed; the SIGTERM to the others is its own work. SIGKILL without a word
is most often the host's out-of-memory killer, and the kernel log says so by the process number.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, on_node, plural
from megatrace.analysis.evidence_torch import rank_of
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import say_ranks

SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
    24: "SIGXCPU",
}


def judge_ends(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about how processes ended."""
    return _exits(facts) + _slurm(facts) + _loaders(facts)


def _exits(facts: Sequence[LogFact]) -> list[Claim]:
    ended = [
        f
        for f in facts
        if f.kind is FactKind.PROCESS_EXIT
        and f.name in ("elastic", "summary_root", "mpirun", "ray_worker", "systemd", "deepspeed")
        and (f.code is not None or f.get("signal") is not None)
    ]
    root = [f for f in ended if f.name == "summary_root"] or ended
    closing = [f for f in facts if f.kind is FactKind.PROCESS_EXIT and f.name == "closing"]
    claims = []
    seen: set[tuple[str, int | None]] = set()
    for fact in root:
        code = fact.code if fact.code is not None else -int(fact.number("signal") or 0)
        key = (fact.word("pid"), code)
        if key in seen:
            continue
        seen.add(key)
        claims.append(_ended(fact, code, closing))
    launcher = [f for f in facts if f.kind is FactKind.PROCESS_EXIT and f.name == "launcher_signal"]
    if launcher and not claims:
        name = launcher[0].word("signal")
        claims.append(claim(Order.KILLED, Kind.SOFTWARE, Severity.P2, f"the launcher itself was ended by signal {SIGNALS.get(int(name), name) if name.isdigit() else name}: from outside the job", launcher, evidence=[launcher[0].text[:200]],
                            no=["not a rank: all were closed after the launcher got the signal"], remedy="SIGTERM: the scheduler (time limit, preemption, scancel); SIGHUP: the terminal was closed (use nohup, tmux or sbatch); SIGINT: Ctrl-C."))  # fmt: skip
    return claims


def _ended(fact: LogFact, code: int, closing: Sequence[LogFact]) -> Claim:
    pid = fact.word("pid")
    name = SIGNALS.get(-code, f"signal {-code}") if code < 0 else f"exit code {code}"
    who = (
        f"rank {fact.rank}" + (f" (local rank {fact.local_rank})" if fact.local_rank is not None else "")
        if fact.rank is not None
        else f"local rank {fact.local_rank}"
        if fact.local_rank is not None
        else f"process {fact.word('pid')}"
    )
    who += on_node(fact.node)
    evidence = [f"{fact.text.strip()[:200]}"]
    if closing:
        evidence.append(
            f"the {closing[0].word('signal')} to {plural(len(closing), 'other process', 'other processes')} (pid {listed(f.word('pid') for f in closing)}) is torchrun cleaning up: they did not fail"
        )
    evidence.append("a traceback that ends in torchrun or elastic is the launcher's, not the job's")
    culprits = Culprits(
        ranks=(fact.rank,) if fact.rank is not None else (),
        nodes=(fact.node,) if fact.node else (),
        devices=()
        if fact.rank is not None or fact.local_rank is None
        else (Device(fact.node, f"local rank {fact.local_rank}"),),
    )
    text, remedy, kind, order = _ending(code, name, pid)
    no = ["not GPU memory: that would be a Python exception"] if code == -9 else []
    steps = (
        (
            NextStep(
                f"dmesg -T | grep -i -e 'killed process' -e oom{f' | grep {pid}' if pid else ''}",
                "on that node: whether the kernel killed it",
            ),
        )
        if code == -9
        else ()
    )
    return claim(
        order,
        kind,
        Severity.P1,
        f"{who} {text}",
        [fact, *closing],
        evidence=evidence,
        no=no,
        remedy=remedy,
        culprits=culprits,
        confidence=0.7,
        steps=steps,
    )


def _ending(code: int, name: str, pid: str) -> tuple[str, str, Kind, Order]:
    """(what it did, what to do, kind, order) of a process that ended with this exit code."""
    if code == -9:
        return (
            "was killed by SIGKILL (-9): most often the host's out-of-memory killer, or a memory limit (cgroup)",
            f'Look for {f"pid {pid}" if pid else "the process"} in dmesg of that node ("Killed process"); raise the memory limit or use less host memory.',
            Kind.RESOURCE,
            Order.KILLED,
        )
    if code == -7:
        return (
            "died of SIGBUS (-7): mostly /dev/shm is full, or a file that was mapped has been cut",
            "Check the size of /dev/shm (df -h /dev/shm; --shm-size, --ipc=host).",
            Kind.RESOURCE,
            Order.KILLED,
        )
    if code in (-11, -4, -8):
        return (
            f"crashed with {name} ({code})",
            "Keep a core dump; look at the native stack. On one node only: test its memory and GPU.",
            Kind.SOFTWARE,
            Order.KILLED,
        )
    if code == -6:
        return (
            "aborted (SIGABRT, -6): a watchdog or a C++ error ended it",
            "Read its own log before the end: the abort follows an error or a timeout.",
            Kind.SOFTWARE,
            Order.AFTERMATH,
        )
    if code == -15:
        return (
            "was ended by SIGTERM (-15): somebody asked it to stop",
            "Look who sent it: the scheduler, a preemption, or the launcher after another failure.",
            Kind.SOFTWARE,
            Order.AFTERMATH,
        )
    return (
        f"ended with {name}: its own exception is the cause",
        "Read the traceback of that rank (error_file, or its log): the summary of the launcher has not got it.",
        Kind.SOFTWARE,
        Order.AFTERMATH,
    )


def _slurm(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    failed = [f for f in facts if f.name == "node_failed"]
    if failed:
        node = next((f.node for f in failed if f.node), None)
        claims.append(claim(Order.HARDWARE, Kind.DEAD_RANK, Severity.P0, f"Slurm ended the job because node {node or '(not named)'} failed", failed, evidence=[failed[0].text[:200]], culprits=Culprits(nodes=(node,) if node else ()), remedy="Look at that node's BMC and kernel log; it did not answer Slurm.", confidence=0.8, ended=True))  # fmt: skip
    limit = [f for f in facts if f.name == "time_limit"]
    if limit:
        claims.append(claim(Order.SOFTWARE, Kind.CONFIGURATION, Severity.P2, "Slurm ended the job at its time limit: nothing failed", limit, evidence=[limit[0].text[:200]], remedy="Ask for more time, or save checkpoints and requeue.", confidence=0.95))  # fmt: skip
    tasks = [f for f in facts if f.kind is FactKind.PROCESS_EXIT and f.name == "slurm"]
    killed = [f for f in tasks if f.word("how").startswith(("Killed", "Bus", "Segmentation", "Aborted"))]
    if killed:
        first = killed[0]
        claims.append(claim(Order.KILLED, Kind.RESOURCE if first.word("how").startswith(("Killed", "Bus")) else Kind.SOFTWARE, Severity.P1, f"task {first.word('tasks')}{on_node(first.node)}: {first.word('how')}", killed, evidence=[f.text[:200] for f in killed[:3]],
                            remedy="Killed without a word is mostly the host's out-of-memory killer: dmesg on that node. Others end because srun ends the step.", culprits=Culprits(nodes=(first.node,) if first.node else ()), confidence=0.6))  # fmt: skip
    return claims


def _loaders(facts: Sequence[LogFact]) -> list[Claim]:
    found = [f for f in facts if f.kind is FactKind.PROCESS_EXIT and f.name == "loader_worker"]
    if not found:
        return []
    first = found[0]
    signal = first.word("signal") or "no signal named"
    small = any(f.name == "shm" for f in facts)
    bus = small or "Bus" in signal or "shared memory" in first.text
    text = "shared memory (/dev/shm) is too small" if bus else "most often the host's out-of-memory killer"
    ranks = tuple(sorted({rank for f in found if (rank := rank_of(f)) is not None}))
    return [
        claim(
            Order.HOST,
            Kind.RESOURCE,
            Severity.P1,
            f"a data loader worker (pid {first.word('pid')}) of {say_ranks(ranks) if ranks else 'a rank'} was killed ({signal}): {text}",
            found,
            evidence=[first.text[:200]],
            no=["not a GPU and not NCCL"],
            culprits=Culprits(ranks=ranks),
            remedy="Start the container with --shm-size or --ipc=host."
            if bus
            else 'Use fewer workers or less prefetching; look for "Killed process" in dmesg of that node.',
            steps=(
                NextStep(
                    "dmesg -T | grep -i 'killed process'; df -h /dev/shm; free -g",
                    "on that node: memory, and who was killed",
                ),
            ),
        )
    ]
