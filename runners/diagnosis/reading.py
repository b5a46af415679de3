"""Files, block by block, into a tally of rules and into statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .exceptions import Exceptions
from .lines import MARK, OLD, Head, lines_of, parse_head, rank_of, stamp_of
from .rules import BEGIN, ENDINGS, WIDTH, Book, Raw, Tally, Version, book
from .statements import Statements

REPORT, REPORT_LINES = "pt-nccl-error", 64
"""With what torch begins its report of an error of NCCL, and in how many lines NCCL's own reason follows."""
HEADS = 1 << 14
"""Heads that are remembered: threads write many lines with the same."""

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)

Say = Callable[[Statements, Head, str], None]

_HANDLERS: dict[str, tuple[Say, bool]] = {
    "Channel": (Statements.channel, True),
    "Ring": (Statements.channel, True),
    "Trees": (Statements.trees, True),
    "Tree": (Statements.trees, True),
    "comm": (Statements.comm, True),
    "[Rank": (Statements.comm, True),
    "Connected": (Statements.connected, True),
    "Init": (Statements.timings, True),
    "Using": (Statements.network, True),
    "Assigned": (Statements.network, True),
    "NVLS": (Statements.nvls, False),
    "NET/IB": (Statements.interfaces, False),
    "NET/Socket": (Statements.interfaces, False),
    "Bootstrap": (Statements.interfaces, False),
    "Bootstrap:": (Statements.interfaces, False),
    "NET/Plugin": (Statements.plugin, False),
    "NET/Plugin:": (Statements.plugin, False),
    "NET/OFI": (Statements.plugin, False),
    "P2P": (Statements.plugin, False),
    "TUNER/Plugin:": (Statements.plugin, False),
    "PROFILER/Plugin:": (Statements.plugin, False),
}
"""First word of a message → who understands it, and whether no rule does."""


_NAMED = (Statements.comm, True)
_VERSION = (Statements.version_line, True)
_VARIABLE = (Statements.variable, False)
_CALLED = (Statements.collective, False)
_NUMBERED = (Statements.numbered, True)


@dataclass(slots=True)
class _Place:
    """Where a file is left off that is read in turns."""

    number: int
    """Of the file, from 1."""
    rank: int | None
    line: int = 0
    report_until: int = 0
    version: Version = ()


