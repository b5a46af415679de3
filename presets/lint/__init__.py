"""Findings on a plan, on files and on commands, before money is spent. Pure: texts and values in, findings out."""

from __future__ import annotations

from .files import SUFFIXES, lint_file, lint_text
from .lint_rules import RULES, LintRule
from .plans import lint_plan, refusal

__all__ = ["RULES", "SUFFIXES", "LintRule", "lint_file", "lint_plan", "lint_text", "refusal"]
