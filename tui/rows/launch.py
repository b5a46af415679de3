"""The plan of the launch form, the SkyPilot task and the findings of the check, as rows. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..follow import Preview
from . import glyphs
from .cells import Cell, Row, wrap

if TYPE_CHECKING:
    from ...presets.finding import Finding

SEVERITY: dict[str, Cell] = {
    "error": (glyphs.BAD, "bad"),
    "warning": (glyphs.WARN, "warn"),
    "note": (glyphs.STALE, "stale"),
}
"""Glyph and style of a finding."""

_KEYS = (
    ("Enter", "start, asks first", "start"), ("tab", "next pane", "next"), ("/", "search", "search"),
    ("^g", "guide", "guide"), ("^s", "save", "save"), ("F2-F5", "plan … memory", "panes"), ("esc", "back", "back"),
)  # fmt: skip
"""Key, what it does, and the same where there is little room."""


def keys_row(width: int) -> Row:
    """The keys of the launch screen."""
    cells: list[Cell] = [(" ", "text")]
    for key, long, short in _KEYS:
        cells += [(key, "key"), (f" {long if width >= 100 else short}   ", "text")]
    return tuple(cells)


def plan_rows(preview: Preview, width: int | None = None) -> list[Row]:
    """Problems first, then the plan, verbatim; in `width` columns long lines go on below, nothing is lost."""
    rows = problem_rows(preview.problems, width)
    if preview.problems and preview.text:
        rows.append(())
    return [*rows, *text_rows(preview.text, width)]


def problem_rows(problems: Sequence[str], width: int | None = None) -> list[Row]:
    """Why there is no plan, a sentence each."""
    if width is None:
        return [((f" {glyphs.BAD} ", "bad"), (problem, "text")) for problem in problems]
    rows: list[Row] = []
    for problem in problems:
        first, *rest = textwrap.wrap(problem, max(20, width - 4)) or [""]
        rows.append(((f" {glyphs.BAD} ", "bad"), (first, "text")))
        rows += [((f"   {line}", "text"),) for line in rest]
    return rows


def text_rows(text: str, width: int | None = None) -> list[Row]:
    """A text, comments dimmed."""
    rows: list[Row] = []
    for line in text.splitlines():
        style = "dim" if line.lstrip().startswith("#") else "text"
        rows += [((f" {part}", style),) for part in (broken(line, width - 1) if width else [line])]
    return rows


def broken(line: str, width: int) -> list[str]:
    """A line over as many as it needs: at blanks where there are some, the rest four columns further in."""
    if len(line) <= width:
        return [line]
    lead = len(line) - len(line.lstrip())
    wrapped = textwrap.wrap(
        line, width, subsequent_indent=" " * (lead + 4), drop_whitespace=True, break_on_hyphens=False
    )
    return [" " * lead + wrapped[0].lstrip(), *wrapped[1:]] if wrapped else [line]


def yaml_rows(preview: Preview | None, width: int) -> list[Row]:
    """The task as SkyPilot gets it."""
    if preview is not None and preview.yaml:
        return text_rows(preview.yaml, width)
    if preview is not None and preview.problems:
        return problem_rows(preview.problems, width)
    text = "No SkyPilot task: this plan brings no nodes. Type a place (sky, aws, slurm/lab) and its YAML stands here."
    return wrap(text, width - 1, "dim", first=" ")


def finding_rows(preview: Preview | None, width: int) -> list[Row]:
    """What the check found, the worst first, each with what to do."""
    if preview is None or preview.problems or not preview.text:
        return wrap("There is no plan yet that could be checked.", width - 1, "dim", first=" ")
    if preview.asks:
        return wrap(
            "The hosts are asked first: Enter does it, and shows what is found.",
            width - 1,
            "dim",
            first=" ",
        )
    if not preview.findings:
        return wrap("The check of this plan finds nothing.", width - 1, "dim", first=" ")
    return [row for one in preview.findings for row in finding_row(one, width)]


def finding_row(one: Finding, width: int) -> list[Row]:
    """One finding: where and what, below it what to do."""
    glyph, style = SEVERITY[one.severity]
    where = f"{one.where} = {one.value}" if one.where and one.value else one.where or one.value
    head: Row = (
        (f" {glyph} ", style),
        (f"{one.severity} {one.id}", "head"),
        (f"  {where}" if where else "", "dim"),
    )
    rows = [head, *wrap(one.text, width - 1, "text", first="   ")]
    return [*rows, *(wrap(one.remedy, width - 1, "dim", first="   → ", then="     ") if one.remedy else [])]


def counted(findings: Sequence[Finding]) -> str:
    """ "lint: 1 error, 2 warnings"; "lint" where there is nothing."""
    parts = []
    for severity in SEVERITY:
        number = sum(one.severity == severity for one in findings)
        if number:
            parts.append(f"{number} {severity}{'s' if number > 1 else ''}")
    return f"lint: {', '.join(parts)}" if parts else "lint"
