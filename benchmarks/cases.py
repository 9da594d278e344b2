"""Real cases: our verdict, culprits and remedy beside what a perfect tool prints, and how much we print.

Each folder of ``MEGATRACE_SHARED/cases`` holds an input that somebody posted and ``expected.md``.
``cases.yaml`` has the same as expressions: what must stand in the report, what must not, which kinds and
ranks may not be accused. The run fails where a forbidden thing is printed, a verdict is wrong, or less than
``LEAST`` is printed.

    python -m benchmarks.cases [A01 D03 …] [--brief]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from megatrace.commands.pipeline import Declared, diagnose_paths
from megatrace.errors import MegatraceError
from megatrace.model.finding import Diagnosis, Severity
from megatrace.reports.terminal import render

LEAST = 0.9
"""Share of the expressions of all cases that the reports must hold."""
RULES = Path(__file__).with_suffix(".yaml")
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Scored:
    """One case: expressions ``missing`` of those ``asked``, ``forbidden`` ones, other ``wrong`` things."""

    case: str
    diagnosis: Diagnosis | None
    text: str
    asked: int
    missing: tuple[str, ...]
    forbidden: tuple[str, ...]
    wrong: tuple[str, ...]


def score(case: str, rule: dict[str, Any], folder: Path) -> Scored:
    """Diagnoses one case and holds the report against its rule."""
    paths = sorted(path for path in folder.iterdir() if path.name != "expected.md")
    must = [str(item) for item in rule.get("must", [])]
    try:
        diagnosis = diagnose_paths(paths, Declared())
    except MegatraceError as error:
        return Scored(case, None, str(error), len(must), tuple(must), (), (f"refused: {error}",))
    # Paths would satisfy expressions that are meant for the words of the report.
    text = " ".join(render(diagnosis, width=400, verbose=True).split()).replace(str(folder), "")
    found = [item for item in must if re.search(item, text, re.IGNORECASE)]
    never = [str(item) for item in rule.get("never", []) if re.search(str(item), text, re.IGNORECASE)]
    missing = tuple(item for item in must if item not in found)
    return Scored(case, diagnosis, text, len(must), missing, tuple(never), tuple(_wrong(rule, diagnosis)))


def _wrong(rule: dict[str, Any], diagnosis: Diagnosis) -> list[str]:
    serious = [item for item in diagnosis.findings if item.severity <= Severity.P2]
    ranks = sorted({rank for item in serious for rank in item.culprits.ranks})
    wrong = []
    if diagnosis.verdict.value not in rule.get("verdict", [diagnosis.verdict.value]):
        wrong.append(f"verdict {diagnosis.verdict.value}")
    wrong += [f"kind {item.kind.value}" for item in serious if item.kind.value in rule.get("kinds_never", [])]
    if "ranks" in rule and ranks != rule["ranks"]:
        wrong.append(f"culprit ranks {ranks}")
    return wrong + [f"accuses rank {rank}" for rank in ranks if rank in rule.get("ranks_never", [])]


def shown(scored: Scored, expected: str) -> str:
    """One case for the eye: ours first, then what a perfect tool prints."""
    lines = [f"===== {scored.case}"]
    if scored.diagnosis is not None:
        diagnosis = scored.diagnosis
        lines.append(f"ours      {diagnosis.verdict.value.upper()}: {diagnosis.headline}")
        for finding in diagnosis.findings[:4]:
            who = finding.culprits
            names = [*map(str, who.ranks), *who.nodes, *(str(device.device) for device in who.devices)]
            lines.append(
                f"  {finding.severity.name} {finding.kind.value} culprits: {', '.join(names) or 'nobody'}"
            )
            lines.append(f"     remedy: {finding.remedy}")
    else:
        lines.append(f"ours      {scored.text}")
    lines += [f"expected  {line}" for line in expected.splitlines() if line.startswith(("- ", "## "))]
    lines.append(f"score     {scored.asked - len(scored.missing)} of {scored.asked}")
    lines += [f"  MISSING   {item}" for item in scored.missing]
    lines += [f"  FORBIDDEN {item}" for item in (*scored.forbidden, *scored.wrong)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all is as it should be, else 1; 2 without the handed inputs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="names of cases, all without")
    parser.add_argument("--brief", action="store_true", help="only what is missing or forbidden")
    given = parser.parse_args(arguments)
    shared = Path(os.environ.get("MEGATRACE_SHARED") or ROOT.parent / "shared") / "cases"
    if not shared.is_dir():
        print(f"no cases at {shared} (set MEGATRACE_SHARED)", file=sys.stderr)
        return 2
    rules: dict[str, dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    names = given.cases or sorted(path.name for path in shared.iterdir() if path.is_dir())
    asked = missing = broken = 0
    for name in names:
        scored = score(name, rules.get(name, {}), shared / name)
        asked, missing = asked + scored.asked, missing + len(scored.missing)
        broken += len(scored.forbidden) + len(scored.wrong)
        expected = (shared / name / "expected.md").read_text(encoding="utf-8")
        if not given.brief or scored.missing or scored.forbidden or scored.wrong:
            text = shown(scored, "" if given.brief else expected)
            print(text)
    share = 1 - missing / max(asked, 1)
    printed = f"{asked - missing} of {asked} expressions printed ({100 * share:.1f} %)"
    print(f"\n{len(names)} cases: {printed}, {broken} broken rules")
    return 0 if share >= LEAST and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
