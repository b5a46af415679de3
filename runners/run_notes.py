"""Notes and tags of a run, beside its files in `notes.jsonl`: a line a change, so that two writers lose nothing.

They are the user's words about a run, no part of what happened in it: the journal has none of them, and a run that has
ended can still get some. Secrets in them are masked as they are written, and nothing in them acts on a terminal.
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

from ..presets.sanitize import LONGEST, clean_text
from ..presets.secrets import mask_text
from . import clock, file_io
from .errors import RunError

NAME = "notes.jsonl"
LONGEST_NOTE = 4000
"""Characters of a note."""
MOST_BYTES = 1 << 20
"""Of the file."""
MOST_TAGS = 64
KEEP = "keep"
"""The tag of runs that `prune` and retention leave."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,39}")


class Change(Struct, omit_defaults=True):
    """One line: a note, or tags that were added and taken away."""

    time: float = 0.0
    """Unix seconds."""
    note: str | None = None
    """"" takes the note out of the lists; earlier ones stay in the file."""
    add: list[str] = []
    remove: list[str] = []


class RunNotes(Struct):
    """What the lines come to."""

    notes: list[tuple[float, str]] = []
    """With their times, the oldest first."""
    tags: tuple[str, ...] = ()
    """In alphabetical order."""
    problem: str = ""
    """What of the file cannot be read, in a sentence; then a note or a tag may be missing here."""

    @property
    def keeps(self) -> bool:
        """Whether the run is not to be pruned: it has the tag, or may have it."""
        return KEEP in self.tags or bool(self.problem)

    @property
    def note(self) -> str:
        """The newest one; "" where there is none, or it was taken away."""
        return self.notes[-1][1] if self.notes else ""


_LINE = msgspec.json.Decoder(Change)


def read(run_dir: Path) -> RunNotes:
    """Those of a run; a line that is damaged costs itself alone, and is named. Never fails."""
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
    """Numbers of lines that are no change go into `damaged`. Raises FileError."""
    for number, line in enumerate(file_io.content(path, MOST_BYTES).split(b"\n"), 1):
        change = file_io.decoded(_LINE, line)
        if change is not None:
            yield change
        elif line:
            damaged.append(number)


def note(run_dir: Path, text: str) -> None:
    """Write a note. Raises RunError."""
    if len(text) > LONGEST_NOTE:
        raise RunError(
            f"the note has {len(text)} characters, and {LONGEST_NOTE} are the most: keep the rest in a file"
        )
    shown = clean_text(
        " ".join(text.split()), LONGEST
    )  # first: a secret with an escape sequence in it is still one
    _append(run_dir, Change(clock.now(), note=mask_text(shown)))


def tag(run_dir: Path, add: Sequence[str], remove: Sequence[str]) -> None:
    """Add tags and take tags away. Raises RunError."""
    for each in (*add, *remove):
        check_tag(each)
    if len({*read(run_dir).tags, *add} - {*remove}) > MOST_TAGS:
        raise RunError(f"a run has {MOST_TAGS} tags at most: take one away with -TAG")
    _append(run_dir, Change(clock.now(), add=list(add), remove=list(remove)))


def check_tag(text: str) -> None:
    """Raises RunError for what cannot be a tag."""
    if not _TAG.fullmatch(text):
        raise RunError(
            f"no tag can be {text[:80]!r}: use up to 40 letters, digits and . _ : / -, beginning with a letter or digit"
        )


def clear(run_dir: Path) -> int:
    """Take all notes out of the file, tags stay; how many there were. Raises RunError."""
    try:
        kept = list[Change]()
        with _alone(run_dir) as file:
            with suppress(file_io.FileError):  # a file that is too large has nothing that is kept
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
    """The file, locked against other writers. Raises OSError."""
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
    """ "+good", "good" and "-bad" as tags to add and to take away. Raises RunError."""
    add, remove = list[str](), list[str]()
    for word in changes:
        bare = word[1:] if word[:1] in ("+", "-") else word
        check_tag(bare)
        (remove if word.startswith("-") else add).append(bare)
    if both := sorted({*add} & {*remove}):
        raise RunError(f"the tag {both[0]} is added and taken away: leave out one")
    return add, remove
