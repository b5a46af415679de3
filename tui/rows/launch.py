"""The plan of the launch form as rows."""

from __future__ import annotations

from ..follow import Preview
from . import glyphs
from .cells import Row


def plan_rows(preview: Preview) -> list[Row]:
    """Problems first, then the plan, verbatim."""
    rows: list[Row] = [((f" {glyphs.BAD} ", "bad"), (problem, "text")) for problem in preview.problems]
    if preview.problems and preview.text:
        rows.append(())
    for line in preview.text.splitlines():
        rows.append(((f" {line}", "dim" if line.lstrip().startswith("#") else "text"),))
    return rows
