"""NO_COLOR: styles without colours. Bold, dim, reverse and underline keep the differences that colours showed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

CLEAR = 0.3
"""Minimum difference of brightness (0 to 1) at which two colours count as clearly different."""


def wants_no_colour(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether NO_COLOR is set and not empty (https://no-color.org)."""
    return bool(environment.get("NO_COLOR"))


class Colourless(LineFilter):
    """Removes all colours of Textual's widgets."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style and _without_colours(style, background), control)
            for text, style, control in segments
        ]


COLOURLESS = Colourless()


@lru_cache(1024)
def _without_colours(style: Style, ground: Color) -> Style:
    """Return the style: reversed if its background is clearly another one, dim if its text is hardly visible."""
    paper = _brightness(style.bgcolor)
    below = ground.brightness if paper is None else paper
    ink = _brightness(style.color)
    plain = style.without_color
    if abs(below - ground.brightness) >= CLEAR:
        return plain + Style(reverse=True)
    if ink is not None and abs(ink - below) < CLEAR:
        return plain + Style(dim=True)
    return plain


def _brightness(colour: RichColor | None) -> float | None:
    """Return the brightness of a colour; None for the terminal's default."""
    if colour is None or colour.is_default:
        return None
    return Color.from_rich_color(colour).brightness