class Reading:
    """What some logs say, all together."""

    def __init__(self, rules: Book | None = None) -> None:
        self.book = rules or book()
        self.tally = Tally(self.book)
        self.statements = Statements()
        self.exceptions = Exceptions()
        self.files: list[str] = []
        """Names, in the order in which they were opened."""
        self.lines = 0
        self.nccl_lines = 0
        self._heads: dict[str, Head] = {}
        self._places: dict[str, _Place] = {}
        self._name = ""
        self._rank: int | None = None
        self._file = 0
        self._number = 0
        self._report_until = 0

    def open(self, name: str, rank: int | None = None) -> None:
        """What comes is of another file, or the log of this rank."""
        self.files.append(name)
        self._begin(name, _Place(len(self.files), rank_in_name(name) if rank is None else rank))

    def turn_to(self, name: str, rank: int | None = None) -> None:
        """What comes goes on where this file was left, by its name; one that is new is opened."""
        if name == self._name:
            return
        self.leave()
        place = self._places.pop(name, None)
        if place is None:
            self.open(name, rank)
        else:
            self._begin(name, place)

    def leave(self) -> None:
        """Remember where the file is left off that was read last."""
        if self._name:
            self._places[self._name] = _Place(
                self._file, self._rank, self._number, self._report_until, self.statements.version
            )
            self._name = ""

    @property
    def at(self) -> int:
        """Lines of the file that is read now, so far."""
        return self._number

    def skip(self, lines: int) -> None:
        """Lines of the file are left out: their numbers count all the same."""
        self._number += lines

    def _begin(self, name: str, place: _Place) -> None:
        self._heads.clear()
        self.exceptions.open(place.number, name, before=self._number)
        self._name, self._file, self._rank = name, place.number, place.rank
        self._number, self._report_until = place.line, place.report_until
        self.tally.open(place.number, name)
        self.statements.version = place.version

    def feed(self, lines: Iterable[str]) -> None:
        """Whole lines of the file that was opened last, without their ends."""
        number, nccl = self._number, 0
        mark_in, needle, plain, handlers = MARK.search, self.book.needle, self.book.plain, _HANDLERS
        statements, noted, exceptions = self.statements, self.statements.noted, self.exceptions
        for line in lines:
            number += 1
            if not line:
                continue
            mark = mark_in(line)
            if mark is None and ("] INFO " in line or "] WARN " in line):
                mark = OLD.match(line)
            if mark is None:
                if exceptions.within:
                    exceptions.line(line, number)
                if first := plain(" " + line):
                    self._plain(line, first, number)
                continue
            nccl += 1
            start, level = mark.end(), mark[1]
            if level == "INFO":
                word = line[start : line.find(" ", start)]
                handler = handlers.get(word) or _other(word)
                if handler is not None:
                    handler[0](statements, self._head(line[: mark.start()]), line[start:])
                    if noted:
                        self._keep(line, number)
                    if handler[1]:
                        continue
            elif level is None:  # torch ends its own sentence with NCCL's version
                statements.version_line(self._head(line[: mark.start()]), line[start:])
                if noted:
                    self._keep(line, number)
                if exceptions.within:
                    exceptions.line(line, number)
                if first := needle(padded := " " + line):
                    self._fired(padded, first, self._head(line[: mark.start()]), number)
                continue
            if first := needle(line, start - 1):
                self._fired(line, first, self._head(line[: mark.start()]), number)
        self.lines += number - self._number
        self.nccl_lines += nccl
        self._number = number

    def _plain(self, line: str, first: re.Match[str], number: int) -> None:
        """A line without a mark of NCCL, and a needle in it."""
        head = self._bare(line)
        if first[1] == BEGIN:
            self.exceptions.begin(line, head, number)
        elif first[1] in ENDINGS:
            self.exceptions.ended(line, head, number)
        self._fired(" " + line, first, head, number, bare=True)

    def _fired(self, line: str, first: re.Match[str], head: Head, number: int, bare: bool = False) -> None:
        """A line with a needle in it; a bare one has no mark of NCCL."""
        for rule, match in self.book.fired(line, first):
            if bare and rule.marked and number > self._report_until:
                continue
            if not (rule.since or rule.until) or rule.holds_for(self.statements.version):
                self.tally.add(rule, match, head, number)
                if rule.id == REPORT:
                    self._report_until = number + REPORT_LINES

    def _keep(self, line: str, number: int) -> None:
        """A line that says something for the first time."""
        for lines, key, part in self.statements.noted:
            if key not in lines:
                lines[key] = Raw(self._name, number, line[:WIDTH])
            if part is not None and "[20" in line:  # as NCCL's own stamp begins
                part.stamp = stamp_of(line)
        self.statements.noted.clear()

    def _head(self, text: str) -> Head:
        head = self._heads.get(text)
        if head is None:
            if len(self._heads) >= HEADS:
                self._heads.clear()
            head = self._heads[text] = parse_head(text, self._name, self._rank)
        return head

    def _bare(self, line: str) -> Head:
        """Who writes a line that is none of NCCL's."""
        named = rank_of(line)
        rank = self._rank if named is None else named
        return Head(rank=rank, source=(self._name, None, rank))


def _other(word: str) -> tuple[Say, bool] | None:
    """Words that are no fixed ones."""
    kind = word[:4]
    if kind == "nccl" or kind == "NCCL":
        return _NAMED if word.startswith("ncclComm") else _VERSION if word == kind else _VARIABLE
    if word[-1:] == ":":
        return _CALLED if word[:-1].isalpha() else None
    return _NUMBERED if word.isdecimal() else None


def rank_in_name(name: str) -> int | None:
    """ "rank-3.nccl", "train_rank3.log" → 3."""
    match = _RANK_IN_NAME.search(Path(name).name)
    return int(match[1]) if match else None


def read(paths: Iterable[str | Path], names: Iterable[str] | None = None) -> Reading:
    """Read files, each to its end. `names`: what they are called in findings. Raises RunError."""
    reading = Reading()
    paths = list(paths)
    for path, name in zip(paths, list(names or map(str, paths)), strict=True):
        reading.open(name)
        for lines in lines_of(Path(path)):
            reading.feed(lines)
    return reading
