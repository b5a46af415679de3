"""Findings on a plan, or on files, before money is spent. Pure: texts and values in, findings out."""

from __future__ import annotations

from .plans import lint_plan, refusal
from .rules import RULES, Rule

__all__ = ["RULES", "Rule", "lint_plan", "refusal"]
