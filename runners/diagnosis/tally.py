"""Which rules fired, how often, where first, and on which ranks. Memory does not grow with the number of lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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

    def add(self, rule: Rule, match: re.Match[str], head: Head, where: tuple[int, str, int]) -> None:
        """A line that fired a rule. `where`: number and name of the file, number of the line."""
        entry = self.entries[rule.place]
        entry.count += 1
        if head.source not in entry.heads and len(entry.heads) < SOURCES:
            entry.heads[head.source] = head
        firsts = entry.firsts
        if (not firsts or firsts[-1].file != where[0]) and len(firsts) < FILES:
            firsts.append(_first(rule, match, head, where))
        elif len(entry.further) < EVIDENCE - 1:
            entry.further.append(_evidence(match.string, where))
        if rule.id in ("pt-watchdog", "pt-pg-status"):
            self._progressed(match, head)

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


def _first(rule: Rule, match: re.Match[str], head: Head, where: tuple[int, str, int]) -> First:
    values = {name: clean_text(value, 200) for name, value in match.groupdict().items() if value}
    softer = bool(rule.softer) and rule.softer in match[0]
    line = match.string
    return First(where[0], _evidence(line, where), head, stamp_of(line), values, softer)


def _evidence(line: str, where: tuple[int, str, int]) -> Evidence:
    shown = clean_text(line.strip(), WIDTH - 24)
    return Evidence(where[1], where[2], shown[:WIDTH])
