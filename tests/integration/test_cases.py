"""The handed cases: verdicts, accusations and what the reports must hold (``benchmarks.cases``)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.cases import LEAST, RULES, score

CASES = yaml.safe_load(RULES.read_text(encoding="utf-8"))


@pytest.mark.shared
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_case_says_what_it_must_and_nothing_that_it_must_not(shared_dir: Path, case: str) -> None:
    scored = score(case, CASES[case], shared_dir / "cases" / case)
    assert scored.forbidden == ()
    assert scored.wrong == ()
    assert scored.asked - len(scored.missing) >= LEAST * scored.asked, scored.missing


def test_a_rule_that_is_broken_is_found(tmp_path: Path) -> None:
    (tmp_path / "dmesg.log").write_text(
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", encoding="utf-8"
    )
    rule = {
        "verdict": ["healthy"],
        "must": ["Xid 79", "moon"],
        "never": ["fallen"],
        "kinds_never": ["hardware"],
        "ranks": [3],
    }
    scored = score("X", rule, tmp_path)
    assert (scored.missing, scored.forbidden) == (("moon",), ("fallen",))
    assert scored.wrong == ("verdict failed", "kind hardware", "culprit ranks []")
