"""``nvidia-smi -q`` as text and as XML (``-x``): one fact a GPU with what matters for training.

The text is a tree by indentation and the XML the same tree with other spellings; both become paths of
lower-case words. Names change between drivers (throttle reasons became event reasons), so values are found by
the end of a path. "N/A" is no value: desktop cards have no ECC."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from megatrace.model.series import FactKind, LogFact, Value

_GPU_LINE = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_PAIR = re.compile(r"^( *)([^:]+?) *: (.*)$")
_REASON = re.compile(r"clocks? (?:event|throttle) reasons?")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
MAX_DEPTH = 12
"""Sections in sections: nvidia-smi nests six; a hostile XML nests thousands."""


def is_query(text: str) -> bool:
    """A head of ``nvidia-smi -q``, whole or cut down to some sections, or its XML."""
    head = text[:20_000]
    if "<nvidia_smi_log" in head:
        return True
    return any(_GPU_LINE.match(line) for line in head.split("\n")) and (
        "Attached GPUs" in head or "Driver Version" in head or "NVSMI LOG" in head
    )


def read_query(text: str) -> list[LogFact]:
    """One GPU_STATE fact a GPU. Raises ValueError for XML that is broken."""
    return [state_of(bus, tree, index) for index, (bus, tree) in enumerate(query_trees(text))]


def query_trees(text: str) -> list[tuple[str, dict[str, str]]]:
    """(bus id, value by path) of each GPU, in the order in which they stand; a path is lower-case words
    joined by "/".

    Of sections that repeat (processes) only the last one stays. Raises ValueError for XML that is broken.
    """
    if "<nvidia_smi_log" in text[:20_000]:
        return _xml_trees(text)
    found: list[tuple[str, dict[str, str]]] = []
    stack: list[tuple[int, str]] = []
    for line in text.split("\n"):
        gpu = _GPU_LINE.match(line)
        if gpu is not None:
            found.append((gpu[1], {}))
            stack = []
            continue
        if not found or not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        pair = _PAIR.match(line)
        if pair is not None:
            found[-1][1]["/".join([*(name for _, name in stack), _word(pair[2])])] = pair[3].strip()
        elif len(stack) < MAX_DEPTH:
            stack.append((indent, _word(line)))
    return found


def _xml_trees(text: str) -> list[tuple[str, dict[str, str]]]:
    if "<!ENTITY" in text:
        raise ValueError("it declares entities, as no output of nvidia-smi does")
    body = re.sub(r"<!DOCTYPE[^>]*>", "", text[text.index("<nvidia_smi_log") :])
    try:
        root = ET.fromstring(body.strip())  # entities are refused above; ET opens no external ones
    except ET.ParseError as error:
        raise ValueError(f"no whole XML: {error}") from error
    found: list[tuple[str, dict[str, str]]] = []
    for gpu in root.iter("gpu"):
        tree: dict[str, str] = {}
        _walk(gpu, (), tree)
        found.append((gpu.get("id") or "?", tree))
    return found


def _walk(node: ET.Element, path: tuple[str, ...], tree: dict[str, str]) -> None:
    for child in node:
        here = (*path, _word(child.tag))
        if len(child) and len(path) < MAX_DEPTH:
            _walk(child, here, tree)
        else:
            tree["/".join(here)] = (child.text or "").strip()


def _word(text: str) -> str:
    return " ".join(re.sub(r"[^a-z0-9]+", " ", text.lower()).split())


def state_of(bus: str, tree: dict[str, str], index: int) -> LogFact:
    """One GPU's tree as a fact of the fields that matter for training; ``index`` is its place in the
    output."""
    fields: list[tuple[str, Value]] = [("bus", bus), ("order", index)]
    for key, ends in _TEXTS.items():
        found = _find(tree, ends)
        if found:
            fields.append((key, found))
    for key, ends in _NUMBERS.items():
        number = _NUMBER.match(_find(tree, ends) or "")
        if number is not None:
            fields.append((key, float(number[0])))
    for key, part in (("volatile", "volatile"), ("aggregate", "aggregate")):
        for sort, word in (("uncorrectable", "uncorrectable"), ("corrected", "correctable")):
            count = _ecc(tree, part, word)
            if count is not None:
                fields.append((f"ecc_{key}_{sort}", count))
    active = sorted(
        _short(path)
        for path, said in tree.items()
        if _REASON.search(path) and said.lower() == "active" and "/" in path
    )
    fields.append(("throttle", ", ".join(active)))
    return LogFact(FactKind.GPU_STATE, f"GPU {bus}", device=bus, name="query", fields=tuple(fields))


def _short(path: str) -> str:
    return _REASON.sub("", path.rpartition("/")[2]).strip()


_TEXTS = {
    "product": ("product name",), "perf": ("performance state",), "recovery": ("gpu recovery action", "recovery action"),
    "fabric_state": ("fabric/state",), "fabric_status": ("fabric/status",), "retired_pending": ("retired pages/pending page blacklist", "retired pages/pending retirement", "pending blacklist"),
    "remap_pending": ("remapped rows/pending", "remapped rows/remapped row pending"), "remap_failure": ("remapped rows/remapping failure occurred", "remapped rows/remapped row failure"),
    "width": ("gpu link info/link width/current", "link widths/current link width", "link width/current"), "index": ("minor number",),
}  # fmt: skip
_NUMBERS = {
    "power": ("gpu power readings/average power draw", "gpu power readings/instant power draw", "gpu power readings/instantaneous power draw", "power readings/power draw", "gpu power readings/power draw"),
    "power_limit": ("gpu power readings/current power limit", "power readings/power limit", "power readings/current power limit", "gpu power readings/power limit"),
    "temperature": ("temperature/gpu current temp", "temperature/gpu temp"), "temperature_limit": ("temperature/gpu slowdown temp", "temperature/gpu temp slow threshold", "temperature/gpu t limit temp"),
    "retired_single": ("retired pages/single bit ecc", "multiple single bit retirement/retired count"), "retired_double": ("retired pages/double bit ecc", "double bit retirement/retired count"),
    "remap_corrected": ("remapped rows/correctable error", "remapped rows/remapped row corr"), "remap_uncorrected": ("remapped rows/uncorrectable error", "remapped rows/remapped row unc"),
    "width_now": ("link width/current", "link widths/current link width"), "width_max": ("link width/max", "link widths/max link width"),
    "gen_now": ("pcie generation/current", "pcie gen/current link gen"), "gen_max": ("pcie generation/max", "pcie gen/max link gen"),
    "minor": ("minor number",), "memory_used": ("fb memory usage/used",), "replays": ("replays since reset", "replay counter"),
}  # fmt: skip


def _find(tree: dict[str, str], ends: Iterable[str]) -> str | None:
    for end in ends:
        for path, said in tree.items():
            if (path == end or path.endswith(f"/{end}")) and said.upper() not in ("N/A", "[N/A]", ""):
                if "width" in end:
                    return said.replace("x", "")
                return said
    return None


def _ecc(tree: dict[str, str], part: str, word: str) -> float | None:
    """The sum of one sort of ECC errors; None where the card counts none."""
    total, seen = 0.0, False
    for path, said in tree.items():
        if f"ecc errors/{part}" not in path:
            continue
        last = path.rpartition("/")[2]
        old = {"uncorrectable": "double bit", "correctable": "single bit"}[word]
        mine = (
            last.endswith((f" {word}", f" {word} parity", f" {word} sec ded", f" {word} secded"))
            or last == word
            or (old in path and last == "total")
        )
        number = _NUMBER.fullmatch(said)
        if mine and number is not None and not (word == "correctable" and "uncorrectable" in last):
            total, seen = total + float(number[0]), True
    return total if seen else None
