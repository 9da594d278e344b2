"""Outputs of tools that an operator runs on a node: nvidia-smi, ibstat, perfquery, lspci, smartctl.

Each kind of output has a file of its own beside this one (``tool_*.py``) that knows it by its text and turns
it into facts: one a GPU, a port, a disk. A saved output may begin with a comment or with the command line.

Does not judge, and does not run the tools: ``collect`` and the health checks do.
"""

from __future__ import annotations

from collections.abc import Callable

from megatrace.model.series import LogFact
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.source import ReadOptions, Source
from megatrace.readers.statements import Statements
from megatrace.readers.tool_disk import is_smart, read_smart
from megatrace.readers.tool_links import is_nvlink, is_topology, read_nvlink, read_topology
from megatrace.readers.tool_pci import is_lspci, read_lspci
from megatrace.readers.tool_ports import is_perfquery, is_ports, read_perfquery, read_ports
from megatrace.readers.tool_query import is_query, read_query
from megatrace.readers.tool_table import is_table, read_table

MAX_BYTES = 64 << 20
"""Of one output: nvidia-smi -q of sixteen GPUs is 300 KB."""

Kind = tuple[str, Callable[[str], bool], Callable[[str], list[LogFact]]]
KINDS: tuple[Kind, ...] = (
    ("nvidia-smi nvlink", is_nvlink, read_nvlink),
    ("nvidia-smi topo -m", is_topology, read_topology),
    ("nvidia-smi -q", is_query, read_query),
    ("smartctl", is_smart, read_smart),
    ("ibstat", is_ports, read_ports),
    ("perfquery", is_perfquery, read_perfquery),
    ("lspci", is_lspci, read_lspci),
    ("nvidia-smi", is_table, read_table),
)


def kind_of(text: str) -> Kind | None:
    """The kind of output that a text begins like."""
    return next((kind for kind in KINDS if kind[1](text)), None)


@registry.register("tool", summary="outputs of nvidia-smi, nvlink, topo, ibstat, perfquery, lspci, smartctl")
class ToolReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._read = Statements("tool")

    def refuses(self, head: bytes) -> str | None:
        """Whether one of the kinds knows it."""
        if kind_of(head.decode("utf-8-sig", "replace")) is not None:
            return None
        return "no output of nvidia-smi, ibstat, perfquery, lspci or smartctl"

    def add(self, source: Source) -> None:
        """Reads one output whole."""
        data = source.read_whole(self._limit)
        text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
        kind = kind_of(text)
        if kind is None:
            self._read.notes.append(f"{source.name} was not read: it {source.damage or 'is cut'}.")
            return
        try:
            found = kind[2](text)
        except (ValueError, RecursionError) as error:
            self._read.notes.append(f"{source.name} was not read: it is damaged ({error}).")
            return
        lines = text.count("\n") + 1
        self._read.take(source.name, found, shape=f"output of {kind[0]}", lines=lines, stated=len(found))

    def finish(self) -> Trace:
        """A Trace of facts. Raises TraceError where no output could be read."""
        return self._read.trace(" ".join(self._read.notes) or "no output of a tool was read")
