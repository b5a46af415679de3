"""docs/lint.md against the rules, and the rules against their tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import test_lint_files
import test_lint_launch_files
import test_lint_plans
import test_lint_script
import test_lint_shell

from distui.presets.lint import rules
from distui.presets.lint.lint_rules import issue

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"\| (L\d+) \| ([a-z, ]+) \| .+ \|")


def test_the_documentation_lists_every_rule() -> None:
    rows = map(ROW.fullmatch, (ROOT / "docs/lint.md").read_text("utf-8").splitlines())
    listed = [row.groups() for row in rows if row]
    assert listed == [(one.id, ", ".join(one.severities)) for one in rules().values()]


def test_the_ids_are_in_order() -> None:
    assert list(rules()) == sorted(rules(), key=lambda id: int(id.removeprefix("L")))
    assert all(one.repair.endswith(".") for one in rules().values())


def test_every_rule_has_a_case() -> None:
    refused = {"L8", "L17", "L18", "L19", "L39", "L46", "L54", "L71"}  # by tests of their own
    cases = {one[0] for one in test_lint_plans.CASES} | {one[0] for one in test_lint_script.CASES}
    cases |= {one[0] for one in test_lint_shell.CASES} | {one[0] for one in test_lint_shell.ON_NODES}
    cases |= {one[0] for one in test_lint_files.CASES}
    cases |= {one[0] for one in [*test_lint_launch_files.SLURM, *test_lint_launch_files.EDITS]}
    assert cases | refused == set(rules())


def test_a_finding_has_one_of_its_rules_severities() -> None:
    assert issue("L2", "x", "y", severity="warning").severity == "warning"
    with pytest.raises(ValueError, match="L1 is never note"):
        issue("L1", "x", "y", severity="note")
