"""Colours: the names that rows use, per theme.

Status colours are Okabe and Ito's, the heat ramp is cividis-like with rising lightness, so that both stay
apart for colour-blind eyes; glyphs repeat everything that a colour says.
"""

from __future__ import annotations

from dataclasses import replace

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

DARK, LIGHT, ANSI = "distui-dark", "distui-light", "distui-ansi"

NAMES = (DARK, LIGHT, ANSI)
"""In the order of the key."""

RAMP = (
    "#16233f", "#223a63", "#3a4c6c", "#525e70", "#6a6f76", "#868479", "#a49a70", "#c4b462", "#e4cf5b",
)  # fmt: skip
"""Background of heat cells, cold to hot."""

_BRIGHT_FROM = 5
"""From this step on, cell text is dark."""

_DIMMEST_BAR = 3
"""A colder bar could not be told from its ground."""

_DARK = {
    "text": "#d3dae3",
    "head": "bold #ffffff",
    "dim": "#8b97a3",
    "stale": "#7c8792",
    "accent": "#8ecdf0",
    "ok": "#56b4e9",
    "warn": "#e69f00",
    "bad": "bold #e8702a",
    "hit": "#0f1419 on #e4cf5b",
    "key": "bold #8ecdf0",
}
_LIGHT = {
    "text": "#1c2733",
    "head": "bold #000000",
    "dim": "#5a6672",
    "stale": "#66717d",
    "accent": "#0b5d8f",
    "ok": "#00639c",
    "warn": "#8a5a00",
    "bad": "bold #b04300",
    "hit": "#000000 on #e4cf5b",
    "key": "bold #0b5d8f",
}
_TERMINAL = {
    "text": "default",
    "head": "bold",
    "dim": "bright_black",
    "stale": "bright_black",
    "accent": "cyan",
    "ok": "blue",
    "warn": "yellow",
    "bad": "bold red",
    "hit": "reverse",
    "key": "bold cyan",
}


def _ramp(text_dark: str, text_bright: str) -> dict[str, str]:
    cells = {
        f"heat{step}": f"{text_dark if step >= _BRIGHT_FROM else text_bright} on {colour}"
        for step, colour in enumerate(RAMP)
    }
    bars = {f"bar{step}": f"{RAMP[max(step, _DIMMEST_BAR)]} on {RAMP[0]}" for step in range(len(RAMP))}
    return cells | bars


def _terminal_ramp() -> dict[str, str]:
    """No background: the terminal's own sixteen colours have no order. The glyph carries the value."""
    names = (f"{kind}{step}" for kind in ("heat", "bar") for step in range(len(RAMP)))
    return {name: "bold" if name[-1] in "78" else "default" for name in names}


def _parsed(table: dict[str, str]) -> dict[str, Style]:
    return {name: Style.parse(text) for name, text in table.items()}


_STYLES = {
    DARK: _parsed(_DARK | _ramp("#0b0f14", "#ffffff")),
    LIGHT: _parsed(_LIGHT | _ramp("#0b0f14", "#ffffff")),
    ANSI: _parsed(_TERMINAL | _terminal_ramp()),
}


def styles(theme: str) -> dict[str, Style]:
    """Style by name for a theme; a theme of Textual's own gets the dark ones."""
    return _STYLES.get(theme, _STYLES[DARK])


THEMES = (
    Theme(
        name=DARK, dark=True, primary="#56b4e9", secondary="#8ecdf0", accent="#8ecdf0", warning="#e69f00",
        error="#e8702a", success="#56b4e9", foreground="#d3dae3", background="#0f1419", surface="#141b22",
        panel="#1b242d", variables={"footer-background": "#1b242d", "border": "#33414f"},
    ),
    Theme(
        name=LIGHT, dark=False, primary="#00639c", secondary="#0b5d8f", accent="#0b5d8f", warning="#8a5a00",
        error="#b04300", success="#00639c", foreground="#1c2733", background="#fafbfc", surface="#f1f3f5",
        panel="#e4e8ec", variables={"footer-background": "#e4e8ec", "border": "#b7c0c9"},
    ),
    replace(BUILTIN_THEMES["ansi-dark"], name=ANSI),
)  # fmt: skip
"""For Textual's own widgets: inputs, lists, frames."""
