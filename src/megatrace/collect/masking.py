"""Takes personal data out of recordings without changing what they say about the job.

Two passes over the same bytes: the first finds names of hosts and users, addresses and secrets where their
formats put them; the second replaces them wherever they stand. A replacement has the length of what it
replaces, so that offsets, sizes and length fields of binary formats stay right, and the same thing has the
same replacement in every file, so that the diagnosis is the same. Host names keep their order.

What it does not know it cannot mask: a host name that stands in none of the places looked at, and words of
less than three characters. It opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

SHORTEST = 3
"""Bytes. A host called "a1" cannot be told from text."""
LONGEST = 255
"""Bytes of a name, as DNS has it."""

_WORD = rb"[A-Za-z0-9][A-Za-z0-9._-]{2,254}"
_HOST_AT = (
    # NCCL: "host:pid:tid [0] NCCL INFO"
    (b" NCCL ", re.compile(rb"^(" + _WORD + rb"):\d+:\d+ \[", re.MULTILINE)),
    # call log: "[10.0.0.1] [host] [save_count 1]"
    (b"] [", re.compile(rb"^\[\d{1,3}(?:\.\d{1,3}){3}\] \[(" + _WORD + rb")\]", re.MULTILINE)),
    # syslog, old and new: "Nov 30 02:13:40 host kernel:", "2026-11-30T02:13:40+00:00 host kernel:"
    (b": ", re.compile(rb"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (" + _WORD + rb") ", re.MULTILINE)),
    (b": ", re.compile(rb"^\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d) (" + _WORD + rb") ", re.MULTILINE)),
    (b'"', re.compile(rb'"(?:host|hostname|host_name|node|node_name|nodename)"\s*:\s*"(' + _WORD + rb')"')),
    (b"=", re.compile(rb"\b(?:hostname|host|nodename|node|MASTER_ADDR|HOSTNAME)=(" + _WORD + rb")")),
    (b"@", re.compile(rb"[\w.+-]+@(" + _WORD + rb")")),
)
_USER_AT = (
    (b"/home/", re.compile(rb"/home/([A-Za-z_][A-Za-z0-9._-]{2,63})")),
    (b"/Users/", re.compile(rb"/Users/([A-Za-z_][A-Za-z0-9._-]{2,63})")),
    (b"USER=", re.compile(rb"\b(?:USER|LOGNAME|SUDO_USER)=([A-Za-z_][A-Za-z0-9._-]{2,63})")),
    (b"@", re.compile(rb"(?<![\w.+-])([A-Za-z_][\w.+-]{2,63})@[A-Za-z0-9]")),
)
_IPV4 = re.compile(rb"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_IPV6 = re.compile(rb"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){5,7}[0-9a-fA-F]{1,4}(?![\w:.])")
"""Eight groups, or the six of a MAC address."""
_IPV6_SHORT = re.compile(
    rb"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){1,6}:(?:[0-9a-fA-F]{1,4}:){0,5}[0-9a-fA-F]{1,4}(?![\w:.])"
)
_SECRET_KEY = (
    rb"[\w-]*(?:token(?!i[sz]|s)|secret|passw(?:or)?d|(?:api|access|private|wandb)[_-]?key"
    rb"|credential|authorization)[\w-]*"
)
_SECRETS = (
    re.compile(rb"(?i)" + _SECRET_KEY + rb"[\"']?\s*[=:]\s*[\"']?(?:Bearer\s+)?([^\s\"',;]{4,})"),
    re.compile(rb"(?i)--" + _SECRET_KEY + rb"[= ]([^\s\"',;]{4,})"),
    # an argument and its value in a list: "--token", "value" in JSON, a byte 0 between them in /proc
    re.compile(rb"(?i)--" + _SECRET_KEY + rb"(?:[\"']\s*,\s*[\"']|\0)([^\s\"',;\0]{4,})"),
    re.compile(rb"\b((?:hf_|sk-|ghp_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,})"),
)
_SECRET_WORDS = (b"token", b"secret", b"passw", b"key", b"credential", b"authorization", b"hf_", b"sk-",
                 b"ghp_", b"glpat-", b"xox", b"akia")  # fmt: skip
_NODE_LISTS = re.compile(rb"\b\w*NODELIST=(\S+)")

_NO_NAMES = re.compile(
    "localhost|node|rank_?|gpu|nccl|info|warn|kernel|none|null|true|false|root|user|ubuntu|admin|host|torch"
    "|python3?|megatrace|all|any|self|func?|data|stream|opcount|grouphash|save_count|pci|send|recv|time"
    "|line|error|comm|group|logs?|[0-9]+"
)
"""Words that stand where names do and name nobody, and words that formats are made of."""
_NO_ADDRESSES = (b"127.", b"0.0.0.0", b"255.")


class What(Enum):
    """Kinds of things that are masked."""

    HOST = "host names"
    USER = "user names"
    ADDRESS = "addresses"
    SECRET = "secrets"


@dataclass(slots=True)
class Masks:
    """What was found, and after `settle` what replaces it."""

    hosts: set[bytes] = field(default_factory=set)
    users: set[bytes] = field(default_factory=set)
    addresses: set[bytes] = field(default_factory=set)
    secrets: int = 0
    _named: dict[bytes, bytes] = field(default_factory=dict)
    _addressed: dict[bytes, bytes] = field(default_factory=dict)
    _patterns: dict[tuple[bytes, ...], re.Pattern[bytes]] = field(default_factory=dict)

    def declare(self, hosts: Iterable[str], users: Iterable[str] = ()) -> None:
        """Names that are known from elsewhere (a host file, the machine itself)."""
        for name in hosts:
            _add(self.hosts, name.encode("utf-8", "surrogateescape"))
            _add(self.hosts, name.partition(".")[0].encode("utf-8", "surrogateescape"))
        for name in users:
            _add(self.users, name.encode("utf-8", "surrogateescape"))

    def look(self, block: bytes) -> set[bytes]:
        """Finds names and addresses in whole lines; returns the host names among them."""
        found: set[bytes] = set()
        for mark, pattern in _HOST_AT:
            if mark in block:
                for name in set(pattern.findall(block)):
                    if not _IPV4.fullmatch(name):
                        _add(found, name)
                        _add(found, name.partition(b".")[0])
        self.hosts |= found
        for mark, pattern in _USER_AT:
            if mark in block:
                for name in set(pattern.findall(block)):
                    _add(self.users, name)
        self.addresses.update(_addresses(block))
        return found

    def settle(self) -> None:
        """Chooses the replacements: nothing that stands in the data is taken for one."""
        taken = self.hosts | self.users
        self._named = {
            **_pseudonyms(self.hosts, b"h", taken),
            **_pseudonyms(self.users - self.hosts, b"u", taken),
        }
        self._addressed = {}
        made: set[bytes] = set()
        for number, address in enumerate(sorted(self.addresses), start=1):
            self._addressed[address] = _like(address, number, self.addresses | made)
            made.add(self._addressed[address])

    def apply(self, block: bytes) -> bytes:
        """The same with everything replaced; as long as before."""
        present = tuple(name for name in self._named if name in block)
        if present:
            block = self._pattern(present).sub(lambda match: self._named[match.group()], block)
        for pattern, gate in ((_IPV4, b"."), (_IPV6, b":"), (_IPV6_SHORT, b"::")):
            if gate in block and self._addressed:
                block = pattern.sub(lambda match: self._addressed.get(match.group(), match.group()), block)
        return self._without_secrets(block)

    def text(self, text: str) -> str:
        """`apply` for a text."""
        return self.apply(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def mapping(self) -> dict[str, str]:
        """What was replaced by what, secrets left out."""
        pairs = {**self._named, **self._addressed}
        return {
            old.decode("utf-8", "replace"): new.decode("utf-8", "replace")
            for old, new in sorted(pairs.items())
        }

    def counts(self) -> dict[What, int]:
        """How many different things of each kind were replaced; secrets: how often."""
        return {
            What.HOST: len(self.hosts),
            What.USER: len(self.users - self.hosts),
            What.ADDRESS: len(self.addresses),
            What.SECRET: self.secrets,
        }

    def _pattern(self, present: tuple[bytes, ...]) -> re.Pattern[bytes]:
        """Longest first: "node188" must not be taken for "node18"."""
        if present not in self._patterns:
            words = b"|".join(re.escape(name) for name in sorted(present, key=len, reverse=True))
            self._patterns[present] = re.compile(rb"(?<![A-Za-z0-9])(?:" + words + rb")(?![A-Za-z0-9])")
        return self._patterns[present]

    def _without_secrets(self, block: bytes) -> bytes:
        small = block.lower()
        if any(word in small for word in _SECRET_WORDS):
            for pattern in _SECRETS:
                block = pattern.sub(self._blank, block)
        return _NODE_LISTS.sub(self._blank, block) if b"NODELIST=" in block else block

    def _blank(self, match: re.Match[bytes]) -> bytes:
        value = match.group(1)
        if value.strip(b"x"):
            self.secrets += 1
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return match.group()[:start] + b"x" * len(value) + match.group()[end:]


def _add(names: set[bytes], name: bytes) -> None:
    word = name.strip(b".-")
    plain = word.decode("ascii", "replace").lower()
    if SHORTEST <= len(word) <= LONGEST and not _NO_NAMES.fullmatch(plain):
        names.add(word)


def _addresses(block: bytes) -> set[bytes]:
    found = {item for item in _IPV4.findall(block) if not item.startswith(_NO_ADDRESSES)}
    if b":" in block:
        found.update(_IPV6.findall(block))
    if b"::" in block:
        found.update(item for item in _IPV6_SHORT.findall(block) if item != b"::1")
    return found


def _pseudonyms(names: set[bytes], letter: bytes, taken: set[bytes]) -> dict[bytes, bytes]:
    """A pseudonym of the same length for each, in the same order; "node188" as "h000189"."""
    made: dict[bytes, bytes] = {}
    used = set(taken)
    number = 0
    for name in sorted(names, key=_natural):
        short, dot, domain = name.partition(b".")
        whole = made.get(short, b"") + dot + re.sub(rb"[A-Za-z0-9]", b"x", domain)
        if dot and short in made and whole not in used:  # node188.example.com and node188 stay one node
            made[name] = whole
            used.add(whole)
            continue
        while True:
            number += 1
            new = _numbered(letter, number, len(name))
            if new not in used:
                break
        made[name] = new
        used.add(new)
    return made


def _numbered(letter: bytes, number: int, length: int) -> bytes:
    """A letter and a number in as many digits as fit, in base 36 where decimal ones do not suffice."""
    room = length - len(letter)
    digits = str(number)
    if len(digits) > room:
        digits = ""
        while number:
            number, rest = divmod(number, 36)
            digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
    if len(digits) > room:
        raise ValueError(f"more names of {length} characters than there are pseudonyms")
    return letter + digits.rjust(room, "0").encode()


def _like(address: bytes, number: int, taken: set[bytes]) -> bytes:
    """An address of the same shape that is nobody's: its digits replaced by those of a number."""
    size = sum(chr(char).isalnum() for char in address)
    while True:
        digits = iter(str(number).rjust(size, "0")[-size:])
        new = bytes(ord(next(digits)) if chr(char).isalnum() else char for char in address)
        if new not in taken:
            return new
        number += 1


def _natural(name: bytes) -> list[tuple[int, int, bytes]]:
    """node2 before node10."""
    parts = re.split(rb"(\d+)", name)
    return [(0, int(part), b"") if part.isdigit() else (1, 0, part) for part in parts if part]
