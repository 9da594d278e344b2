"""The entry point `megatrace`: finds the verb, runs it, and is the only place that prints errors and exits.

The group below is lazy: a verb's module is imported when that verb is asked for, so that `megatrace version`
on a training node does not pay for pyarrow. The help of the group is laid out here and not by typer, because
it has to fit a screen of 80 × 24 with the examples first.
"""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from megatrace import __version__
from megatrace.commands import COMMANDS, DEFAULT_ORDER, Verb
from megatrace.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_CODES,
    EXIT_INTERRUPTED,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    MegatraceError,
    UnknownName,
)
from megatrace.registry import Declaration

PROGRAM = "megatrace"
HELP_WIDTH = 79
"""One less than the narrowest terminal in use, so that no terminal wraps a full line."""
HELP_EXAMPLES = 2
"""As many examples as leave room for the verbs on a screen of 24 lines."""

# Typer exports neither click's base class of parse errors nor says where it lies (it moved from click into
# typer); it does export BadParameter, whose ancestors are UsageError and that base class in every version.
PARSE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


def examples_of(declared: Declaration) -> list[str]:
    """The examples of a verb, whole command lines."""
    return list(cast("Sequence[str]", declared.metadata.get("examples", ())))


def ordered() -> list[Declaration]:
    """The verbs as the help lists them: by `order`, then by name."""

    def key(declared: Declaration) -> tuple[int, str]:
        return cast("int", declared.metadata.get("order", DEFAULT_ORDER)), declared.name

    return sorted(COMMANDS.declarations(), key=key)


def group_help() -> str:
    """The text of `megatrace --help`: examples, verbs, exit codes; at most 24 lines of 79 columns."""
    verbs = ordered()
    width = max(len(verb.name) for verb in verbs)
    lines = ["Says which GPU of a training job hangs or is slow, since when, and why.", ""]
    examples = [line for verb in verbs for line in examples_of(verb)[:1]][:HELP_EXAMPLES]
    lines += [f"  {line}" for line in examples]
    lines += ["", "Commands (megatrace COMMAND --help tells more):"]
    lines += [f"  {verb.name:<{width}}  {verb.summary}" for verb in verbs]
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    lines += [f"Exit codes: {codes}"]
    return "\n".join(_fold(line) for line in lines)


def _fold(line: str) -> str:
    return line if len(line) <= HELP_WIDTH else textwrap.fill(line, HELP_WIDTH, subsequent_indent="  ")


def verb_help(declared: Declaration, verb: Verb) -> str:
    """The text above the options of one verb: what it does, examples, then the rest of its docstring.

    The mark (a line of one backspace character) asks click to keep the lines of the paragraph as they are.
    """
    text = f"{declared.summary[:1].upper()}{declared.summary[1:]}."
    examples = examples_of(declared)
    if examples:
        text += "\n\n\b\n" + "\n".join(f"  {line}" for line in examples)
    rest = inspect.cleandoc(verb.__doc__ or "").partition("\n\n")[2]
    return f"{text}\n\n{rest}" if rest else text


class LazyGroup(TyperGroup):
    """The verbs as a typer group, each imported when asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names in the order of the help."""
        return [declared.name for declared in ordered()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb as a click command, or None where there is none of that name. Raises NotInstalled."""
        if cmd_name not in COMMANDS.names():
            return None
        return build(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does it, but an unknown verb lists the verbs there are."""
        if args and args[0] not in COMMANDS.names():
            raise UnknownName("command", args[0], COMMANDS.names())
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the whole program."""
        formatter.write(group_help() + "\n")


def build(name: str) -> Any:
    """One verb as a click command. Raises UnknownName, NotInstalled."""
    verb = COMMANDS.get(name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, help=verb_help(COMMANDS.declaration(name), verb))(verb)
    return typer.main.get_command(app)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """The program itself; all it does is in its verbs."""


def program() -> Any:
    """The whole program as a click group."""
    app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=False, no_args_is_help=False)(_root)
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; prints what went wrong as one line on stderr."""
    _speak_any_text()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments, os.environ)
        sys.stdout.flush()
    except MegatraceError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # Python flushes stdout once more when it ends, and would complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}", EXIT_UNREADABLE)
    return code


def _run(arguments: list[str], environment: Mapping[str, str]) -> int:
    root = program()
    if f"_{PROGRAM.upper()}_COMPLETE" in environment:
        root.main(args=arguments, prog_name=PROGRAM)  # the shell asks for completions; ends the process
    if not arguments:
        print(group_help())
        return EXIT_USAGE
    try:
        with root.make_context(PROGRAM, arguments) as context:
            returned = root.invoke(context)
    except typer.Exit as done:
        return int(done.exit_code)
    except PARSE_ERROR as error:
        return _fail(_parse_error(error), EXIT_USAGE)
    return int(returned or 0)


def _parse_error(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    message = message.replace(": Value error, ", ": ")  # pydantic's words, not the user's
    return f"{message[:1].lower()}{message[1:]}; see {path} --help"


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _speak_any_text() -> None:
    """A name with odd bytes, or a × on a terminal without it, must not turn a verdict into a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
