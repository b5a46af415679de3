"""Check plans, files and commands before a launch costs money. Pure: texts and values in, findings out."""

from .files import SUFFIXES, lint_command, lint_file, lint_task
from .lint_rules import LintRule, rules
from .plans import lint_plan, refusal

__all__ = [
    "SUFFIXES",
    "LintRule",
    "lint_command",
    "lint_file",
    "lint_plan",
    "lint_task",
    "refusal",
    "rules",
]
