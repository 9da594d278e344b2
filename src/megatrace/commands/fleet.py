"""The part of `megatrace inspect --nodes` that asks other machines and lays out what they say together."""

from __future__ import annotations

import os
import re
import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from megatrace import __version__
from megatrace.bot.fleet import ask_all, command
from megatrace.clock import SystemClock
from megatrace.collect.run_settings import expanded
from megatrace.commands import output
from megatrace.errors import ConfigError, UsageError
from megatrace.model.fleet import Fleet, together
from megatrace.model.inventory import Inventory, from_slurm_topology, from_table
from megatrace.reports import ReportOptions
from megatrace.reports import fleet as report

MAX_INVENTORY = 8 << 20


class Over(str, Enum):
    """How other machines are reached."""

    ssh = "ssh"
    srun = "srun"


def look_at(
    nodes: str,
    over: Over,
    program: str,
    checks: list[str],
    inventory: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Asks the machines, prints what they say together; returns the exit code."""
    names = list(dict.fromkeys(expanded(nodes)))
    if not names:
        raise UsageError("--nodes names no machine: write node[001-128] or node1,node2")
    wanted = [word for name in checks for word in ("--check", name)]
    words = [*shlex.split(program), "inspect", "--format", "json", *wanted]
    known = read_inventory(inventory) if inventory is not None else Inventory()
    progress = _progress if sys.stderr.isatty() else None
    asked = ask_all({name: command(name, over.value, words) for name in names}, progress)
    if progress is not None:
        print(file=sys.stderr)
    return show(together(asked, known), as_json, verbose)


def show(found: Fleet, as_json: bool, verbose: bool) -> int:
    """Prints it; returns the exit code."""
    if as_json:
        sys.stdout.write(report.as_json(found, __version__))
    else:
        options = ReportOptions(verbose=verbose, generated_at=SystemClock().now())
        sys.stdout.write(report.render(found, output.options_for(sys.stdout, options, os.environ)))
    return found.exit_code


def _progress(done: int, of: int) -> None:
    print(f"\r{done:,} of {of:,} machines", end="", file=sys.stderr, flush=True)


def read_inventory(path: Path) -> Inventory:
    """YAML {machine: {rack: …, leaf: …}}, machines in Slurm's short form too, or what ``scontrol show
    topology`` prints. Raises UsageError, ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_INVENTORY).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"the inventory {path} cannot be read: {error.strerror}") from None
    if "SwitchName=" in text:
        forms = set(re.findall(r"\bNodes=(\S+)", text))
        return from_slurm_topology(text, {form: list(expanded(form)) for form in forms})
    try:
        table: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            "the inventory", " ".join(str(error).split())[:80], "YAML", path=str(path)
        ) from None
    if not isinstance(table, dict):
        raise ConfigError("the inventory", table, "{machine: {rack: …, leaf: …}}", path=str(path))
    return from_table({name: kinds for form, kinds in table.items() for name in expanded(str(form))})
