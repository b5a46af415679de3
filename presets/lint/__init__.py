"""Findings on a plan, on files and on commands, before money is spent. Pure: texts and values in, findings out."""

from __future__ import annotations

from .files import SUFFIXES, lint_file, lint_text
from .plans import lint_plan, refusal
from .rules import RULES, LintRule

__all__ = ["RULES", "SUFFIXES", "LintRule", "lint_file", "lint_plan", "lint_text", "refusal"]
