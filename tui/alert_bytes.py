"""The bytes that alert a user in another window. Pure.

Terminals show OSC 9 and OSC 777 as desktop notifications; a bell marks the window, or makes a sound. Inside tmux and
screen, a notification reaches the outer terminal by their passthrough; the bell rings in them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..presets.sanitize import clean_text
from ..runners.notify.messages import MOST_ALERT, Text, cut

BELL = "\a"
_OSC_777 = ("foot", "urxvt", "rxvt")
_OSC_9 = ("xterm-kitty", "xterm-ghostty", "wezterm", "iterm", "contour")
_PROGRAMS_9 = ("iterm.app", "wezterm", "ghostty", "kitty", "warpterminal", "rio", "vscode")


def kind_of(env: Mapping[str, str]) -> str:
    """Return the terminal's kind of alert: "osc9", "osc777" or "bell"."""
    term, program = env.get("TERM", "").lower(), env.get("TERM_PROGRAM", "").lower()
    if term in ("", "dumb", "linux", "vt100", "vt220", "ansi"):
        return "bell"
    if term.startswith(_OSC_777) or env.get("VTE_VERSION"):
        return "osc777"
    return "osc9" if term.startswith(_OSC_9) or program in _PROGRAMS_9 or multiplexer(env) else "bell"


def multiplexer(env: Mapping[str, str]) -> str:
    """Return the multiplexer around this process: "tmux", "screen" or ""."""
    if env.get("TMUX"):
        return "tmux"
    return "screen" if env.get("STY") else ""


def alert_bytes(text: Text, env: Mapping[str, str], sequence: str = "auto") -> str:
    """Return the bytes to write to the terminal; for `sequence` see `channels.SEQUENCES`."""
    kind = kind_of(env) if sequence == "auto" else sequence
    if kind == "bell":
        return BELL
    return _through(_osc(kind, text), multiplexer(env)) + BELL


def _osc(kind: str, text: Text) -> str:
    """Return an OSC sequence that ends with ST.

    A `;` would end the title, and text that begins with a number and `;` has another meaning.
    """
    title = clean_text(text.title).replace(";", ",")
    body = next(iter(text.lines), "")
    named = title if title.startswith("distui") else f"distui: {title}"
    if kind == "osc777":
        return f"\x1b]777;notify;{cut(title, 80)};{cut(body, MOST_ALERT - 80)}\x1b\\"
    return f"\x1b]9;{cut(f'{named}. {body}', MOST_ALERT)}\x1b\\"


def _through(osc: str, inside: str) -> str:
    """Wrap a sequence in the multiplexer's passthrough; tmux needs every escape doubled."""
    if inside == "tmux":
        doubled = osc.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{doubled}\x1b\\"
    if inside == "screen":  # an ST would end screen's string, so BEL ends the inner sequence
        plain = osc.removesuffix("\x1b\\")
        return f"\x1bP{plain}\a\x1b\\"
    return osc
