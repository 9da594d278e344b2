"""Processors of the host: their number, how they are clocked, what the kernel says of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from megatrace.analysis.evidence_host import judge_host
from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.bot.numbers import cpu_set
from megatrace.bot.processes import processes
from megatrace.model.check import Outcome, Step
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind

HUNG_TASKS = 3.0
IDLE_S = 600.0
THROTTLED = 0.05
GOVERNORS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"


@check(
    "CPU-04",
    summary="processors that are not clocked for performance",
    subject="CPU",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=3600,
    observe=True,
)
def governor(look: Look) -> Iterator[Problem]:
    """The frequency governor of every processor.

    A rank's host thread issues kernels one by one; a processor that saves power issues them later, and its
    whole job waits. Source: `cpufreq/scaling_governor`. Threshold: any processor that is not on `performance`
    (`schedutil` and the drivers of clouds without cpufreq are left alone: no governor, no finding). Remedy:
    `cpupower frequency-set -g performance`, and in the boot configuration."""
    found = Counter(look.text(path) or "" for path in look.system.glob(GOVERNORS))
    if not found:
        raise Skipped("no processor has a frequency governor (virtual machine, or firmware rules)")
    slow = {name: count for name, count in found.items() if name in ("powersave", "ondemand", "conservative")}
    driver = look.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") or ""
    if driver == "intel_pstate":
        # Its powersave is a dynamic governor; only the preference for energy makes it slow.
        slow.pop("powersave", None)
    look.said = ", ".join(f"{count} on {name}" for name, count in found.items())
    if slow:
        said = ", ".join(f"{count} of {sum(found.values())} on {name}" for name, count in slow.items())
        yield look.warn(
            f"processors are clocked to save power: {said}",
            remedy="cpupower frequency-set -g performance, and in the boot configuration",
        )


@check(
    "CPU-01",
    summary="processors or NUMA nodes that are missing",
    subject="CPU",
    severity="P1",
    step="A5",
    period_s=3600,
    must=True,
)
def count(look: Look) -> Iterator[Problem]:
    """Processors that are online, against those that are present, and NUMA nodes without memory.

    Source: `/sys/devices/system/cpu/{present,online}`, `/sys/devices/system/node`; template keys `cpu.count`,
    `cpu.numa_nodes`. Threshold: any less. A processor that is offline on purpose (hyper-threading off by the
    kernel: `smt/control`) is none. Remedy: reboot; read the BMC's event log."""
    present = cpu_set(look.text("/sys/devices/system/cpu/present") or "")
    online = cpu_set(look.text("/sys/devices/system/cpu/online") or "")
    if not online:
        raise Unknown("the kernel does not list its processors")
    wanted = look.expected("cpu.count")
    threads_off = (look.text("/sys/devices/system/cpu/smt/control") or "") in ("off", "forceoff")
    goal = int(wanted) if isinstance(wanted, int | float) else 0 if threads_off else len(present)
    look.said = f"{len(online)} processors"
    if len(online) < goal:
        gone = sorted(present - online)
        yield look.fail(
            f"{len(online)} of {goal} processors are online",
            evidence=[f"offline: {', '.join(map(str, gone[:16]))}"]
            if gone
            else ["the firmware shows no more"],
            remedy="reboot; read the BMC's event log if they stay away",
        )
    empty = []
    nodes = look.system.glob("/sys/devices/system/node/node[0-9]*/meminfo")
    for path in nodes:
        total = re.search(r"MemTotal:\s*(\d+)", look.text(path) or "")
        # Memory of GPUs and CXL devices is a node without processors; a node with processors must have memory.
        folder = path.rpartition("/")[0]
        if total is not None and total[1] == "0" and look.text(f"{folder}/cpulist"):
            empty.append(folder.rpartition("/")[2])
    expected = look.expected("cpu.numa_nodes")
    if empty or (isinstance(expected, int | float) and len(nodes) < expected):
        yield look.fail(
            f"NUMA nodes without memory: {', '.join(empty)}"
            if empty
            else f"{len(nodes)} NUMA nodes, expected {expected}",
            remedy="look for DIMMs that were switched off in the BMC's event log",
            key="numa",
        )


