"""`megatrace inspect --specimen KIND[:FAULT]`: a made machine in place of this one, to practise on and to
write bundles of.

Is no verb of its own. The machines and their faults are ``bot.specimens``.
"""

from __future__ import annotations

from random import Random

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.check_runner import Switches
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import inspect_recording
from megatrace.bot.recorded_system import Recording
from megatrace.bot.specimens.faults import every, find
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.kinds import KINDS
from megatrace.bot.specimens.machine import machine
from megatrace.errors import UsageError
from megatrace.model.check import Inspection


def inspect_specimen(
    name: str, wanted: tuple[CheckInfo, ...], switches: Switches
) -> tuple[Inspection, Recording]:
    """What the checks say of it, and the recording. Raises UnknownName, UsageError.

    A fault happens after a first look at the healthy machine, and is looked at as often as it needs.
    """
    kind, _, fault_name = name.partition(":")
    made = machine(kind)
    counters = Counters()
    if not fault_name:
        recording = written(made)
        return inspect_recording(recording, wanted, switches=switches), recording
    fault = find(fault_name)
    if kind not in fault.kinds:
        raise UsageError(f"{fault_name} does not happen to {kind}; it does to {', '.join(fault.kinds)}")
    if fault.job:
        made.job()
    inspect_recording(written(made), wanted, switches=switches, counters=counters)
    fault.apply(made, Random(name))
    state: dict[str, object] = {}
    for seconds in fault.looks:
        made.later(seconds)
        recording = written(made)
        state = Counters(counters.state()).state()
        found = inspect_recording(
            recording, wanted, switches=switches, counters=counters, template=fault.template
        )
    recording.counters = state
    return found, recording


def listing() -> str:
    """Every type and every fault, for a terminal."""
    faults = every()
    lines = ["types of machines:", *(f"  {kind.name:<12} {kind.about}" for kind in KINDS.values()), "faults:"]
    lines += [
        f"  {item.name:<24} {item.check:<7} {item.about}"
        + ("" if len(item.kinds) >= len(KINDS) - 1 else f" ({', '.join(item.kinds)})")
        for item in sorted(faults, key=lambda item: (item.check, item.name))
    ]
    return "\n".join(lines) + "\n"
