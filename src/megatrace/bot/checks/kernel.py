"""The kernel and the services of the machine: what it should be, crashes, reboots nobody asked for, dead
services."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatrace.analysis.evidence_host import judge_host
from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind
from megatrace.model.system import Why

SERVICES = (
    "slurmd", "munge", "kubelet", "containerd", "crio", "docker", "nvidia-persistenced", "nvidia-dcgm", "sshd", "ssh",
    "chronyd", "chrony", "ntpd", "systemd-timesyncd", "rasdaemon", "opensmd", "openibd", "autofs", "sssd",
)  # fmt: skip
"""Services without which a node serves no job, or serves it blindly; of these, those that are there count."""
TOLD_S = 86_400.0
"""Seconds after a boot for which it is told that nobody asked for it."""
RESTARTS = 5.0
RESTARTS_S = 1_800.0
_TAINTS = {
    4: "a machine check occurred (M)",
    5: "a bad page was seen (B)",
    7: "the kernel has crashed once (D)",
    14: "a soft lock-up occurred (L)",
}
"""Bits of /proc/sys/kernel/tainted that tell of a fault; those of proprietary and unsigned modules are
usual."""


@check(
    "OS-01",
    summary="a kernel, a command line or a parameter that differs from the template",
    subject="kernel",
    severity="P2",
    step="A7",
    kind="configuration",
    period_s=3600,
    must=True,
)
def configured(look: Look) -> Iterator[Problem]:
    """Kernel release, distribution, command line and sysctl values against the template.

    A node that was installed differently is slow or fails in ways that no counter shows. Source: `/proc/sys`,
    `/proc/cmdline`, `/etc/os-release`; template keys `os.kernel`, `os.release`, `os.cmdline` (words that must
    stand there) and `sysctl.NAME`. Threshold: any difference. Remedy: configuration task; nothing is changed
    here."""
    compared = 0
    for key, path in (("os.kernel", "/proc/sys/kernel/osrelease"), ("os.release", "/etc/os-release")):
        wanted, have = look.expected(key), look.text(path)
        if wanted is None or have is None:
            continue
        compared += 1
        found = have if key == "os.kernel" else _pretty(have)
        if found != str(wanted):
            yield look.warn(
                f"{key} is {found}, expected {wanted}", key=key, remedy="install what the template says"
            )
    words = look.expected("os.cmdline")
    line = (look.text("/proc/cmdline") or "").split()
    for word in words if isinstance(words, list | tuple) else ():
        compared += 1
        if str(word) not in line:
            yield look.warn(f"the kernel's command line lacks {word}", key=str(word), remedy="boot with it")
    for key, wanted in look.template.items():
        name = key.removeprefix("sysctl.")
        if name == key:
            continue
        compared += 1
        have = look.text(f"/proc/sys/{name.replace('.', '/')}")
        if have is not None and have.split() != str(wanted).split():
            yield look.warn(
                f"{name} is {have}, expected {wanted}",
                key=name,
                remedy=f"sysctl {name}='{wanted}', and in /etc/sysctl.d",
            )
    if not compared:
        raise Skipped("no template says how the kernel should be")
    look.said = f"{compared} values as the template has them"


def _pretty(text: str) -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
    return found[1] if found else text.split("\n", 1)[0]


@check(
    "OS-02",
    summary="a reboot that nobody asked for, or a crash of the kernel",
    subject="kernel",
    severity="P0",
    step="A0",
    kind="hardware",
    must=True,
)
def rebooted(look: Look) -> Iterator[Problem]:
    """Whether the machine went down by itself.

    A machine that reboots by itself took a job with it and will do it again. Source: the boot id against the
    last look and the record of shutdowns (`last -x`); records that a crashed kernel left in `/sys/fs/pstore`;
    panics in the kernel log. Threshold: another boot without a shutdown before it; any crash record. Remedy:
    read the crash record and the BMC's event log before the node gets a job."""
    records = [path for path in look.system.glob("/sys/fs/pstore/*") if "dmesg" in path]
    if records:
        yield look.fail(
            f"a crashed kernel left {len(records)} records in /sys/fs/pstore",
            evidence=records[:3],
            remedy="read them, move them away; the BMC's event log tells of hardware",
            key="pstore",
        )
    boot, up = look.text("/proc/sys/kernel/random/boot_id") or "", look.number("/proc/uptime") or 0.0
    if look.rebooted:
        shut = _shut_down(look)
        if shut is False:
            look.note("boot.unplanned", boot)
        if shut is None:
            yield look.warn(
                "the machine was booted since the last look; whether it was shut down before is not recorded",
                Severity.P3,
                remedy="compare with planned work",
                key="boot",
            )
    if boot and look.counters.noted("boot.unplanned") == boot and up < TOLD_S and not records:
        yield look.fail(
            "the machine went down without a shutdown and was booted again",
            evidence=["last -x shows no shutdown before the last boot"],
            remedy="read the BMC's event log (power, watchdog, thermal trip) before the node gets a job",
            key="boot",
        )
    look.said = "no crash record; " + (
        "booted, after a shutdown" if look.rebooted else "the same boot as at the last look"
    )


