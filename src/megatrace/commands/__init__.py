"""The verbs of the command line, one file each.

A verb is a function whose annotated parameters become its arguments and options (typer). Its file registers
it:

    @command("diagnose", summary="says who hangs or is slow", examples=["megatrace diagnose logs/"])
    def diagnose(paths: Annotated[list[Path], typer.Argument(help="logs, directories or globs")]) -> int:
        ...

It returns the exit code (or None for 0) and raises a `MegatraceError` for what the user should read; it
never prints an error and never exits. Importing a verb's file must be cheap, but need not be free:
`megatrace --help` reads the registrations from the source text and imports nothing. What belongs here:
turning arguments into calls of the packages below, and printing. What does not: anything that another
program would want to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from megatrace.registry import Registry

Verb = Callable[..., "int | None"]
F = TypeVar("F", bound=Verb)

COMMANDS: Registry[Verb] = Registry("command", __name__, decorator="command")

DEFAULT_ORDER = 50
"""Verbs are listed by `order`, then by name; what a newcomer needs first has a small one."""


def command(
    name: str, *, summary: str, examples: Sequence[str], order: int = DEFAULT_ORDER
) -> Callable[[F], F]:
    """Registers a verb. `summary` completes "megatrace NAME …"; `examples` are whole command lines.

    All arguments are literals: they are read without running the module.
    """
    register = COMMANDS.register(name, summary=summary, examples=list(examples), order=order)
    return cast("Callable[[F], F]", register)
