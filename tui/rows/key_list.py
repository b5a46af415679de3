"""Keys and commands as rows: the help with its sections, the palette, and what a search leaves. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from . import glyphs
from .glyphs import Row, fit

KEY_WIDTH = 12


class KeyEntry(Struct, frozen=True):
    """One key of the help, or one command of the palette."""

    key: str
    """Its usual notation."""
    text: str
    """Verb and noun."""
    heading: str = ""
    """The section that it belongs to."""
    also: str = ""
    """Other words that find it."""
    off: bool = False
    """Whether `--readonly` disables it."""


LETTERS, NOTHING = 5, 6
"""Scores of an entry that has the typed letters in this order, and of one that does not match."""


def score(typed: str, entry: KeyEntry) -> int:
    """Return how well an entry matches, 0 is best."""
    words = typed.lower().split()
    text = entry.text.lower()
    whole = " ".join(words)
    if typed.strip() in entry.key.split():
        return 0
    if text.startswith(whole):
        return 1
    if any(part.startswith(whole) for part in text.split()):
        return 2
    if whole in text:
        return 3
    if all(word in f"{text} {entry.also}" for word in words):
        return 4
    letters = iter(text)
    if all(letter in letters for letter in whole.replace(" ", "")):
        return LETTERS
    return NOTHING


def best_first(typed: str, entries: Sequence[KeyEntry]) -> list[int]:
    """Return the places of the entries that match, the best match first; spread letters count if nothing else does."""
    if not typed.strip():
        return list(range(len(entries)))
    scored = sorted((score(typed, entry), at) for at, entry in enumerate(entries))
    found = [at for points, at in scored if points < LETTERS]
    return found or [at for points, at in scored if points == LETTERS]


def help_row(entry: KeyEntry) -> Row:
    note = "  (not in --readonly)" if entry.off else ""
    return (
        (f"  {fit(entry.key, KEY_WIDTH)} ", "dim" if entry.off else "accent"),
        (entry.text + note, "dim" if entry.off else "text"),
    )


def help_rows(entries: Iterable[KeyEntry]) -> list[Row]:
    """Return the entries below their headings, and the glyphs."""
    rows: list[Row] = []
    heading = ""
    for entry in entries:
        if entry.heading != heading:
            if rows:
                rows.append(())
            heading = entry.heading
            rows.append(((f" {heading}", "head"),))
        rows.append(help_row(entry))
    return [*rows, (), *_legend()]


ORIENTATION = (
    ("{pane.overview}–{pane.events}", "switch panes; tab moves between the parts of one"),
    ("{stacks}", "show where each rank is"),
    ("{time.back} {time.on}", "travel back and forward in time; esc returns to live"),
    ("{command} {palette}", "type a command; find one by its name"),
    ("{help} {leave}", "show all keys; quit, the run goes on"),
)
"""The keys that a first start shows, by their ids, and what they do."""


def orientation_rows(keys: Mapping[str, str]) -> list[Row]:
    """Return the lines of a first start; `keys` are all keys by id, in their usual notation."""
    rows: list[Row] = []
    for pattern, text in ORIENTATION:
        shown = re.sub(r"{([a-z.]+)}", lambda match: keys[match[1]], pattern)
        rows.append(((fit(shown, KEY_WIDTH), "accent"), (text, "text")))
    return rows


def command_row(entry: KeyEntry, width: int) -> Row:
    """Return a command with its key at the right."""
    return ((fit(entry.text, width - len(entry.key)), "text"), (entry.key, "key"))


_GLYPHS = (
    (glyphs.OK, "ok", "running, or ended well"),
    (glyphs.WARN, "warn", "a warning"),
    (glyphs.BAD, "bad", "failed, killed or lost"),
    (glyphs.STALE, "stale", "not running: starting, stopped, ended; or a note"),
    (glyphs.UNHEARD, "stale", "no answer, or no data for 3 s"),
    (glyphs.MISSING, "stale", "nothing to show here, or too old to show"),
)


def _legend() -> list[Row]:
    return [
        ((" Glyphs", "head"),),
        *(((f"  {glyph}  ", style), (text, "text")) for glyph, style, text in _GLYPHS),
        (("  n/a", "stale"), ("  could not be measured; never shown as 0", "text")),
        (),
        ((" Keys that change a run ask for confirmation: Enter cancels, y confirms.", "dim"),),
        ((' Change keys in ~/.config/distui/keys.toml, for example stop = "X".', "dim"),),
        ((" The ids of the keys are in the documentation, on the page about the cockpit.", "dim"),),
    ]
