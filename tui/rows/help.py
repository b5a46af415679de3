"""The help screen's rows, from the action table."""

from __future__ import annotations

from ..actions import ACTIONS, SCOPES, key_text
from . import glyphs
from .cells import Row, fit


def help_rows(readonly: bool, keymap: dict[str, str] | None = None) -> list[Row]:
    """Every key, by where it works; what `--readonly` takes away is marked."""
    changed = keymap or {}
    rows: list[Row] = []
    for scope, heading in SCOPES.items():
        rows += [((f" {heading}", "head"),)]
        for action in ACTIONS:
            if action.scope != scope:
                continue
            gone = readonly and action.mutates
            keys = key_text(changed.get(action.id, action.key))
            note = "  (not in --readonly)" if gone else ""
            row: Row = (
                (f"  {fit(keys, 12)} ", "dim" if gone else "accent"),
                (action.text + note, "dim" if gone else "text"),
            )
            rows.append(row)
        rows.append(())
    return rows + _legend()


def _legend() -> list[Row]:
    return [
        ((" glyphs", "head"),),
        *(
            ((f"  {glyph}  ", style), (text, "text"))
            for glyph, style, text in (
                (glyphs.OK, "ok", "running, or ended well"),
                (glyphs.WARN, "warn", "worth a look"),
                (glyphs.BAD, "bad", "failed, killed or lost"),
                (glyphs.STALE, "stale", "not there yet, or not heard for 3 s"),
                (glyphs.MISSING, "stale", "no value, or too old to be shown as true"),
            )
        ),
        (("  n/a", "stale"), ("  nobody can tell; never written as 0", "text")),
        (),
        ((" Whatever changes a run asks first: Enter cancels, y does it.", "dim"),),
        ((" Keys are changed in ~/.config/distui/keys.toml, by the ids in docs/keys.md.", "dim"),),
    ]
