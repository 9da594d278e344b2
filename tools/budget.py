"""The budgets of the house: sizes, names, and nothing of one machine in tracked files.

A file is read whole by whoever changes it, and a function is held in the head; hence the limits. Prints one
line per breach and ends with 1 if there is any; a warning alone does not fail. Looks only at files that git
tracks or would track, so build folders do not count.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_WARN = 400
FILE_FAIL = 700
FUNCTION_P95 = 50
FUNCTION_FAIL = 90
MIN_FUNCTIONS = 20
"""With fewer functions than this the 95th percentile is the longest one, which has a limit of its own."""
SIZED = {".py", ".h", ".c", ".cc", ".cpp", ".js", ".css", ".sh"}
BANNED = {"utils", "util", "common", "helpers", "helper", "manager", "core", "misc"}
"""Names that say nothing of what is inside, so that everything ends up there."""

# Put together, so that this file does not hold what it looks for.
_FOLDERS = "|".join(["work", "root", "farm"])
_HOSTS = "|".join(
    [r"files\.python" + "hosted", r"registry\.npm" + "js", "deb\\." + "debian", r"pypi" + r"\.org/simple"]
)
OF_ONE_MACHINE = re.compile(rf"(?<![\w.*$}}])/(?:{_FOLDERS})/|(?:{_HOSTS})")


@dataclass(frozen=True, slots=True)
class Breach:
    """One line of the report; `fatal` fails the build."""

    where: str
    text: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{'error' if self.fatal else 'warning'}: {self.where}: {self.text}"


def tracked(root: Path) -> list[Path]:
    """The files that git tracks or would track, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout
    names = [Path(name) for name in listed.decode("utf-8", "surrogateescape").split("\0") if name]
    return [name for name in names if (root / name).is_file()]


def function_lengths(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, line and length of every function, from its `def` (without decorators) to its last line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def percentile95(lengths: list[int]) -> int:
    """The length that 95 % of the functions do not exceed."""
    return sorted(lengths)[max(0, -(-len(lengths) * 95 // 100) - 1)] if lengths else 0


def check_size(path: Path, text: str) -> Iterator[Breach]:
    """The length of one file and of each of its functions."""
    lines = text.count("\n")
    if lines > FILE_FAIL:
        yield Breach(
            str(path), f"{lines} lines, the limit is {FILE_FAIL}; split it by what its parts are about"
        )
    elif lines > FILE_WARN:
        yield Breach(str(path), f"{lines} lines, the budget is {FILE_WARN}", fatal=False)
    if path.suffix == ".py":
        for name, line, length in function_lengths(text):
            if length > FUNCTION_FAIL:
                yield Breach(f"{path}:{line}", f"{name} has {length} lines, the limit is {FUNCTION_FAIL}")


def check_name(path: Path) -> Iterator[Breach]:
    """No file or folder with a name that says nothing."""
    for part in path.parts:
        if part.partition(".")[0].lower() in BANNED:
            yield Breach(str(path), f"{part} says nothing of what is inside; name it after that")


def check_machine(path: Path, text: str) -> Iterator[Breach]:
    """Nothing that is true on one machine only."""
    for number, line in enumerate(text.splitlines(), 1):
        match = OF_ONE_MACHINE.search(line)
        if match:
            yield Breach(
                f"{path}:{number}", f"{match[0]!r} is a path of one machine or the host of a registry"
            )


def check(root: Path) -> list[Breach]:
    """All breaches in the tree under `root`."""
    breaches: list[Breach] = []
    lengths: list[int] = []
    for path in tracked(root):
        breaches.extend(check_name(path))
        try:
            text = (root / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue  # data
        breaches.extend(check_machine(path, text))
        if path.suffix in SIZED:
            breaches.extend(check_size(path, text))
        if path.suffix == ".py":
            lengths.extend(length for _, _, length in function_lengths(text))
    p95 = percentile95(lengths)
    if len(lengths) >= MIN_FUNCTIONS and p95 > FUNCTION_P95:
        breaches.append(
            Breach("all functions", f"the 95th percentile is {p95} lines, the limit is {FUNCTION_P95}")
        )
    return breaches


def main() -> int:
    """Prints the breaches; 1 if one of them is fatal."""
    breaches = check(Path(__file__).resolve().parent.parent)
    for breach in breaches:
        print(breach, file=sys.stderr)
    return int(any(breach.fatal for breach in breaches))


if __name__ == "__main__":
    sys.exit(main())
