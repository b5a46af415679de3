"""note, tag: the user's own words about a run."""

from __future__ import annotations

import argparse
import sys

from msgspec import Struct

from ...presets.plurals import plural
from ...presets.sanitize import LONGEST, clean_text
from ...runners.run import clock, run_directories, run_notes
from ...runners.run.errors import RunError
from ..rows.glyphs import ago
from ..terminal import answer, complain


class Note(Struct, frozen=True):
    time: float
    text: str


class Notes(Struct, frozen=True):
    """`note`."""

    run: str
    note: str | None
    notes: list[Note]


class Tags(Struct, frozen=True):
    """`tag`."""

    run: str
    tags: list[str]


def note(options: argparse.Namespace) -> int:
    """Write a note on a run; without a text print its notes, the newest last."""
    entry = run_directories.resolve(options.run)
    if options.clear:
        if options.text:
            raise RunError("--clear removes notes, and TEXT writes one: leave one of them out")
        count = run_notes.clear(entry.path)
        if not options.json:
            sys.stdout.write(f"{entry.record.name}: {plural(count, 'note')} removed\n")
            return 0
    elif options.text:
        run_notes.note(entry.path, " ".join(options.text))
    _print_notes(options, entry)
    return 0


def _print_notes(options: argparse.Namespace, entry: run_directories.Entry) -> None:
    """Print the notes; after writing one only as JSON."""
    marks = _read(entry)
    notes = [Note(at, text) for at, text in marks.notes]
    lines = [clean_text(f"{ago(at, clock.now())}: {text or '(none)'}", LONGEST) for at, text in marks.notes]
    if options.json or not options.text:
        document = Notes(entry.record.run, marks.note or None, notes)
        answer(options.json, document, lines or [f"{entry.record.name} has no note"])


def tag(options: argparse.Namespace) -> int:
    """Add and remove tags; print the run's tags."""
    entry = run_directories.resolve(options.run)
    add, remove = run_notes.words_of([*options.tags, *(f"-{word}" for word in options.remove)])
    if add or remove:
        run_notes.tag(entry.path, add, remove)
    tags = _read(entry).tags
    line = f"{entry.record.name}: {' '.join(tags) or 'no tags'}"
    answer(options.json, Tags(entry.record.run, list(tags)), [line])
    return 0


def _read(entry: run_directories.Entry) -> run_notes.RunNotes:
    """Return the notes of a run, and report unreadable parts."""
    marks = run_notes.read(entry.path)
    if marks.problem:
        complain(f"{entry.record.name}: {marks.problem}")
    return marks
