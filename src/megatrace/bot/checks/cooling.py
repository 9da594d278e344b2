"""Air and liquid that keep a node cool."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatrace.bot.board import Health, Part, sensors
from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem
from megatrace.model.check import Step
from megatrace.model.finding import Severity

INLET_C = 32.0
"""°C: ASHRAE's recommended range ends at 27; at 32 air-cooled eight-GPU boards begin to slow down under
load."""
INLET = re.compile(r"inlet|intake|ambient", re.IGNORECASE)


@check(
    "BMC-04",
    summary="leaks, and air that comes in too warm",
    subject="cooling",
    severity="P0",
    step="A3",
    scope="BMC",
    period_s=600,
    timeout_s=60,
)
def leak_and_inlet(look: Look) -> Iterator[Problem]:
    """Leak detectors, and the temperature of the air at the inlet.

    A leak destroys a tray and its neighbours; warm air slows a whole rack. Source: Redfish leak detectors and
    temperatures, or `ipmitool sdr elist`. Threshold: any detector that is not OK; inlet above 32 °C, where
    boards of eight GPUs begin to slow down (`limits.BMC-04.inlet_c`). Remedy: leak: power the tray off and
    call somebody at once; inlet: look at the rack's neighbours and at the hall before any node."""
    found = [item for item in sensors(look) if item.part in (Part.LEAK, Part.TEMPERATURE)]
    limit = look.limit("inlet_c", INLET_C)
    for sensor in found:
        if sensor.part is Part.LEAK and sensor.health in (Health.WARNING, Health.CRITICAL):
            yield look.fail(
                f"leak detector {sensor.name}: {sensor.said}", device=sensor.name,
                remedy="power the tray off, and call somebody at once",
            )  # fmt: skip
        if INLET.search(sensor.name) and sensor.value is not None and sensor.value > limit:
            yield look.warn(
                f"air comes in at {sensor.value:g} °C ({sensor.name}, limit {limit:g})",
                device=sensor.name,
                severity=Severity.P1,
                step=Step.OBSERVE,
                remedy="look at the rack's neighbours and the hall first",
            )
    look.said = f"{len(found)} temperatures and leak detectors"