def _shut_down(look: Look) -> bool | None:
    """Whether a shutdown stands before the last boot; None where there is no record of either."""
    ran = look.run("last", "-x", "-n", "40", "reboot", "shutdown")
    lines = [line.split()[0] for line in ran.output.splitlines() if line.strip()] if ran.ok else []
    if "reboot" not in lines:
        return None
    after = lines[lines.index("reboot") + 1 :]
    return bool(after) and after[0] == "shutdown"


@check(
    "OS-03",
    summary="a service that a node needs has failed or restarts all the time",
    subject="services",
    severity="P1",
    step="A1",
    kind="software",
    timeout_s=20,
    must=True,
)
def services(look: Look) -> Iterator[Problem]:
    """The services without which a node serves no job.

    Source: `systemctl show`; template key `os.services` (those must be active). Threshold: a service that is
    enabled and failed, or that the template names and is not active; 5 restarts in 30 min, because systemd
    hides a crash loop behind "active". Remedy: read its journal; restart it."""
    wanted = look.expected("os.services")
    named = [str(item) for item in wanted] if isinstance(wanted, list | tuple) else []
    every = list(dict.fromkeys([*named, *SERVICES]))
    ran = look.run("systemctl", "show", "--property=Id,LoadState,ActiveState,NRestarts,UnitFileState", *every)
    if ran.why in (Why.ABSENT, Why.NOT_RECORDED) or "not been booted with systemd" in ran.error:
        raise Skipped("no systemd (a container, or another init)")
    if not ran.output.strip():
        raise Unknown(ran.problem or "systemctl show printed nothing")
    looked = 0
    for block in ran.output.strip().split("\n\n"):
        said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name, state = said.get("Id", "").removesuffix(".service"), said.get("ActiveState", "")
        needed = name in named
        if said.get("LoadState") not in ("loaded", None) and not needed:
            continue
        looked += 1
        if state == "failed" or (needed and state not in ("active", "activating", "reloading")):
            yield look.fail(
                f"service {name} is {state or 'missing'}",
                device=name,
                remedy=f"journalctl -u {name} -n 100; systemctl restart {name}",
            )
        restarts = said.get("NRestarts", "")
        growth = (
            look.grown(f"service.{name}.restarts", float(restarts), RESTARTS_S)
            if restarts.isdecimal()
            else None
        )
        if growth is not None and growth.amount >= look.limit("restarts", RESTARTS):
            yield look.fail(
                f"service {name} was restarted {growth.amount:.0f} times in {max(growth.seconds / 60, 1):.0f} min",
                device=name,
                key="restarts",
                remedy=f"journalctl -u {name}: it crashes for a reason",
            )
    look.said = f"{looked} services"


@check(
    "OS-05",
    summary="a kernel that crashed in part and goes on",
    subject="kernel",
    severity="P1",
    step="A5",
    kind="software",
)
def damaged(look: Look) -> Iterator[Problem]:
    """Oopses and panics of the last day, and what the kernel says of its own state.

    After an oops locks may be held for ever: the machine looks alive until somebody touches the wrong file.
    Source: the kernel log, `/proc/sys/kernel/tainted`. Threshold: any oops; the bits for machine check, bad
    page, crash and soft lock-up (proprietary and unsigned modules are usual). Remedy: drain and reboot."""
    facts = of(kernel_facts(look), FactKind.KERNEL, "oops", "panic")
    found = problems(look, judge_host(facts))
    yield from found
    bits = int(look.number("/proc/sys/kernel/tainted") or 0)
    told = [text for bit, text in _TAINTS.items() if bits >> bit & 1]
    if told and not found:
        yield look.warn(
            f"the kernel says of itself: {', '.join(told)}",
            evidence=[f"/proc/sys/kernel/tainted is {bits}"],
            remedy="reboot at the end of the job",
        )
    look.said = "no oops within a day"
