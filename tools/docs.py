"""Writes the reference pages that follow from the code, or (`--check`) says which ones no longer do.

A page is generated where the code already states the truth: commands and their options, catalogues of
plug-ins, exit codes, the schema of the verdict, results of benchmarks. All else under docs/ is written by
hand. Pages are made from registrations, so a new plug-in needs no edit here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import pkgutil
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import megatrace
from megatrace.bot.checks import CHECKS
from megatrace.collect.jobconfig import reference_page
from megatrace.commands.main import build, examples_of, group_help, ordered
from megatrace.errors import EXIT_CODES
from megatrace.registry import Registry
from megatrace.reports.inspection_schema import schema as inspection_schema
from megatrace.reports.schema import schema
from megatrace.simulator import reference as scenarios
from tools.check_pages import checks_page
from tools.measured import accuracy_page, coverage_page, rivals_page, speed_page

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "src" / "megatrace"
RESULTS = ROOT / "benchmarks" / "results"
MODULES = """\
What each module says of itself first; the rest (why it is so, what it does not do) stands at the top of the
file. How they belong together: [ARCHITECTURE.md](../../ARCHITECTURE.md).
"""
HEAD = "<!-- Made from the code by `make docs`; do not edit. -->\n"


def catalogues() -> Iterator[Registry[Any]]:
    """Every catalogue of the package, found where they stand: in the `__init__` of a folder."""
    for info in pkgutil.iter_modules(megatrace.__path__, "megatrace."):
        spec = importlib.util.find_spec(info.name) if info.ispkg else None
        if spec is not None and spec.origin and "Registry" in Path(spec.origin).read_text("utf-8"):
            values = vars(importlib.import_module(info.name)).values()
            yield from (
                value for value in values if isinstance(value, Registry) and value.package == info.name
            )


def option_row(parameter: Any) -> str:
    """One row for one argument or option. Not typer's own rendering: that changes from release to release."""
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}{'…' if parameter.nargs == -1 else ''}`"
    else:
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if isinstance(default, Enum):
        default = default.value  # what one types; Python versions differ in how they print the member
    known = isinstance(default, str | int | float) and not isinstance(default, bool)
    text = (getattr(parameter, "help", None) or "").strip().rstrip(".").replace("|", "\\|")
    return f"| {names} | {text}{f' (default {default})' if known else ''} |"


def commands_page() -> str:
    """Every verb with its examples and options."""
    parts = [HEAD, "# Commands\n", f"```text\n$ megatrace --help\n{group_help()}\n```\n"]
    for declared in ordered():
        rows = [option_row(parameter) for parameter in build(declared.name).params]
        table = "\n".join(["| argument or option | meaning |", "|---|---|", *rows]) if rows else "No options."
        examples = "\n".join(examples_of(declared))
        summary = f"{declared.summary[:1].upper()}{declared.summary[1:]}."
        parts.append(f"## megatrace {declared.name}\n\n{summary}\n\n```sh\n{examples}\n```\n\n{table}\n")
    return "\n".join(parts)


def exit_codes_page() -> str:
    """The exit codes, as `main()` gives them."""
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    return f"{HEAD}\n# Exit codes\n\n| code | meaning |\n|---|---|\n{rows}\n"


def catalogue_page(registry: Registry[Any]) -> str:
    """One table of one catalogue."""
    rows = "\n".join(f"| `{entry.name}` | {entry.summary} |" for entry in registry.declarations())
    title = f"{registry.kind[:1].upper()}{registry.kind[1:]}s"
    return f"{HEAD}\n# {title}\n\n| name | what it is |\n|---|---|\n{rows}\n"


def modules_page() -> str:
    """Every module with the first paragraph of its docstring, by package."""
    parts = [HEAD, "# Modules\n", MODULES]
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        rows = [
            f"| `{path.stem}` | {said} |"
            for path in sorted(folder.glob("*.py"))
            if path.stem != "__init__" and (said := _first_paragraph(path))
        ]
        name = ".".join(("megatrace", *folder.relative_to(PACKAGE).parts))
        about = _first_paragraph(folder / "__init__.py")
        parts.append(f"## {name}\n\n{about}\n\n| module | what it is |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _first_paragraph(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def pages() -> dict[str, str]:
    """File name under docs/reference → text."""
    made = {"commands.md": commands_page(), "exit-codes.md": exit_codes_page()}
    made["checks.md"] = f"{HEAD}\n{checks_page(CHECKS)}"
    for registry in catalogues():
        made.setdefault(f"{registry.kind}s.md", catalogue_page(registry))
    made["scenario.md"] = f"{HEAD}\n{scenarios.reference_page()}"
    made["accuracy.md"] = f"{HEAD}\n{accuracy_page(RESULTS)}"
    made["coverage.md"] = f"{HEAD}\n{coverage_page(RESULTS)}"
    made["rivals.md"] = f"{HEAD}\n{rivals_page(RESULTS)}"
    made["speed.md"] = f"{HEAD}\n{speed_page(RESULTS)}"
    made["modules.md"] = modules_page()
    made["job-yaml.md"] = f"{HEAD}\n{reference_page()}"
    made["inspection.schema.json"] = json.dumps(inspection_schema(), indent=2, ensure_ascii=False) + "\n"
    made["diagnosis.schema.json"] = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    return made


def stale() -> list[str]:
    """The pages that are missing or differ from what the code says."""
    return [name for name, text in sorted(pages().items()) if not _agrees(REFERENCE / name, text)]


def _agrees(path: Path, wanted: str) -> bool:
    if not path.is_file():
        return False
    found = path.read_text("utf-8")
    return found == wanted or (path.suffix == ".json" and json.loads(found) == json.loads(wanted))


def main() -> int:
    """Writes the pages, or with --check lists the stale ones and ends with 1 if there are any."""
    if "--check" in sys.argv[1:]:
        for name in stale():
            print(f"error: docs/reference/{name} does not follow the code; run make docs", file=sys.stderr)
        return int(bool(stale()))
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
