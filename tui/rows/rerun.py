"""The question before a run starts again: what differs from its launch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...presets.sanitize import clean_text
from . import glyphs
from .glyphs import Row, label_row

if TYPE_CHECKING:
    from ...runners.comparison.rerun_changes import LaunchChange

MOST_NAME = 32
"""Maximum columns for the names of what differs."""


def changes_rows(changes: Sequence[LaunchChange]) -> list[Row]:
    """Return a row for each difference, or one that there is none."""
    if not changes:
        return [((f"{glyphs.OK} nothing changes", "ok"), (": the same launch, as a new run", "dim"))]
    width = min(MOST_NAME, max(len(change.name) for change in changes)) + 2
    return [
        label_row(clean_text(change.name), width, clean_text(change.text), "warn") for change in changes
    ]


def refused_rows(problem: str) -> list[Row]:
    """Return why the launch cannot be planned now."""
    return [((f"{glyphs.BAD} ", "bad"), (clean_text(problem), "text"))]
