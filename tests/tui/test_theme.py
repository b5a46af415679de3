"""Colours that people can tell apart and read."""

from __future__ import annotations

from itertools import pairwise

from each import for_each
from rich.color import Color

from distui.tui import colours
from distui.tui.rows.glyphs import BUCKETS

GROUND = {colours.DARK: "#0f1419", colours.LIGHT: "#fafbfc"}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    triplet = Color.parse(colour).get_truecolor()
    parts = [part / 255 for part in triplet]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio as WCAG 2 defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def hexed(colour: Color | None) -> str:
    assert colour is not None
    return colour.get_truecolor().hex


@for_each(("name", "ramp"), [(colours.DARK, colours.RAMP), (colours.LIGHT, colours.LIGHT_RAMP)])
def test_the_ramp_leaves_the_ground_step_by_step(name: str, ramp: tuple[str, ...]) -> None:
    """What is idle is the calmest cell of the screen, in both themes."""
    steps = [contrast(colour, GROUND[name]) for colour in ramp]
    assert len(steps) == BUCKETS
    assert all(near < far for near, far in pairwise(steps))
    assert steps[0] < 1.25
    assert steps[-1] > 7


@for_each("name", [colours.DARK, colours.LIGHT])
def test_numbers_in_cells_can_be_read(name: str) -> None:
    table = colours.styles(name)
    for step in range(BUCKETS):
        style = table[f"heat{step}"]
        assert contrast(hexed(style.color), hexed(style.bgcolor)) >= 4.1, step


@for_each("name", [colours.DARK, colours.LIGHT])
def test_states_and_text_can_be_read_on_the_ground(name: str) -> None:
    table = colours.styles(name)
    for style in ("text", "head", "dim", "stale", "accent", "ok", "warn", "bad", "key"):
        assert contrast(hexed(table[style].color), GROUND[name]) >= 4.5, style


def test_every_theme_knows_every_name() -> None:
    names = [set(colours.styles(name)) for name in colours.NAMES]
    assert names[0] == names[1] == names[2]
    assert {one.name for one in colours.THEMES} == set(colours.NAMES)
