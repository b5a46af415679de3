"""The help: every key by scope, and the glyphs. Pure."""

from __future__ import annotations

from .keys import ACTIONS, SCOPES, key_text
from .rows import glyphs
from .rows.glyphs import Row, fit


def help_rows(readonly: bool, keymap: dict[str, str] | None = None) -> list[Row]:
    """Return every key by scope; those that `--readonly` disables are marked."""
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
                (glyphs.WARN, "warn", "a warning"),
                (glyphs.BAD, "bad", "failed, killed or lost"),
                (glyphs.STALE, "stale", "not running: starting, stopped, ended; or a note"),
                (glyphs.UNHEARD, "stale", "no answer, or no data for 3 s"),
                (glyphs.MISSING, "stale", "nothing to show here, or too old to show"),
            )
        ),
        (("  n/a", "stale"), ("  could not be measured; never shown as 0", "text")),
        (),
        ((" Keys that change a run ask for confirmation: Enter cancels, y confirms.", "dim"),),
        ((' Change keys in ~/.config/distui/keys.toml, for example stop = "X".', "dim"),),
        ((" The ids of the keys are in the documentation, on the page about the cockpit.", "dim"),),
    ]