@check(
    "CPU-02",
    summary="processors that are locked up, and tasks that hang in the kernel",
    subject="CPU",
    severity="P1",
    step="A5",
    must=True,
)
def lockups(look: Look) -> Iterator[Problem]:
    """Soft and hard lock-ups, RCU stalls, hung tasks of the last day.

    A rank whose processor is locked up stands, and its job with it. Source: the kernel log. Threshold: any
    lock-up; three hung tasks, because a single one of 120 s is seen when a file server is slow. Remedy: look
    at the stack below the line; drain and reboot if it does not end."""
    facts = of(kernel_facts(look), FactKind.KERNEL, "hung_task", "soft_lockup", "hard_lockup", "rcu_stall")
    look.said = "none within a day"
    few = len([fact for fact in facts if fact.name == "hung_task"]) < look.limit("hung_tasks", HUNG_TASKS)
    for problem in problems(look, judge_host(facts)):
        hung = "stuck in the kernel" in problem.finding.summary
        if hung and few:
            softer = replace(problem.finding, severity=Severity.P3)
            yield replace(problem, finding=softer, outcome=Outcome.WARN, step=Step.OBSERVE)
        else:
            yield problem


@check(
    "CPU-05",
    summary="settings of the kernel that make ranks jitter",
    subject="CPU",
    severity="P3",
    step="A1",
    kind="configuration",
    period_s=3600,
    observe=True,
)
def balancing(look: Look) -> Iterator[Problem]:
    """Automatic NUMA balancing: it unmaps pages to see who uses them, under the feet of a running rank.

    Source: `/proc/sys/kernel/numa_balancing`; template key `sysctl.kernel.numa_balancing`. Threshold: on, on
    a machine with GPUs and several NUMA nodes. Remedy: `sysctl kernel.numa_balancing=0`."""
    value = look.text("/proc/sys/kernel/numa_balancing")
    if value is None or not look.system.glob("/proc/driver/nvidia/gpus/*"):
        raise Skipped("no GPU, or a kernel without NUMA balancing")
    wanted = look.expected("sysctl.kernel.numa_balancing")
    if (
        value != (str(wanted) if wanted is not None else "0")
        and len(look.system.glob("/sys/devices/system/node/node[0-9]*")) > 1
    ):
        yield look.warn(
            f"automatic NUMA balancing is {'on' if value != '0' else 'off'} (kernel.numa_balancing = {value})",
            Severity.P3,
            remedy="sysctl kernel.numa_balancing=0, and in /etc/sysctl.d",
        )


@check(
    "CPU-06",
    summary="load on a node that has no job",
    subject="CPU",
    severity="P2",
    step="A1",
    kind="resource",
    period_s=60,
    observe=True,
)
def idle_load(look: Look) -> Iterator[Problem]:
    """Processes that keep an idle node busy, and will disturb its next job.

    Source: `/proc/loadavg`. Threshold: more than half of the processors for 10 min while no process belongs
    to a job. Remedy: look at `top`; end what was left."""
    processors = len(cpu_set(look.text("/sys/devices/system/cpu/online") or ""))
    load = look.number("/proc/loadavg")
    if not processors or load is None:
        raise Unknown("no load, or no list of processors")
    idle = not any(item.in_job for item in processes(look))
    scheduled = any(item.name in ("slurmd", "kubelet") for item in processes(look))
    seconds = look.lasting("cpu.idle_load", idle and scheduled and load > processors / 2)
    look.said = f"load {load:.1f} on {processors} processors"
    if seconds >= IDLE_S:
        yield look.warn(
            f"load {load:.0f} on {processors} processors for {seconds / 60:.0f} min though no job runs",
            remedy="look at top for what was left of an earlier job, and end it",
        )


@check(
    "CPU-07",
    summary="processors that are slowed down by heat",
    subject="CPU",
    severity="P2",
    step="A0",
    kind="slow_host",
    observe=True,
)
def throttled(look: Look) -> Iterator[Problem]:
    """Thermal throttling of processors.

    Source: `thermal_throttle/package_throttle_total_time_ms` (or the count, of older kernels), lines of the
    kernel log. Threshold: 5 % of the time since the last look, because short peaks are normal when a job
    starts. Remedy: check fans and inlet temperature."""
    looked = 0
    told: set[str] = set()
    for path in look.system.glob(
        "/sys/devices/system/cpu/cpu*/thermal_throttle/package_throttle_total_time_ms"
    ):
        package = look.text(f"{path.split('/thermal')[0]}/topology/physical_package_id") or "0"
        value = look.number(path)
        if package in told or value is None:
            continue
        told.add(package)
        looked += 1
        growth = look.grown(f"cpu.package{package}.throttled", value)
        if growth is not None and growth.seconds > 0 and growth.amount / 1e3 / growth.seconds > THROTTLED:
            yield look.warn(
                f"processor {package} was slowed by heat for {growth.amount / 10 / growth.seconds:.0f} % of the time",
                device=f"CPU {package}",
                remedy="check fans and inlet temperature; the node is slow while it lasts",
            )
    if not looked:
        facts = of(kernel_facts(look), FactKind.MEMORY, "thermal")
        yield from problems(look, judge_host(facts))
