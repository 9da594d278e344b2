"""``nvidia-smi nvlink -s`` and ``-e`` (links and their error counters), and ``nvidia-smi topo -m`` (who is near whom)."""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.model.series import FactKind, LogFact, Value

_GPU = re.compile(r"^GPU (\d+): (.*?)(?: \(UUID: (GPU-[\w-]+)\))?\s*$", re.ASCII)
_LINK = re.compile(r"^\s*Link (\d+): (?:<?(inactive)>?|([\d.]+) GB/s)", re.ASCII)
_ERROR = re.compile(r"^\s*Link (\d+): ([A-Za-z ]+?)(?: Error(?:s)?)?(?: Count)?: (\d+)", re.ASCII)
_ALL_DOWN = re.compile(r"all links are inactive|Unable to retrieve NVLink information", re.IGNORECASE)
_CELL = re.compile(r"^(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)$")


def is_nvlink(text: str) -> bool:
    """GPU lines with their UUID, and links or the sentence that there are none."""
    head = text[:20_000]
    return bool(re.search(r"^GPU \d+: .*\(UUID:", head, re.MULTILINE)) and (
        "Link 0:" in head
        or bool(re.search(r"^\s*Link \d+:", head, re.MULTILINE))
        or bool(_ALL_DOWN.search(head))
    )


def read_nvlink(text: str) -> list[LogFact]:
    """One fact a GPU: rates by link, which are inactive, error counters above 0."""
    facts: list[LogFact] = []
    links: dict[str, Value] = {}
    for line in text.split("\n"):
        gpu = _GPU.match(line)
        if gpu is not None:
            facts = _closed(facts, links)
            links = {}
            facts.append(
                LogFact(
                    FactKind.GPU_STATE,
                    line.strip()[:200],
                    device=f"GPU {gpu[1]}",
                    name="nvlink",
                    code=int(gpu[1][:9]),
                    fields=(("product", gpu[2]),),
                )
            )
            continue
        if not facts:
            continue
        link, error = _LINK.match(line), _ERROR.match(line)
        if link is not None:
            links[f"link {link[1]}"] = "inactive" if link[2] else float(link[3])
        elif error is not None and int(error[3][:18]):
            links[f"error {error[1]} {error[2].strip()}"] = int(error[3][:18])
        elif _ALL_DOWN.search(line):
            links["all_inactive"] = line.strip()[:200]
    return _closed(facts, links)


def _closed(facts: list[LogFact], links: dict[str, Value]) -> list[LogFact]:
    if facts and links:
        return [*facts[:-1], replace(facts[-1], fields=(*facts[-1].fields, *links.items()))]
    return facts


def is_topology(text: str) -> bool:
    """A header of GPUs and rows of distances."""
    lines = [line.split() for line in text[:20_000].split("\n") if line.strip()]
    return any(
        words and words[0] == "GPU0" and len(words) > 1 and all(_CELL.match(word) for word in words[1:2])
        for words in lines
    )


def read_topology(text: str) -> list[LogFact]:
    """One fact: each pair of GPUs with its distance, NICs left out; the CPU affinity by GPU."""
    names: list[str] = []
    pairs: list[tuple[str, Value]] = []
    for line in text.split("\n"):
        words = line.replace("\x1b[4m", "").replace("\x1b[0m", "").split()
        if not names and words[:1] == ["GPU0"] and all(not _CELL.match(word) for word in words[1:2]):
            names = [word for word in words if re.fullmatch(r"GPU\d+|NIC\d+|mlx\w+", word)]
            continue
        if words and re.fullmatch(r"GPU\d+", words[0]) and names:
            for name, cell in zip(names, words[1:], strict=False):
                if (
                    name.startswith("GPU")
                    and _CELL.match(cell)
                    and cell != "X"
                    and int(name[3:]) > int(words[0][3:])
                ):
                    pairs.append((f"{words[0][3:]}-{name[3:]}", cell))
    gpus = len([name for name in names if name.startswith("GPU")])
    if not gpus:
        return []
    return [LogFact(FactKind.TOPOLOGY, "", name="matrix", fields=(("gpus", gpus), *pairs))]
