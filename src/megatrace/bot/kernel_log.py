"""What the kernel of the machine says, as facts with wall times, read once a round.

The ring buffer (/dev/kmsg) first, because it is there while the disk is not; then dmesg, then the journal,
which an unprivileged user of its group may read. Lines are recognised by the same readers that ``megatrace
diagnose`` uses on a log of somebody else, and judged by the same rules (``analysis.evidence_*``): what a
check adds is only which of the claims are its business.

Times count from the boot in the ring buffer; they become wall time by the machine's uptime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from megatrace.analysis.evidence_claim import Claim, Order
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.model.check import Outcome, Step
from megatrace.model.finding import Culprits, Device, Evidence, Finding, Kind, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.model.system import Unreadable, Why
from megatrace.model.xid import Action
from megatrace.readers.log_clean import clean
from megatrace.readers.log_kernel import kernel
from megatrace.readers.log_nvidia import nvidia
from megatrace.readers.log_oom import OomKiller
from megatrace.readers.log_pattern import Recogniser
from megatrace.units import NS_PER_S

KMSG = "/dev/kmsg"
DMESG = ("dmesg",)
JOURNAL = ("journalctl", "-k", "-b", "-o", "short-iso", "--no-pager", "-n", "5000")
MAX_LOG = 8 << 20
"""Bytes: the largest ring buffers in use are 2^23."""
WINDOW_H = 24.0
"""Hours for which an event counts: what is older was seen by a look of that day, or is shown by a state."""


def kernel_facts(look: Look) -> list[LogFact]:
    """Everything known that the kernel reported within the window, oldest first.

    Raises Skipped where its log may not be read, Unknown where there is none.
    """
    return look.memo("kernel facts", lambda: _facts(look))


def _facts(look: Look) -> list[LogFact]:
    text, source = _text(look)
    look.shared["kernel log source"] = source
    return facts_in(look, text, source)


def facts_in(look: Look, text: str, source: str) -> list[LogFact]:
    """What any log of the machine states within the window, in the order of its lines."""
    recognisers: list[Recogniser] = [nvidia(), OomKiller(), kernel()]
    booted = look.now - round((look.number("/proc/uptime") or 0.0) * NS_PER_S)
    found: list[LogFact] = []
    for number, raw, takers in _interesting(text.encode(), recognisers):
        for line in clean(raw, number, source, look.now):
            found += next((facts for item in takers if (facts := item.feed(line))), [])
    for item in recognisers:
        found += item.flush()
    timed = [_at_wall(fact, booted) for fact in found]
    since = look.now - round(WINDOW_H * 3_600 * NS_PER_S)
    return [fact for fact in timed if fact.time is None or fact.time >= since]


def _interesting(
    text: bytes, recognisers: Sequence[Recogniser]
) -> Iterator[tuple[int, bytes, list[Recogniser]]]:
    """(number, line, who knows a word of it), in order. A search for each word is faster than a look at each
    line."""
    starts: dict[int, set[int]] = {}
    for index, item in enumerate(recognisers):
        for needle in item.needles:
            word = needle.encode()
            at = text.find(word)
            while at >= 0:
                starts.setdefault(text.rfind(b"\n", 0, at) + 1, set()).add(index)
                end = text.find(b"\n", at)
                at = text.find(word, end) if end >= 0 else -1
    number, counted = 1, 0
    for start in sorted(starts):
        number, counted = number + text.count(b"\n", counted, start), start
        end = text.find(b"\n", start)
        line = text[start : end if end >= 0 else len(text)]
        yield number, line, [recognisers[index] for index in sorted(starts[start])]


def _text(look: Look) -> tuple[str, str]:
    refused = missing = False
    try:
        return look.system.read(KMSG, MAX_LOG), "the kernel's ring buffer"
    except Unreadable as error:
        refused = error.why is Why.DENIED
    for argv, name in ((DMESG, "dmesg"), (JOURNAL, "the journal")):
        ran = look.run(*argv)
        if ran.ok and ran.output.strip():
            return ran.output, name
        refused |= ran.code not in (None, 0)
        missing |= ran.why is Why.NOT_RECORDED
    if missing:
        raise Skipped("the kernel log was not recorded")
    raise Skipped("the kernel log needs root") if refused else Unknown("there is no kernel log to be read")


def _at_wall(fact: LogFact, booted: int) -> LogFact:
    if fact.clock != "boot" or fact.time is None:
        return replace(fact, node=None)
    return replace(fact, time=booted + fact.time, clock="wall", node=None)


def gpu_events(look: Look) -> list[LogFact] | None:
    """Xids that NVIDIA's library told while somebody watched (``kernel_events.GpuEvents``): their numbers, no
    words.

    None where nobody watches. The file's path is ``nvml.events`` of the template.
    """
    path = str(look.expected("nvml.events") or "")
    text = look.text(path) if path else None
    if text is None:
        return None
    look.shared["kernel log source"] = "NVIDIA's library (the kernel log may not be read)"
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        time, word, code, place = (*line.split(" "), "", "", "", "")[:4]
        if word == "xid" and time.isdecimal() and code.isdecimal():
            found.append(
                LogFact(
                    FactKind.XID,
                    line,
                    int(time),
                    device=place or None,
                    code=int(code),
                    source=path,
                    line=number,
                )
            )
    return found


def of(facts: Sequence[LogFact], kind: FactKind, *names: str) -> list[LogFact]:
    """Those of a kind, and of one of the names where any is given."""
    return [fact for fact in facts if fact.kind is kind and (not names or fact.name in names)]


def problems(
    look: Look,
    claims: Sequence[Claim],
    step: Callable[[Claim], Step] | None = None,
) -> list[Problem]:
    """The claims of a shared judge as problems of this machine; notices (INFO) are none."""
    found = []
    for item in claims:
        if item.finding.severity is Severity.INFO:
            continue
        finding = _placed(look, item)
        bad = finding.severity <= Severity.P1 and item.order is not Order.NOTE
        first = look.info.step if step is None else step(item)
        found.append(Problem(finding, Outcome.FAIL if bad else Outcome.WARN, first))
    return found


def _placed(look: Look, claim: Claim) -> Finding:
    """With the machine's name wherever the log had none, and the names of devices as other checks give
    them."""
    node, finding = look.system.name, claim.finding
    devices = tuple(Device(node, _bare(item.device)) for item in finding.culprits.devices)
    who = Culprits(nodes=(node,), devices=devices, links=finding.culprits.links)
    severity = finding.severity
    if finding.kind is Kind.SOFTWARE:
        # An application that crashes says nothing against the machine, unless its GPU needs a reset now.
        severity = max(severity, Severity.P2 if claim.action is Action.RESET_LATER else Severity.P3)
    key = ",".join(item.device or "" for item in devices)
    return replace(
        finding,
        severity=severity,
        culprits=who,
        evidence=(
            *finding.evidence,
            Evidence(f"read from {look.shared.get('kernel log source', 'its log')}"),
        ),
        fingerprint=":".join(filter(None, (look.info.id, node, key))),
    )


def _bare(name: str | None) -> str | None:
    """ "GPU 0000:19:00" as "0000:19:00.0", the name that sysfs and NVML know; others stay."""
    word = (name or "").removeprefix("GPU ").partition(" ")[0]
    if len(word) == 10 and word[4] == ":" and word[7] == ":":
        return f"{word}.0"
    return name
