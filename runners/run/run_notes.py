"""Notes and tags of a run, in `notes.jsonl` next to its files: one line per change, so that two writers lose nothing.

They are the user's words about a run, not part of its history. So the journal lacks them, and an ended run can get more.
Secrets are masked at writing, and terminal control codes removed.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from ...presets.sanitize import LONGEST, clean_text
from ...presets.secrets import mask_text
from . import clock, file_io
from .errors import RunError

NAME = "notes.jsonl"
LONGEST_NOTE = 4000
"""Maximum characters of a note."""
MOST_BYTES = 1 << 20
"""Maximum bytes of the file."""
MOST_TAGS = 64
KEEP = "keep"
"""Tag that exempts a run from `prune` and retention."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,39}")


class Change(Struct, omit_defaults=True):
    """One line: a note, or added and removed tags."""

    time: float = 0.0
    """Unix seconds."""
    note: str | None = None
    """Text of the note; an empty one hides the note in lists, and earlier ones stay in the file."""
    add: list[str] = []
    remove: list[str] = []


class RunNotes(Struct):
    """Current notes and tags from all lines."""

    notes: list[tuple[float, str]] = []
    """Times and texts, oldest first."""
    tags: tuple[str, ...] = ()
    """Tags in alphabetical order."""
    problem: str = ""
    """Sentence about an unreadable part of the file; a note or a tag may then be missing."""

    @property
    def keeps(self) -> bool:
        """Whether the run must not be pruned: it has the tag, or may have it."""
        return KEEP in self.tags or bool(self.problem)

    @property
    def note(self) -> str:
        """The newest note; "" if there is none, or it was removed."""
        return self.notes[-1][1] if self.notes else ""


_LINE = msgspec.json.Decoder(Change)


def read(run_dir: Path) -> RunNotes:
    """Read the notes and tags of a run; skip damaged lines and report them in `problem`. Never fails."""
    notes, tags, path, damaged = list[tuple[float, str]](), set[str](), run_dir / NAME, list[int]()
    try:
        changes = list(_changes(path, damaged))
    except file_io.FileError as error:
        return RunNotes(problem="" if error.missing else f"{NAME} {error.why}: notes and tags are unknown")
    for change in changes:
        if change.note is not None:
            notes.append((change.time, clean_text(change.note, LONGEST)[:LONGEST_NOTE]))
        tags |= {tag for tag in change.add if _TAG.fullmatch(tag)}
        tags -= set(change.remove)
    problem = f"{NAME} is damaged in line {damaged[0]}" if damaged else ""
    return RunNotes(notes, tuple(sorted(tags)[:MOST_TAGS]), problem)


def _changes(path: Path, damaged: list[int]) -> Iterator[Change]:
    """Yield the changes, and append the numbers of invalid lines to `damaged`. Raises FileError."""
    for number, line in enumerate(file_io.content(path, MOST_BYTES).split(b"\n"), 1):
        change = file_io.decoded(_LINE, line)
        if change is not None:
            yield change
        elif line:
            damaged.append(number)


def note(run_dir: Path, text: str) -> None:
    """Append a note. Raises RunError."""
    if len(text) > LONGEST_NOTE:
        raise RunError(
            f"the note has {len(text)} characters, and {LONGEST_NOTE} are the most: keep the rest in a file"
        )
    shown = clean_text(" ".join(text.split()), LONGEST)  # first: a secret may contain an escape sequence
    _append(run_dir, Change(clock.now(), note=mask_text(shown)))


def tag(run_dir: Path, add: Sequence[str], remove: Sequence[str]) -> None:
    """Add and remove tags. Raises RunError."""
    for each in (*add, *remove):
        check_tag(each)
    if len({*read(run_dir).tags, *add} - {*remove}) > MOST_TAGS:
        raise RunError(f"a run has {MOST_TAGS} tags at most: take one away with -TAG")
    _append(run_dir, Change(clock.now(), add=list(add), remove=list(remove)))


def check_tag(text: str) -> None:
    """Raise RunError for an invalid tag."""
    if not _TAG.fullmatch(text):
        raise RunError(
            f"no tag can be {text[:80]!r}: use up to 40 letters, digits and . _ : / -, beginning with a letter or digit"
        )


def clear(run_dir: Path) -> int:
    """Remove all notes but keep the tags, and return the number of notes. Raises RunError."""
    try:
        kept = list[Change]()
        with _alone(run_dir) as file:
            with suppress(file_io.FileError):  # a file that is too large has nothing to keep
                kept = [change for change in _changes(run_dir / NAME, []) if change.note is None]
            gone = len(read(run_dir).notes)
            data = b"".join(msgspec.json.encode(change) + b"\n" for change in kept)
            os.pwrite(file, data, 0)
            os.ftruncate(file, len(data))
    except OSError as error:
        raise _unwritable(run_dir, error) from None
    return gone


def _append(run_dir: Path, change: Change) -> None:
    line = msgspec.json.encode(change) + b"\n"
    try:
        with _alone(run_dir) as file:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            line = b"\n" * torn + line
            if size + len(line) > MOST_BYTES:
                raise RunError(
                    f"{run_dir / NAME} is full ({MOST_BYTES >> 20} MiB): `distui note RUN --clear` empties it"
                )
            try:
                whole = os.pwrite(file, line, size) == len(line)
            except OSError:
                os.ftruncate(file, size)
                raise
            if not whole:
                os.ftruncate(file, size)
                raise OSError(28, "No space left on device")
    except OSError as error:
        raise _unwritable(run_dir, error) from None


@contextmanager
def _alone(run_dir: Path) -> Iterator[int]:
    """Open the file, locked against other writers. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(run_dir / NAME, flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _unwritable(run_dir: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {run_dir / NAME} ({error.strerror or error}): nothing was changed")


def words_of(changes: Iterable[str]) -> tuple[list[str], list[str]]:
    """Parse "+good", "good" and "-bad" into tags to add and to remove. Raises RunError."""
    add, remove = list[str](), list[str]()
    for word in changes:
        bare = word[1:] if word[:1] in ("+", "-") else word
        check_tag(bare)
        (remove if word.startswith("-") else add).append(bare)
    if both := sorted({*add} & {*remove}):
        raise RunError(f"the tag {both[0]} is added and taken away: leave out one")
    return add, remove
