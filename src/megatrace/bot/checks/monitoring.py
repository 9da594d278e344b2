"""Whether the monitoring of this machine still sees its GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.gpus import gpus
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.model.system import Why

EXPORTER = "http://127.0.0.1:9400/metrics"
"""Where dcgm-exporter listens by default."""
_UUID = re.compile(r'^(DCGM_FI_\w+)\{[^}]*\bUUID ?= ?"(GPU-[0-9a-f-]+)"', re.MULTILINE | re.ASCII)


@check(
    "MON-01",
    summary="an exporter that tells nothing, or has lost a GPU",
    subject="monitoring",
    severity="P2",
    step="A1",
    kind="software",
    period_s=300,
    timeout_s=30,
    observe=True,
)
def exporter(look: Look) -> Iterator[Problem]:
    """The GPUs that the local DCGM exporter speaks of, against those that the driver has.

    A GPU of which no metric is told raises no alarm, however sick it is: absence is a fault. The values
    themselves are not judged here: a gauge holds the last Xid for ever, and a level without a time of its
    event never alarms. Source: `curl 127.0.0.1:9400/metrics` (template `monitoring.exporter`), only where
    something listens there. Threshold: a GPU of the driver without any metric; an exporter that does not
    answer within 10 s. Remedy: restart the exporter; look whether DCGM still sees the GPU (`dcgmi discovery
    -l`)."""
    where = str(look.expected("monitoring.exporter") or EXPORTER)
    ran = look.run("curl", "-s", "--max-time", "10", where, timeout_s=15)
    if ran.code == 28 or ran.why is Why.HUNG:
        yield look.warn(
            f"the exporter at {where} does not answer", remedy="restart it; a hung DCGM hangs it, too"
        )
        return
    if not ran.ok:
        raise Skipped("no exporter of GPU metrics listens here")
    told = {uuid for _, uuid in _UUID.findall(ran.output)}
    if not told:
        raise Skipped("no DCGM data in the exporter's metrics")
    seen = gpus(look)
    look.said = f"{len(told)} GPUs are told of"
    for gpu in seen:
        if gpu.uuid and gpu.uuid.lower() not in {uuid.lower() for uuid in told}:
            yield look.warn(
                f"{gpu.name}: the exporter tells no metric of it",
                device=gpu.place,
                evidence=[f"it tells of {len(told)} GPUs, the driver has {len(seen)}"],
                remedy="dcgmi discovery -l; restart the exporter and DCGM's host engine",
            )
