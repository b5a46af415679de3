"""Colours of the cockpit: styles of rows by name, and themes for Textual's widgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

# Status colours are Okabe and Ito's; the heat ramp is like cividis, with rising lightness. Colour-blind users can
# distinguish both. Glyphs repeat everything that a colour shows.
DARK, LIGHT, ANSI = "distui-dark", "distui-light", "distui-ansi"

NAMES = (DARK, LIGHT, ANSI)
"""Ordered as the theme key cycles through them."""

PLAIN = "plain"
"""The styles without any colour, for NO_COLOR."""

RAMP = (
    "#16233f",
    "#223a63",
    "#3a4c6c",
    "#525e70",
    "#6a6f76",
    "#868479",
    "#a49a70",
    "#c4b462",
    "#e4cf5b",
)
"""Background of heat cells, cold to hot."""

LIGHT_RAMP = (
    "#edf1f5",
    "#dde7f0",
    "#cbdcea",
    "#b5cfe4",
    "#9bbfdb",
    "#7dadd1",
    "#5d98c4",
    "#1f6ea5",
    "#00507f",
)
"""Background of heat cells on a light ground: idle is pale, busy is dark."""

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
    "calm": "#56657a",
    "calm_next": "#66768c",
    "outlier": "reverse bold #e8702a",
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
    "calm": "#8193a6",
    "calm_next": "#6f8296",
    "outlier": "reverse bold #b04300",
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
    "calm": "bright_black",
    "calm_next": "bright_black",
    "outlier": "reverse bold red",
}
_PLAIN = {
    "text": "default",
    "head": "bold",
    "dim": "dim",
    "stale": "dim",
    "accent": "default",
    "ok": "default",
    "warn": "bold",
    "bad": "bold",
    "hit": "reverse",
    "calm": "dim",
    "calm_next": "dim",
    "outlier": "reverse bold",
}


def _ramp(ramp: Sequence[str], cold: str, hot: str, turn: int) -> dict[str, str]:
    """Return styles of heat cells. From step `turn` on the text is `hot`."""
    return {
        f"heat{step}": f"{hot if step >= turn else cold} on {colour}" for step, colour in enumerate(ramp)
    }


def _terminal_ramp() -> dict[str, str]:
    """Return heat styles without background: the sixteen terminal colours have no order. The number shows the value."""
    return {f"heat{step}": "bold" if step >= 7 else "default" for step in range(len(RAMP))}


def _parsed(table: dict[str, str]) -> dict[str, Style]:
    whole = table | {"tab": table["head"], "key": f"bold {table['accent']}"}
    return {name: Style.parse(text) for name, text in whole.items()}


_STYLES = {
    DARK: _parsed(_DARK | _ramp(RAMP, "#ffffff", "#0b0f14", 5)),
    LIGHT: _parsed(_LIGHT | _ramp(LIGHT_RAMP, "#0b0f14", "#ffffff", 7)),
    ANSI: _parsed(_TERMINAL | _terminal_ramp()),
    PLAIN: _parsed(_PLAIN | _terminal_ramp()),
}


def styles(theme: str) -> dict[str, Style]:
    """Return the styles of a theme by name; a theme of Textual uses those of distui's theme with a similar ground."""
    return _STYLES[theme if theme in _STYLES else _alike(BUILTIN_THEMES.get(theme))]


def _alike(theme: Theme | None) -> str:
    if theme is None:
        return DARK
    if theme.background == "ansi_default":
        return ANSI
    return DARK if theme.dark else LIGHT


def _theme(name: str, table: dict[str, str], ground: str, surface: str, panel: str, border: str) -> Theme:
    """Return a theme with the table's colours for Textual's own widgets."""
    return Theme(
        name=name,
        dark=name == DARK,
        primary=table["ok"],
        secondary=table["accent"],
        accent=table["accent"],
        warning=table["warn"],
        error=table["bad"].removeprefix("bold "),
        success=table["ok"],
        foreground=table["text"],
        background=ground,
        surface=surface,
        panel=panel,
        variables={"footer-background": panel, "border": border},
    )


THEMES = (
    _theme(DARK, _DARK, "#0f1419", "#141b22", "#1b242d", "#33414f"),
    _theme(LIGHT, _LIGHT, "#fafbfc", "#f1f3f5", "#e4e8ec", "#b7c0c9"),
    replace(BUILTIN_THEMES["ansi-dark"], name=ANSI),
)
"""Themes of Textual's own widgets: inputs, lists, frames."""
