"""Lines of what starts and ends processes: torchrun, Slurm, Ray, Kubernetes, systemd, mpirun.

A launcher reports who died and how; what it then does to the others (SIGTERM) is no fault of theirs.
"""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.model.series import FactKind, LogFact
from megatrace.readers.log_clean import Line
from megatrace.readers.log_pattern import Table, fact_of, pattern

_K = FactKind
PATTERNS = (
    pattern(_K.PROCESS_EXIT, "elastic", "failed (exitcode:", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"),
    pattern(_K.PROCESS_EXIT, "closing", "closing signal", r"Sending process (?P<pid>\d+) closing signal (?P<signal>\w+)"),
    pattern(_K.PROCESS_EXIT, "launcher_signal", "Received Signals", r"Received (?:Signals\.)?(?P<signal>SIG\w+) death signal"),
    pattern(_K.PROCESS_EXIT, "launcher_signal", "death signal", r"Received (?:Signals\.)?(?P<signal>\w+|\d+) death signal"),
    pattern(_K.PROCESS_EXIT, "launcher_signal", "SignalException", r"SignalException: Process (?P<pid>\d+) got signal: (?P<signal>\d+)"),
    pattern(_K.OUT_OF_MEMORY, "slurm_oom", "oom", r"(?:slurmstepd|srun|slurmd).*?(?:Detected (?P<count>\d+) oom[-_]kill event|oom-kill|OOM Killed).*?(?:StepId=(?P<step>[\w.+]+))?"),
    pattern(_K.OUT_OF_MEMORY, "slurm_oom", "Out Of Memory", r"(?:slurmstepd|srun): error: (?:(?P<node>[\w.-]+): )?(?:tasks? (?P<tasks>[\d,\[\]-]+): )?Out Of Memory"),
    pattern(_K.OUT_OF_MEMORY, "slurm_oom", "memory limit", r"(?:slurmstepd|srun).*(?P<detail>[Ee]xceeded (?:job|step) memory limit.*)"),
    pattern(_K.PROCESS_EXIT, "slurm", "srun: error:", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\[\]-]+): (?P<how>Killed|Exited with exit code \d+|Segmentation fault.*|Bus error.*|Aborted.*|Terminated|.*)"),
    pattern(_K.PROCESS_EXIT, "node_failed", "NODE", r"(?:slurmstepd|srun|scancel|slurmctld)(?:.*? ON (?P<node>[\w.-]+) CANCELLED)?.*?(?P<detail>(?:DUE TO NODE FAILURE|NODE_FAIL).*)"),
    pattern(_K.PROCESS_EXIT, "node_failed", "Node failure", r"Node failure on (?P<node>[\w.-]+)"),
    pattern(_K.PROCESS_EXIT, "time_limit", "DUE TO TIME LIMIT", r"(?P<detail>CANCELLED.*DUE TO TIME LIMIT.*)"),
    pattern(_K.PROCESS_EXIT, "cancelled", "CANCELLED AT", r"(?:JOB|STEP) (?P<job>\S+) (?:ON (?P<node>\S+) )?CANCELLED AT"),
    pattern(_K.OUT_OF_MEMORY, "ray_oom", "killed due to the node running low on memory", r"(?:IP: |ID: )?(?P<node>\d+\.\d+\.\d+\.\d+)?.*killed due to the node running low on memory"),
    pattern(_K.OUT_OF_MEMORY, "ray_oom", "OutOfMemoryError: Task was killed", r"(?P<detail>Task was killed.*)"),
    pattern(_K.OUT_OF_MEMORY, "ray_oom", "memory pressure (OOM)", r"killed due to memory pressure \(OOM\).*?(?:IP: (?P<node>[\w.:]+?)\))?(?P<detail> over.*|$)"),
    pattern(_K.OUT_OF_MEMORY, "ray_oom", "memory monitor", r"(?P<detail>.*killed.*memory monitor.*)"),
    pattern(_K.PROCESS_EXIT, "ray_worker", "worker died", r"(?P<detail>.*worker died.*)"),
    pattern(_K.PROCESS_EXIT, "ray_worker", "Worker exit type", r"Worker exit type: (?P<how>\w+)(?P<detail>.*)"),
    pattern(_K.PROCESS_EXIT, "ray_worker", "ActorDiedError", r"ActorDiedError: (?P<detail>.*)"),
    pattern(_K.OUT_OF_MEMORY, "pod_oom", "OOMKilled", r"(?:(?P<pod>[\w-]+).*)?OOMKilled"),
    pattern(_K.PROCESS_EXIT, "pod_evicted", "Evicted", r"(?P<detail>(?:The node was low on resource|Evicted).*)"),
    pattern(_K.PROCESS_EXIT, "systemd", "code=killed", r"(?P<unit>[\w@.-]+\.service): (?:Main|Control) process exited, code=killed, status=(?P<signal>\d+)"),
    pattern(_K.PROCESS_EXIT, "mpirun", "exited on signal", r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<node>\S+) exited on signal (?P<signal>\d+)"),
    pattern(_K.PROCESS_EXIT, "loader_worker", "DataLoader worker", r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) (?:is killed by signal: (?P<signal>[\w ]+)|exited unexpectedly(?: with exit code (?P<code>\d+))?)(?P<detail>.*)"),
    pattern(_K.PROCESS_EXIT, "deepspeed", "exits with return code", r"(?:Process (?P<pid>\d+)|--local_rank=(?P<local>\d+).*\]|\]) exits with return code = (?P<code>-?\d+)"),
    pattern(_K.PROCESS_EXIT, "deepspeed_kill", "Killing subprocess", r"Killing subprocess (?P<pid>\d+)"),
)  # fmt: skip
_FAIL = re.compile(r"(?P<key>time|host|rank|exitcode|error_file|traceback) *: (?P<value>.*)")


