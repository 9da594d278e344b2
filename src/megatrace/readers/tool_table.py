"""The table of ``nvidia-smi`` without options, and the sentences that it prints instead of one, or after it.

The last lines are easily overlooked: warnings about a corrupted InfoROM stand below the table of processes.
"""

from __future__ import annotations

import re

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.readers.log_pattern import value

_FIRST = re.compile(
    r"^\| +(?P<index>\d+) +(?P<name>\S.*?) {2,}(?:On|Off|N/A|\S+) +\| +(?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]) +\S+ +\| +(?P<ecc>\S+) +\|"
)
_SECOND = re.compile(
    r"^\| *(?P<fan>\S+) +(?P<temp>\S+?)C? +(?P<perf>P\d+|\S+) +(?P<power>\S+?)W? */ *(?P<limit>\S+?)W? +\|"
)
_MESSAGES = (
    (
        "inforom",
        re.compile(r"WARNING: infoROM is corrupted at gpu (?P<device>[0-9A-Fa-f:.]+)", re.IGNORECASE),
    ),
    (
        "lost",
        re.compile(
            r"Unable to determine the device handle for (?:gpu|GPU) ?(?:\d{1,2}: ?)?(?P<device>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+): (?P<detail>.*)"
        ),
    ),
    ("lost", re.compile(r"(?P<detail>GPU is lost.*|.*reboot the system to recover this GPU.*)")),
    ("mismatch", re.compile(r"(?P<detail>Driver/library version mismatch.*)")),
    ("no_driver", re.compile(r"(?P<detail>couldn't communicate with the NVIDIA driver.*)")),
    ("no_devices", re.compile(r"(?P<detail>No devices were found.*)")),
    ("unknown_error", re.compile(r"(?P<detail>(?:Unable to determine|Failed to initialize NVML).*)")),
)


def is_table(text: str) -> bool:
    """The frame of the table, or one of the sentences at the beginning."""
    head = text[:20_000]
    return "| NVIDIA-SMI" in head or any(form.search(head[:2_000]) for _, form in _MESSAGES)


def read_table(text: str) -> list[LogFact]:
    """One fact a GPU of the table, one a sentence."""
    facts: list[LogFact] = []
    for line in text.split("\n"):
        first = _FIRST.match(line)
        if first is not None:
            fields: list[tuple[str, Value]] = [
                ("bus", first["bus"]),
                ("index", int(first["index"])),
                ("product", first["name"]),
                ("ecc", value(first["ecc"])),
            ]
            facts.append(
                LogFact(
                    FactKind.GPU_STATE,
                    line.strip()[:200],
                    device=first["bus"],
                    name="row",
                    fields=tuple(fields),
                )
            )
            continue
        if "ERR!" in line and facts:
            facts.append(LogFact(FactKind.GPU_STATE, line.strip()[:200], device=facts[-1].device, name="err"))
            continue
        for name, form in _MESSAGES:
            match = form.search(line)
            if match is not None:
                parts = match.groupdict()
                detail = parts.get("detail")
                more: tuple[tuple[str, Value], ...] = (("detail", detail.strip()),) if detail else ()
                facts.append(
                    LogFact(
                        FactKind.GPU_STATE,
                        line.strip()[:300],
                        device=parts.get("device"),
                        name=name,
                        fields=more,
                    )
                )
                break
    return facts
