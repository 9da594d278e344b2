"""`megatrace template`: what every machine of a type should look like; learned, compared, tried in shadow.

Writes a file only where told. A learned template is a proposal: nothing uses it until a person puts it where
``megatrace inspect --template`` finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from megatrace.bot.catalogue import select
from megatrace.bot.comparison import compare
from megatrace.bot.facts import Facts, collect
from megatrace.bot.inspecting import catalogue
from megatrace.bot.live_system import LiveSystem
from megatrace.bot.look import Look
from megatrace.bot.recorded_system import RecordedSystem
from megatrace.bot.recording import read_recording
from megatrace.bot.shadow import evaluate
from megatrace.bot.templates import HELD_ABOVE, LEAST_NODES, MAJORITY, as_yaml, learn, load, names
from megatrace.commands import command
from megatrace.errors import EXIT_FAULT_FOUND, UsageError
from megatrace.model.system import System


class Action(str, Enum):
    """What is done."""

    facts = "facts"
    learn = "learn"
    diff = "diff"
    shadow = "shadow"
    show = "show"


@command(
    "template",
    summary="says what machines of a type should look like, and which do not",
    examples=[
        "megatrace template learn node*.tar.gz --out ours.yaml",
        "megatrace template diff node188.tar.gz --template ours.yaml",
        "megatrace template shadow node*.tar.gz --template new.yaml --against ours.yaml",
        "megatrace template show --template h100-sxm",
    ],
    order=14,
)
def template(
    action: Annotated[
        Action,
        typer.Argument(
            help="facts of a machine; learn a template from recorded machines; diff: how a machine differs; "
            "shadow: whose verdict a new template would change; show one with what it inherits."
        ),
    ],
    bundles: Annotated[
        list[Path] | None,
        typer.Argument(help="Recorded machines (megatrace inspect --record); without: this machine."),
    ] = None,
    name: Annotated[
        str, typer.Option("--template", help="A template: a file, or the name of one that comes along.")
    ] = "",
    against: Annotated[str, typer.Option(help="With shadow: the template in force; without: none is.")] = "",
    out: Annotated[Path | None, typer.Option(help="With learn and shadow: write the template here.")] = None,
    majority: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="With learn: share of machines that must agree.")
    ] = MAJORITY,
    approve: Annotated[
        str, typer.Option(help="With shadow: who looked at the changes and lets the template pass.")
    ] = "",
) -> int:
    """Works on templates of machine types.

    diff ends with 10 where a machine differs, shadow with 10 where the new template is held: it would change
    the verdict of more than 2 % of the machines.
    """
    paths = bundles or []
    if action is Action.show:
        return _show(name)
    if action is Action.learn:
        return _learn(paths, majority, out)
    if action is Action.shadow:
        return _shadow(paths, name, against, out, approve)
    machines: list[System] = [RecordedSystem(read_recording(path)) for path in paths]
    machines = machines or [LiveSystem()]
    if action is Action.facts:
        for machine in machines:
            facts = _facts(machine)
            print(yaml.safe_dump({machine.name: facts.known | _unknown(facts)}, allow_unicode=True), end="")
        return 0
    if not name:
        raise UsageError(f"name the template: --template FILE, or one of {', '.join(names())}")
    return _diff(machines, load(name))


def _facts(system: System) -> Facts:
    info = select(catalogue(), names=("CFG-01",))[0]
    return collect(Look(info, system, system.now()))


def _unknown(facts: Facts) -> dict[str, str]:
    return {f"{family}.*": f"unknown: {reason}" for family, reason in facts.unknown.items()}


def _show(name: str) -> int:
    if not name:
        for known in names():
            print(f"{known:<12}{load(known).get('about', '')}")
        return 0
    flat = {key: value for key, value in load(name).items() if not isinstance(value, Mapping)}
    width = max(map(len, flat), default=0)
    for key, value in sorted(flat.items()):
        print(f"{key:<{width}}  {value}")
    return 0


def _learn(paths: list[Path], majority: float, out: Path | None) -> int:
    if len(paths) < LEAST_NODES:
        raise UsageError(f"{len(paths)} machines make no majority: record {LEAST_NODES} or more")
    machines = [RecordedSystem(read_recording(path)) for path in paths]
    learned, left = learn([_facts(machine) for machine in machines], majority)
    about = f"Proposed by {majority:.0%} of {len(machines)} machines; to be reviewed before it is used."
    text = as_yaml(learned, out.stem if out is not None else "learned", about)
    if out is None:
        print(text, end="")
    else:
        _write(out, text)
    print(f"{len(learned)} keys learned, {len(left)} left out:", file=sys.stderr)
    for key, why in sorted(left.items()):
        print(f"  {key}: {why}", file=sys.stderr)
    return 0


def _diff(machines: list[System], template_: Mapping[str, object]) -> int:
    differ = 0
    for machine in machines:
        found = compare(template_, _facts(machine))
        differ += bool(found)
        print(f"{machine.name}: {'as its template says' if not found else f'{len(found)} differences'}")
        for item in found:
            print(f"  {item.kind.value:<8} {item}")
    return EXIT_FAULT_FOUND if differ else 0


def _shadow(paths: list[Path], name: str, against: str, out: Path | None, approve: str) -> int:
    if not name or not paths:
        raise UsageError("shadow needs --template NEW and recorded machines to try it on")
    new, old = load(name), load(against) if against else {}
    found = evaluate((read_recording(path) for path in paths), new, old)
    for item in found.changed:
        print(f"{item.node}")
        for words, mark in ((item.new, "+"), (item.gone, "-")):
            for word in words:
                print(f"  {mark} {word}")
    said = f"{len(found.changed)} of {found.machines} machines change their verdict ({found.share:.1%})"
    if found.held and not approve:
        print(f"HELD  {said}, more than {HELD_ABOVE:.0%}: look at them, then pass it with --approve NAME")
        return EXIT_FAULT_FOUND
    print(f"PASSED  {said}" + (f"; approved by {approve}" if found.held else ""))
    if out is not None:
        leaves = {key: value for key, value in new.items() if not isinstance(value, Mapping)}
        about = f"{said} when it was tried" + (f"; approved by {approve}" if found.held else "")
        _write(out, as_yaml({key: leaves[key] for key in leaves if "." in key}, out.stem, about))
    return 0


def _write(out: Path, text: str) -> None:
    if out.exists():
        raise UsageError(f"{out} is there already: name a new file")
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    print(f"wrote {out}", file=sys.stderr)
