"""The list of presets on the launch screen: search, marks, and when to use the selected one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from ...runners.launch.preset_library import PresetEntry
from . import glyphs
from .glyphs import Row, clip, fit, row_width, wrap

_MARKS = {"yours": "y", "project": "p"}


def matching(entries: Sequence[PresetEntry], words: str) -> list[PresetEntry]:
    """Return the presets with every word, in any order: in name, title, summary, strategy, origin or problem."""
    wanted = words.lower().split()
    return [entry for entry in entries if all(word in _text(entry) for word in wanted)]


def best_match(entries: Sequence[PresetEntry], words: str, kept: str) -> str:
    """Return an exact match; else `kept` if it begins with the words, else the first that begins so.

    Without any, return `kept`, which the search may hide.
    """
    names = [entry.name for entry in matching(entries, words)]
    word = words.strip().lower()
    begun = [name for name in names if word and name.lower().startswith(word)]
    exact = next((name for name in begun if name.lower() == word), "")
    return exact or (kept if kept in begun else next(iter(begun), kept))


def _text(item: PresetEntry) -> str:
    return f"{item.name} {item.title} {item.summary} {item.strategy} {item.origin} {item.problem}".lower()


def preset_rows(entries: Sequence[PresetEntry], width: int) -> list[Row]:
    """Return one row per preset: its name, and a mark if it does not ship with distui or does not load."""
    rows: list[Row] = []
    for entry in entries:
        name = fit(entry.name, max(4, width - 2))
        if entry.problem:
            rows.append(((f"{name} ", "stale"), (glyphs.BAD, "bad")))
        else:
            rows.append(((f"{name} ", "text"), (_MARKS.get(entry.origin, " "), "accent")))
    return rows


def why_rows(entry: PresetEntry | None, width: int, height: int) -> list[Row]:
    """Return when to use the selected preset, or why it cannot be used."""
    if entry is None:
        return [((" no match: esc clears the search", "warn"),)]
    if entry.problem:
        return wrap(entry.problem, width - 1, first=f" {glyphs.BAD} ", then=" ")[:height]
    return wrap(entry.summary, width - 1, first=" ")[:height]


def repeated_row(name: str) -> Row:
    """Return the title of the screen for another run of a command or of a task."""
    return ((" distui · new run", "head"), (f" · as {name}", "text"))


def title_row(entry: PresetEntry | None, width: int) -> Row:
    """Return the title of the screen and of the selected preset; also its name if there is room."""
    head: Row = ((" distui · new run", "head"),)
    if entry is None:
        return head
    origin = {"yours": " (your own)", "project": " (of this project)"}.get(entry.origin, "")
    long = f" · {entry.name} · {entry.title}{origin}" if entry.title else f" · {entry.name}{origin}"
    short = f" · {entry.title}{origin}" if entry.title else long
    return clip((*head, (long if row_width(head) + cell_len(long) <= width else short, "text")), width)
