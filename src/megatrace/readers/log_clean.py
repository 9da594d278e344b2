"""Lines of a log as their program wrote them: prefixes of launchers, colours and wraps taken off.

Between a program and the file that somebody has in hand stand a launcher (Ray, Slurm, torchrun, Kubernetes,
pdsh), a terminal (colours, lines broken at its width, progress bars that overwrite themselves) and an editor
(CR LF, another encoding). What a prefix says (rank, node, time) is kept beside the text.

Times without a zone are taken as UTC; a year that is not in the line is that in which the file was last
written. Does not know what a line means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

MIN_WRAP = 60
"""Narrower than this no terminal is."""
MAX_LINE = 1 << 16
"""Characters of one line that are looked at."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MONTHS = {
    name: i
    for i, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], start=1
    )
}
_ANSI = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")


@dataclass(frozen=True, slots=True)
class Line:
    """One line. ``shape`` names what kind of log it is from, "" where nothing tells."""

    text: str
    number: int
    source: str
    time: int | None = None
    clock: str = "wall"
    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    shape: str = ""
    program: str = ""


@dataclass(slots=True)
class _Taken:
    """What the prefixes of one line have said so far."""

    text: str
    year: int
    time: int | None = None
    clock: str = "wall"
    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    shape: str = ""
    program: str = ""


def _ns(year: int, month: int, day: int, clock: str, fraction: str = "", zone: str = "") -> int | None:
    try:
        hour, minute, second = (int(part) for part in clock.split(":"))
        # A leap second is the next one.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None
    ns = int(fraction[:9].ljust(9, "0")) if fraction else 0
    if zone and zone not in ("Z", "UTC"):
        digits = zone.replace(":", "")
        sign = -1 if digits[0] == "-" else 1
        if digits[1:5].isdigit() and len(digits) >= 3:
            moment -= sign * timedelta(hours=int(digits[1:3]), minutes=int(digits[3:5] or 0))
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + ns


def iso_ns(text: str) -> int | None:
    """An ISO time as ns since the epoch, None where it is none."""
    match = _ISO.match(text)
    return None if match is None else _iso(match)


def _iso(m: re.Match[str]) -> int | None:
    return _ns(int(m["y"]), int(m["mo"]), int(m["d"]), m["t"], m["f"] or "", (m["z"] or "").strip())


