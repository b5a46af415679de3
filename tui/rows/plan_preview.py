"""The preview of a launch as rows: its plan, the task for SkyPilot, and the findings of the check. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len

from ...presets.finding import Finding
from ...runners.launch.launch_form import LaunchPreview
from . import glyphs
from .glyphs import Row, counted, labelled, wrap, wrap_wide


def plan_rows(preview: LaunchPreview, width: int | None = None) -> list[Row]:
    """Return the problems, then the plan verbatim; long lines wrap at `width` columns."""
    rows = problem_rows(preview.problems, width)
    if preview.problems and preview.text:
        rows.append(())
    return [*rows, *text_rows(preview.text, width)]


_SECTION = re.compile(r"(environment|each rank also gets) \((\d+) variables?.*")
_OURS = ("# distui", "# torch", "# shell")


def folded_plan(text: str) -> list[Row]:
    """Return the plan with variables of distui and torch only counted, so that the user's own stay visible."""
    kept = [""]
    section = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            match = _SECTION.fullmatch(line)
            section = "variables" if match else line
            if match:
                line = f"{match[1]}: {match[2]} variables, e shows them"
        is_blank_again = not line and not kept[-1]
        if not is_blank_again and not _is_folded(section, line):
            kept.append(line)
    return text_rows("\n".join(kept[1:]))


def _is_folded(section: str, line: str) -> bool:
    """Whether a line is about a file that is written, or a variable of distui or torch."""
    is_ours = line[:1].isspace() and any(mark in line for mark in _OURS)
    return section == "written" or (section == "variables" and is_ours)


def problem_rows(problems: Sequence[str], width: int | None = None) -> list[Row]:
    """Return why there is no plan, one sentence per problem."""
    if width is None:
        return [((f" {glyphs.BAD} ", "bad"), (problem, "text")) for problem in problems]
    return [row for problem in problems for row in labelled((f" {glyphs.BAD} ", "bad"), problem, width - 1)]


def text_rows(text: str, width: int | None = None) -> list[Row]:
    """Return a text with dimmed comments."""
    rows: list[Row] = []
    for line in text.splitlines():
        style = "dim" if line.lstrip().startswith("#") else "text"
        rows += [((f" {part}", style),) for part in (broken(line, width - 1) if width else [line])]
    return rows


def broken(line: str, width: int) -> list[str]:
    """Wrap a line, at blanks if there are any; continuation lines are indented by four more columns."""
    if cell_len(line) <= width:
        return [line]
    lead = len(line) - len(line.lstrip())
    if cell_len(line) > len(line):
        return wrap_wide(line, width, " " * lead, " " * (lead + 4))
    wrapped = textwrap.wrap(
        line, width, subsequent_indent=" " * (lead + 4), drop_whitespace=True, break_on_hyphens=False
    )
    return [" " * lead + wrapped[0].lstrip(), *wrapped[1:]] if wrapped else [line]


def yaml_rows(preview: LaunchPreview | None, width: int) -> list[Row]:
    """Return the task in the form that SkyPilot receives."""
    if preview is not None and preview.yaml:
        return text_rows(preview.yaml, width)
    if preview is not None and preview.problems:
        return problem_rows(preview.problems, width)
    text = "No SkyPilot task: this plan provisions no nodes. Type a place (sky, aws, slurm/lab) to see its YAML here."
    return wrap(text, width - 1, "dim", first=" ")


def finding_rows(preview: LaunchPreview | None, width: int) -> list[Row]:
    """Return the findings of the check, the worst first, each with its remedy."""
    if preview is None or preview.problems or not preview.text:
        return wrap("There is no plan yet that could be checked.", width - 1, "dim", first=" ")
    if preview.open_questions:
        return wrap(
            "The hosts are asked first: Enter does it, and shows what is found.",
            width - 1,
            "dim",
            first=" ",
        )
    if not preview.findings:
        return wrap("The check of this plan finds nothing.", width - 1, "dim", first=" ")
    return [row for finding in preview.findings for row in finding_row(finding, width)]


def finding_row(finding: Finding, width: int) -> list[Row]:
    """Return one finding: place and sentence, below them the remedy."""
    glyph, style = glyphs.severity(finding)
    head, text, *remedy = finding.as_lines()
    name = f"{finding.severity} {finding.id}"
    rows: list[Row] = [((f" {glyph} ", style), (name, "head"), (head.removeprefix(name), "dim"))]
    rows += wrap(text.strip(), width - 1, "text", first="    ")
    return rows + [
        row for line in remedy for row in wrap(line.strip(), width - 1, "dim", first="    ", then="      ")
    ]


def check_title(preview: LaunchPreview) -> str:
    """Return "lint: 1 error, 2 warnings"; "lint" if there are no findings, or no plan to check."""
    return ": ".join(filter(None, ("lint", "" if preview.problems else counted(preview.findings))))
