"""Fewer pieces of a line, and the same picture."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style

from distui.tui.screens.rows_view import merged

STYLES = [Style.parse(text) for text in ("red", "bold blue", "white on red", "underline", "reverse", "dim")]
PIECES = st.lists(st.tuples(st.sampled_from(["", " ", "   ", "a", " b ", "█"]), st.sampled_from(STYLES)))


def seen(segments: list[Segment]) -> list[tuple[str, object]]:
    """Cell by cell what the eye gets: of a blank only what is behind it and what is drawn through it."""
    cells: list[tuple[str, object]] = []
    for text, style, _ in segments:
        assert style is not None
        for letter in text:
            marks = (style.bgcolor, style.underline, style.reverse and style)
            cells.append((letter, style if letter != " " else marks))
    return cells


@given(PIECES)
def test_every_cell_looks_as_before(pieces: list[tuple[str, Style]]) -> None:
    segments = [Segment(text, style) for text, style in pieces]
    assert seen(merged(segments)) == seen(segments)


def test_blanks_join_their_neighbours() -> None:
    red, blue = Style.parse("red"), Style.parse("blue")
    parts = [
        Segment(" ", blue),
        Segment("a", red),
        Segment("  ", blue),
        Segment("b", red),
        Segment(" ", blue),
    ]
    assert merged(parts) == [Segment(" a  b ", red)]
