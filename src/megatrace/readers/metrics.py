"""Prometheus exposition text: the metrics of GPU and node exporters that say something of health.

DCGM writes a huge number for what a card does not support: that is no value. A GPU with MIG has several
series, one an instance. Metrics of other names are counted and left out.
"""

from __future__ import annotations

import math
import re

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.source import ReadOptions, Source
from megatrace.readers.statements import Statements

MAX_BYTES = 256 << 20
"""A scrape is about 1 MB a node; this is one of a large federation."""
MAX_FACTS = 100_000
"""Samples that are kept: some hundred for each of a thousand GPUs."""
_SAMPLE = re.compile(
    r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+([-+]?(?:[0-9.]+(?:[eE][-+]?\d+)?|NaN|[Ii]nf))(?:\s+-?\d+)?\s*$",
    re.ASCII,
)
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_WANTED = re.compile(
    r"^(?:DCGM_FI_|nvidia_smi_|nvidia_gpu_|node_infiniband_|node_edac_|node_hwmon_temp|up$|node_network_up|node_network_carrier|smartmon_|nvme_)"
)


@registry.register("metrics", summary="Prometheus exposition text (DCGM, nvidia-smi and node exporters)")
class MetricsReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._read = Statements("metrics")

    def refuses(self, head: bytes) -> str | None:
        """HELP or TYPE comments, or nothing but samples."""
        lines = [line.strip() for line in head.decode("utf-8", "replace").split("\n")[:200] if line.strip()]
        if not lines:
            return "empty"
        if any(re.match(r"# (?:HELP|TYPE) [a-zA-Z_:]", line) for line in lines):
            return None
        samples = sum(
            1 for line in lines[:-1] or lines if _SAMPLE.match(line) and ("{" in line or _WANTED.match(line))
        )
        return None if samples >= max(1, 0.8 * (len(lines) - 1)) else "no Prometheus exposition text"

    def add(self, source: Source) -> None:
        """Reads one scrape."""
        text = source.read_whole(self._limit).decode("utf-8", "replace")
        samples = 0
        others: set[str] = set()
        found: list[LogFact] = []
        room = MAX_FACTS - len(self._read.facts)
        for line in text.split("\n"):
            match = _SAMPLE.match(line.strip()) if line[:1] != "#" else None
            if match is None:
                continue
            samples += 1
            if not _WANTED.match(match[1]) or len(found) >= room:
                others.add(match[1])
                continue
            labels = dict(_LABEL.findall(match[2] or ""))
            found.append(_fact(match[1], labels, match[3]))
        if not samples:
            self._read.notes.append(f"{source.name} was not read: it holds no sample.")
            return
        shape = f"exposition: {samples:,} samples, {len(others):,} other names ignored"
        self._read.take(source.name, found, shape=shape, lines=0, stated=len(found))

    def finish(self) -> Trace:
        """A Trace of facts. Raises TraceError where there was no sample."""
        return self._read.trace(" ".join(self._read.notes) or "no sample was read")


def _fact(name: str, labels: dict[str, str], said: str) -> LogFact:
    number = (
        float(said)
        if said.lower().lstrip("+-") not in ("nan", "inf") and said.count(".") < 2 and said.strip("+-.")
        else math.nan
    )
    node = labels.get("Hostname") or labels.get("hostname") or labels.get("instance") or labels.get("node")
    device = labels.get("gpu") or labels.get("device") or labels.get("uuid") or labels.get("UUID")
    fields: list[tuple[str, Value]] = [("value", number), ("raw", said)]
    fields += [
        (key, labels[key])
        for key in ("UUID", "uuid", "GPU_I_ID", "GPU_I_PROFILE", "modelName", "device", "port", "job", "gpu")
        if key in labels
    ]
    return LogFact(FactKind.METRIC, name, name=name, node=node, device=device, fields=tuple(fields))