_ISO_TEXT = (
    r"(?P<y>[12]\d{3})[-/](?P<mo>[01]\d)[-/](?P<d>[0-3]\d)[T _](?P<t>[0-2]\d:[0-5]\d:[0-6]\d)"
    r"(?:[.,](?P<f>\d{1,9}))?(?P<z>Z| ?[+-][01]\d:?\d\d| UTC\b)?"
)
_ISO = re.compile(_ISO_TEXT, re.ASCII)
_ISO_LINE = re.compile(r"[\[(]?" + _ISO_TEXT + r"[\])]?[:,|]? ?", re.ASCII)
_ISO_MINUTE = re.compile(
    r"(?P<y>20\d\d)-(?P<mo>[01]\d)-(?P<d>[0-3]\d) (?P<t>[0-2]\d:[0-5]\d) (?=\S)", re.ASCII
)
_CRI = re.compile(r"(?P<iso>[12]\d{3}-\S+Z?) (?:stdout|stderr) [FP] ")
_SYSLOG = re.compile(
    r"(?:<\d+>)?(?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) (?P<t>\d\d:\d\d:\d\d)(?:[.](?P<f>\d+))? +(?P<rest>.*)",
    re.ASCII,
)
_AFTER_TIME = re.compile(r"(?:(?P<host>[\w.-]+) +)?(?P<prog>[\w./@-]+)(?:\[(?P<pid>\d+)\])?: ?(?P<text>.*)")
_DMESG_DATE = re.compile(
    r"\[(?:[A-Z][a-z]{2}) (?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) (?P<t>\d\d:\d\d:\d\d) (?P<y>\d{4})\] ?",
    re.ASCII,
)
_DMESG = re.compile(r"(?:<\d+>)?\[ *(?P<s>\d{1,9})\.(?P<f>\d{3,9})\](?:\[ *[TC]\d+\])? ?", re.ASCII)
_KMSG = re.compile(r"(?P<prio>\d{1,3}),(?P<seq>\d+),(?P<us>\d+),[-c+][^;]*;", re.ASCII)
_FABRIC = re.compile(r"\[(?P<mon>[A-Z][a-z]{2}) (?P<d>\d\d) (?P<y>\d{4}) (?P<t>\d\d:\d\d:\d\d)\] ?", re.ASCII)
_RAY = re.compile(
    r"\((?P<name>[\w.:<>\[\]-]+)(?: rank=(?P<rank>\d+))?[ ,]+(?:pid=\d+)(?:, ip=(?P<ip>[\w.:]+))?(?:, [^)]*)?\) ?"
)
_POD = re.compile(r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] |(?P<name>[\w.-]+)\s+\| (?=\S)")
_TORCHRUN = re.compile(r"\[(?P<role>default|trainer|worker)(?P<local>\d+)\]: ?")
_RANK = re.compile(
    r"\[?(?:global[ _]?)?[Rr](?:ank|ANK)[ =:_]?(?P<rank>\d+)(?:/\d+)?\](?::|,)? ?|\[rank=(?P<r2>\d+)\] ?"
)
_SRUN = re.compile(r"(?P<task>\d{1,5}): (?=\S)")
_PDSH = re.compile(r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}|[a-zA-Z][\w.-]*\d[\w.-]*): +(?=\S)")
_C10 = re.compile(
    r"\[(?P<lv>[IWEF])(?P<mo>\d{1,2}?)(?P<d>\d\d) (?P<t>\d\d:\d\d:\d\d)\.(?P<f>\d+)(?: \d+)? (?P<file>[\w./]+\.\w+):\d+\] ?",
    re.ASCII,
)
_GLOG = re.compile(
    r"(?P<lv>[IWEF])(?P<mo>[01]\d)(?P<d>[0-3]\d) (?P<t>\d\d:\d\d:\d\d)\.(?P<f>\d+) +\d+ (?P<file>\S+:\d+)\] ?",
    re.ASCII,
)
_C10_OLD = re.compile(r"\[(?P<lv>[IWEF]) (?P<file>[\w.]+:\d+)\] ?")
_JOURNAL_KERNEL = re.compile(r"(?:(?P<host>[\w.-]+) )?kernel: ?(?:\[ *\d+\.\d+\] ?)?")