class Launcher:
    """See the module. A failure summary of torchrun is several lines: "rank : 12 (local_rank: 4)"."""

    needles: tuple[str, ...] = tuple(
        dict.fromkeys(
            [
                *(p.needle for p in PATTERNS),
                "Root Cause (first observed failure)",
                "Other Failures",
                "ChildFailedError",
            ]
        )
    )

    def __init__(self) -> None:
        self._table = Table(PATTERNS)
        self._part: str | None = None
        self._entry: dict[str, str] = {}
        self._left = 0

    @property
    def open(self) -> bool:
        """Within a failure summary."""
        return self._left > 0

    def feed(self, line: Line) -> list[LogFact]:
        """A fact a line; in a summary a fact an entry."""
        if "Root Cause (first observed failure)" in line.text:
            self._part, self._left, self._entry = "root", 12, {}
            return []
        if "Failures:" in line.text:
            self._part, self._left, self._entry = "other", 400, {}
            return []
        if self.open:
            self._left -= 1
            match = _FAIL.search(line.text)
            if match is not None:
                self._entry[match["key"]] = match["value"].strip()
                if match["key"] == "exitcode":
                    return self._ended(line)
                return []
        return self._table.feed(line)

    def _ended(self, line: Line) -> list[LogFact]:
        entry, self._entry = self._entry, {}
        rank = re.match(r"(\d+) *\(local_rank: *(\d+)\)", entry.get("rank", ""))
        code = re.match(r"(-?\d+) *\(pid: *(\d+)\)", entry.get("exitcode", ""))
        if code is None:
            return []
        parts: dict[str, str | None] = {
            "code": code[1], "pid": code[2], "node": entry.get("host"), "at": entry.get("time"),
            "rank": rank[1] if rank else None, "local": rank[2] if rank else None,
        }  # fmt: skip
        fact = fact_of(
            line, _K.PROCESS_EXIT, "summary_root" if self._part == "root" else "summary_other", parts
        )
        return [replace(fact, rank=int(rank[1]) if rank else None)]

    def flush(self) -> list[LogFact]:
        """An entry without an exit code says nothing."""
        self._left, self._entry = 0, {}
        return []
