"""Which rules fired, how often, where first, and on which ranks. Memory does not grow with the number of lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from ..logs.clean import clean_text
from .grammar import Head, Stamp, Thread, stamp_of
from .rules import Book, Rule

EVIDENCE = 3
"""Lines that are kept of a rule in one file."""
SOURCES = 4096
"""Hosts, and ranks, that are kept of a rule."""
FILES = 1024
"""Files of which the first line that fired a rule is kept."""
WIDTH = 300


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that says so."""

    file: str
    line: int
    """From 1."""
    text: str
    """As it was written, without what would be a command to a terminal, cut to 300 characters."""


class Raw(NamedTuple):
    """A line as it was read, of which nobody knows yet whether it will be shown."""

    file: str
    line: int
    text: str

    def evidence(self) -> Evidence:
        """As it may be shown."""
        return Evidence(self.file, self.line, shown(self.text))


def shown(line: str) -> str:
    """Without what would be a command to a terminal, and cut."""
    return clean_text(line.strip(), WIDTH - 24)[:WIDTH]


@dataclass(slots=True)
class First:
    """The first line of a file that fired a rule."""

    file: int
    """Number of the file, in the order in which they were read."""
    evidence: Evidence
    head: Head
    stamp: Stamp | None
    values: dict[str, str]
    softer: bool


@dataclass(slots=True)
class Entry:
    """One rule."""

    rule: Rule
    count: int = 0
    firsts: list[First] = field(default_factory=list)
    """One a file, in the order of the files."""
    further: list[Evidence] = field(default_factory=list)
    heads: dict[Thread, Head] = field(default_factory=dict)
    """Who says so."""
    files: set[int] = field(default_factory=set)
    """Of `firsts`: files may be read in turns."""

    def seen(self, head: Head, file: int) -> bool:
        """Once more; whether it is the first time in its file, whose line is to be kept."""
        self.count += 1
        if head.source not in self.heads and len(self.heads) < SOURCES:
            self.heads[head.source] = head
        if file in self.files or len(self.files) >= FILES:
            return False
        self.files.add(file)
        return True


@dataclass(slots=True)
class Progress:
    """How far torch says that a rank has come when it failed."""

    seq: int | None = None
    """Of the collective that timed out."""
    op: str = ""
    enqueued: int | None = None
    completed: int | None = None


class Tally:
    """All rules."""

    def __init__(self, book: Book) -> None:
        self.entries = [Entry(rule) for rule in book.rules]
        self.progress: dict[int, Progress] = {}
        """By rank."""
        self._file = 0
        self._name = ""

    def open(self, file: int, name: str) -> None:
        """What comes is of this file: its number, from 1, and its name."""
        self._file, self._name = file, name

    def add(self, rule: Rule, match: re.Match[str], head: Head, number: int) -> None:
        """A line that fired a rule, and its number in the file."""
        entry = self.entries[rule.place]
        if entry.seen(head, self._file):
            entry.firsts.append(_first(rule, match, head, self._file, self.evidence(match.string, number)))
        elif len(entry.further) < EVIDENCE - 1:
            entry.further.append(self.evidence(match.string, number))
        if rule.id in ("pt-watchdog", "pt-pg-status"):
            self._progressed(match, head)

    def evidence(self, line: str, number: int) -> Evidence:
        """A line of the file that is read now."""
        return Evidence(self._name, number, shown(line))

    def _progressed(self, match: re.Match[str], head: Head) -> None:
        """Keep each rank's first: later ones are of other groups, or follow from it."""
        said = match.groupdict()
        rank = int(said["rank"][:9]) if said.get("rank") else head.rank
        if rank is None or (rank not in self.progress and len(self.progress) >= SOURCES):
            return
        one = self.progress.setdefault(rank, Progress())
        if "seq" in said and one.seq is None:
            one.seq, one.op = int(said["seq"][:18]), said["op"] or ""
        elif "enqueued" in said and one.enqueued is None:
            one.enqueued, one.completed = int(said["enqueued"][:18]), int(said["completed"][:18])


def _first(rule: Rule, match: re.Match[str], head: Head, file: int, evidence: Evidence) -> First:
    values = {name: clean_text(value, 200) for name, value in match.groupdict().items() if value}
    softer = bool(rule.softer) and rule.softer in match[0]
    return First(file, evidence, head, stamp_of(match.string), values, softer)