def clean(raw: bytes, number: int, source: str, modified: int | None = None) -> Iterator[Line]:
    """The lines in one line of a file: several where a progress bar overwrote itself."""
    text = raw[:MAX_LINE].decode("utf-8", "replace")
    if "\x1b" in text or not text.isprintable():
        text = _ANSI.sub("", text)
    year = (_EPOCH + timedelta(seconds=(modified or 0) // 1_000_000_000)).year if modified else 0
    for part in text.split("\r"):
        if part.strip():
            yield _strip(part.rstrip(), number, source, year, modified)


def _strip(text: str, number: int, source: str, year: int, modified: int | None) -> Line:
    bare = text.lstrip()
    dated = bare != text and (_ISO.match(bare) or _ISO_MINUTE.match(bare))
    taken = _Taken(bare if dated else text, year or 1970)
    for _ in range(8):  # no launcher puts more prefixes before one line
        before = taken.text
        for take in _TAKERS:
            if take(taken):
                break
        if taken.text == before:
            break
    if year and modified is not None and taken.time is not None and taken.shape == "syslog":
        taken.time = _not_after(taken.time, modified)
    body = _REPEATED.sub("", taken.text) if "[repeated" in taken.text else taken.text
    return Line(
        body, number, source, taken.time, taken.clock, taken.node, taken.rank, taken.local_rank, taken.shape,
        taken.program,
    )  # fmt: skip


def _not_after(time: int, modified: int) -> int:
    """A syslog time lies in the last twelve months before the file was last written."""
    day = 86_400 * 1_000_000_000
    return time - 365 * day if time > modified + 2 * day else time


def _iso_time(taken: _Taken) -> bool:
    m = _CRI.match(taken.text)
    if m is not None:
        taken.time, taken.text, taken.shape = (
            iso_ns(m["iso"]) or taken.time,
            taken.text[m.end() :],
            taken.shape or "container",
        )
        return True
    m = _ISO_LINE.match(taken.text)
    if m is not None:
        taken.time, taken.text, taken.shape = (
            _iso(m) or taken.time,
            taken.text[m.end() :],
            taken.shape or "timed",
        )
        return True
    m = _ISO_MINUTE.match(taken.text)
    if m is None:
        return False
    taken.time = taken.time or _ns(int(m["y"]), int(m["mo"]), int(m["d"]), f"{m['t']}:00")
    taken.text, taken.shape = taken.text[m.end() :], taken.shape or "timed"
    return True


def _kernel_time(taken: _Taken) -> bool:
    m = _DMESG_DATE.match(taken.text) or _FABRIC.match(taken.text)
    if m is not None:
        month = _MONTHS.get(m["mon"], 0)
        fabric = m.re is _FABRIC
        taken.time = _ns(int(m["y"]), month, int(m["d"]), m["t"]) or taken.time
        taken.text, taken.shape = taken.text[m.end() :], "fabricmanager" if fabric else "kernel"
        return True
    m = _DMESG.match(taken.text)
    if m is not None:
        if taken.time is None:
            taken.time = int(m["s"]) * 1_000_000_000 + int(m["f"][:9].ljust(9, "0"))
            taken.clock = "boot"
        taken.text, taken.shape = taken.text[m.end() :], "kernel"
        return True
    m = _KMSG.match(taken.text)
    if m is None:
        return False
    taken.time, taken.clock, taken.shape = int(m["us"]) * 1_000, "boot", "kernel"
    taken.text = taken.text[m.end() :]
    return True


def _syslog(taken: _Taken) -> bool:
    m = _SYSLOG.match(taken.text)
    if m is None or m["mon"] not in _MONTHS:
        if taken.shape == "timed" and taken.time is not None:  # an ISO time, then "host program:"
            j = _JOURNAL_KERNEL.match(taken.text)
            if j is not None:
                taken.node, taken.text, taken.shape = j["host"] or taken.node, taken.text[j.end() :], "kernel"
                return True
        elif taken.text.startswith("kernel: "):
            taken.text, taken.shape = taken.text[8:], "kernel"
            return True
        return False
    taken.time = _ns(taken.year, _MONTHS[m["mon"]], int(m["d"]), m["t"], m["f"] or "") or taken.time
    taken.shape, taken.text = "syslog", m["rest"]
    after = _AFTER_TIME.match(m["rest"])
    if after is not None:
        taken.node = after["host"] or taken.node
        taken.program, taken.text = after["prog"], after["text"]
        inner = _DMESG.match(taken.text)
        if inner is not None and taken.program == "kernel":
            taken.text = taken.text[inner.end() :]
    return True


def _launcher(taken: _Taken) -> bool:
    text = taken.text
    m = _RAY.match(text)
    if m is not None:
        taken.node = m["ip"] or taken.node
        taken.rank = int(m["rank"]) if m["rank"] else taken.rank
        taken.text, taken.shape = text[m.end() :], taken.shape or "ray"
        return True
    m = _TORCHRUN.match(text)
    if m is not None:
        taken.local_rank, taken.text, taken.shape = (
            int(m["local"]),
            text[m.end() :],
            taken.shape or "torchrun",
        )
        return True
    m = _RANK.match(text)
    if m is not None and text[:1] == "[":
        if not _OWN_RANK.match(text):
            taken.rank = int(m["rank"] or m["r2"])
            taken.text, taken.shape = text[m.end() :], taken.shape or "torchrun"
            return True
        return False
    m = _POD.match(text)
    if m is not None and (m["pod"] or re.search(r"\d", m["name"] or "")):
        taken.node = taken.node or m["pod"] or m["name"]
        taken.text, taken.shape = text[m.end() :], taken.shape or "container"
        return True
    return False


_OWN_RANK = re.compile(
    r"\[(?:Global )?Rank \d+\] (?:Watchdog|Some NCCL|To avoid|NCCL watchdog|Received|Timeout|Found|Caught|Process|Found|"
    r"\s*Detected|First PG|Terminat|Global|Heartbeat|ProcessGroupNCCL)"
)
"""Text of ProcessGroupNCCL itself: its "[Rank 1]" is the rank in the group, not a prefix."""


def _programs(taken: _Taken) -> bool:
    m = _C10.match(taken.text) or _GLOG.match(taken.text)
    if m is not None:
        stamp = _ns(_year(taken), int(m["mo"] or 1), int(m["d"]), m["t"], m["f"])
        taken.time = stamp if stamp is not None else taken.time
        taken.program = m["file"].split(":")[0]
        taken.text, taken.shape = taken.text[m.end() :], "torch"
        return True
    m = _C10_OLD.match(taken.text)
    if m is not None:
        taken.program, taken.text, taken.shape = m["file"].split(":")[0], taken.text[m.end() :], "torch"
        return True
    return False


def _year(taken: _Taken) -> int:
    """A log of torch has month and day: the year is that of a time before it, or of the file."""
    if taken.time is not None and taken.clock == "wall":
        return (_EPOCH + timedelta(seconds=taken.time // 1_000_000_000)).year
    return taken.year


def _numbered(taken: _Taken) -> bool:
    m = _SRUN.match(taken.text)
    if m is not None and taken.rank is None and taken.shape in ("", "timed"):
        taken.rank, taken.text, taken.shape = int(m["task"]), taken.text[m.end() :], "srun"
        return True
    m = _PDSH.match(taken.text)
    if m is not None and taken.shape == "" and taken.node is None:
        taken.node, taken.text, taken.shape = m["host"], taken.text[m.end() :], "pdsh"
        return True
    return False


_TAKERS = (_kernel_time, _iso_time, _syslog, _programs, _launcher, _numbered)


_NEW = re.compile(
    r"\s\s|[\[(<{]|\d{4}-\d\d|[A-Z][a-z]{2} +\d|[\w.-]+:\d+:\d+ \[|Traceback|\S+Error\b|  File |\d+: |frame #|\|"
)


def unwrapped(lines: Iterator[tuple[int, bytes]], width: int) -> Iterator[tuple[int, bytes]]:
    """Lines that a terminal broke at ``width`` characters put together again; 0: none were."""
    held: tuple[int, bytes] | None = None
    for number, whole in lines:
        raw = whole.rstrip(b"\r")
        if held is not None:
            fresh = _NEW.match(raw[:200].decode("latin-1"))
            if fresh is None and raw.strip() and len(held[1]) < MAX_LINE:
                held = (held[0], held[1] + raw)
                if len(raw) >= width:
                    continue
                yield held
                held = None
                continue
            yield held
            held = None
        if width and len(raw) == width:
            held = (number, raw)
        else:
            yield number, raw
    if held is not None:
        yield held


def wrap_width(lines: list[bytes]) -> int:
    """The width at which a terminal broke these lines, 0 where none did.

    Several lines are exactly as long as the longest, and what follows each begins like no line of a log.
    """
    lengths = [len(line.rstrip(b"\r")) for line in lines]
    width = max(lengths, default=0)
    if width < MIN_WRAP or lengths.count(width) < 2:
        return 0
    after = [lines[i + 1] for i in range(len(lines) - 1) if lengths[i] == width and lines[i + 1].strip()]
    if lines[0][:4] in {line[:4] for line in after}:
        return 0  # every line begins alike, so none is the rest of another
    broken = [line for line in after if _NEW.match(line[:200].decode("latin-1")) is None]
    return width if broken and len(broken) == len(after) else 0


def at(line: Line, text: str) -> Line:
    """The same line with other text."""
    return replace(line, text=text)
