"""Which rules of rules.toml and ends.toml a line of a log fires, and how often they fired."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, NamedTuple

from ...presets.finding import ROLES, SEVERITIES, Role, Severity
from ...presets.sanitize import clean_text
from .exits import NEEDLES as EXITS
from .heads import SOURCES, Head, Stamp, Thread, stamp_of
from .nccl_facts import FactLine

BEFORE = r"[ \[(<:,'/\"*|>\]]"
"""What may precede a needle: fewer places to match than all of a line."""

BEGIN = "Traceback (most recent call last)"
BOXED = "❱"
"""The line of source in a frame that rich prints, where the head of the box may be missing."""
STARTS = (BEGIN, 'File "', BOXED)
IGNORED = "Exception ignored in"
WHERE = "ray-actor-place"
"""The rule that only tells where a line's task ran: the line may tell more."""
RAY = ("world_rank=", "process group for: ")
OTHERS = (*STARTS, IGNORED, *RAY, *EXITS)
"""Needles of no rule: an exception follows in the next lines, or one that Python ignores; Ray says which process is
which rank; somebody reports how a process ended."""
Version = tuple[int, ...]
"""(2, 21, 5); () where unknown."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rule:
    """One entry of rules.toml, where every field is explained."""

    id: str
    severity: Severity
    role: Role
    layer: str
    confidence: str
    text: str
    remedy: str
    env: Mapping[str, str] = field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    """None: derived from many lines."""
    needles: tuple[str, ...] = ()
    since: Version = ()
    until: Version = ()
    unless: tuple[str, ...] = ()
    marked: bool = False
    template: str = ""
    """The text with values of the line in it, where the match has them all."""
    softer: str = ""
    """A match that holds this text is a fact, no cause: it is usual in some places."""
    place: int = 0
    """In the file, from 0."""

    def says(self, values: Mapping[str, str]) -> str:
        """What it means, with the values of a match."""
        try:
            return self.template.format_map(values) if self.template else self.text
        except KeyError:
            return self.text

    def holds_for(self, version: Version) -> bool:
        """Whether this version of NCCL may log it; an unknown version may."""
        if not version:
            return True
        return version >= self.since and (not self.until or version[: len(self.until)] <= self.until)


Hit = tuple[Rule, re.Match[str]]


class Book:
    """All rules, and their needles as one pattern."""

    def __init__(self, rules: Iterable[Rule], others: Iterable[str] = ()) -> None:
        """`others`: needles of lines that no rule reads."""
        self.rules = tuple(rules)
        by_needle: dict[str, set[Rule]] = {}
        own = {needle for rule in self.rules for needle in rule.needles}
        for needle in (*own, *others):
            by_needle[needle] = {
                rule for rule in self.rules if any(needle.startswith(start) for start in rule.needles)
            }
        self._of = {
            needle: tuple(sorted(rules, key=lambda rule: rule.place)) for needle, rules in by_needle.items()
        }
        self.needle = _search(own)
        """(line, start) → the first needle, where a character stands before it, or None."""
        self.plain = _search({*own, *others})
        """The same for lines that are none of NCCL's."""

    def fired(self, line: str, first: re.Match[str]) -> list[Hit]:
        """The rules that a line fires, from its first needle on. A rule yields to those in its `unless` that fire."""
        rules = self._of[first[1]]
        further = self.needle(line, first.end())
        if further is None and len(rules) == 1:
            (rule,) = rules
            match = rule.pattern.search(line) if rule.pattern is not None else None
            return [] if match is None else [(rule, match)]
        while further is not None:
            more = self._of[further[1]]
            if more is not rules:
                rules = rules + tuple(rule for rule in more if rule not in rules)
            further = self.needle(line, further.end())
        hits: list[Hit] = []
        for rule in rules:
            if rule.pattern is not None and (match := rule.pattern.search(line)) is not None:
                hits.append((rule, match))
        if len(hits) < 2:
            return hits
        ids = {rule.id for rule, _ in hits}
        return [(rule, match) for rule, match in hits if not ids.intersection(rule.unless)]


def _search(needles: Iterable[str]) -> Callable[..., re.Match[str] | None]:
    return re.compile(f"{BEFORE}(?=({_alternation(set(needles))}))").search


def _alternation(needles: Set[str]) -> str:
    """Needles as a pattern that tests each shared beginning once; the longest that fits matches."""
    groups: dict[str, set[str]] = {}
    for needle in sorted(needles - {""}):
        groups.setdefault(needle[0], set()).add(needle[1:])
    if not groups:
        return ""
    pattern = "|".join(re.escape(first) + _alternation(rests) for first, rests in groups.items())
    return f"(?:{pattern})?" if "" in needles else f"(?:{pattern})"


def parse_version(text: str) -> Version:
    """ "2.21.5+cuda12.4" → (2, 21, 5); () where there is none."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part[:9]) for part in match[0].split(".")) if match else ()


def parse(text: str) -> Book:
    """The rules of a text like rules.toml. Raises ValueError, KeyError or TypeError for one that is no such text."""
    return Book((_rule(place, table) for place, table in enumerate(tomllib.loads(text)["rule"])), OTHERS)


def _rule(place: int, table: Mapping[str, Any]) -> Rule:
    values = dict(table)
    if values["role"] not in ROLES or values["severity"] not in SEVERITIES:
        raise ValueError(f"rule {values['id']}: no such role or severity")
    for name in ("needles", "unless"):
        values[name] = tuple(values.get(name, ()))
    for name in ("since", "until"):
        values[name] = parse_version(values.get(name, ""))
    if "pattern" in values:
        values["pattern"] = re.compile(values["pattern"])
    return Rule(**values, place=place)


@functools.cache
def book() -> Book:
    """The rules that ship."""
    files = resources.files(__package__)
    return parse("".join(files.joinpath(name).read_text("utf-8") for name in ("rules.toml", "ends.toml")))


EVIDENCE = 3
"""Lines that are kept of a rule in one file."""
FILES = 1024
"""Files of which the first line that fired a rule is kept."""
WIDTH = 300


class Raw(NamedTuple):
    """A line as it was read, cleaned only once it is shown."""

    file: str
    line: int
    text: str

    def evidence(self) -> FactLine:
        """As it may be shown."""
        return FactLine(self.file, self.line, shown(self.text))


def shown(line: str) -> str:
    """A line without control characters, and cut."""
    return clean_text(line.strip(), WIDTH - 24)[:WIDTH]


@dataclass(slots=True)
class First:
    """The first line of a file that fired a rule."""

    file: int
    """Number of the file, in the order in which they were read."""
    evidence: FactLine
    head: Head
    stamp: Stamp | None
    values: dict[str, str] = field(default_factory=dict)
    softer: bool = False


@dataclass(slots=True)
class RuleHits:
    rule: Rule
    count: int = 0
    firsts: list[First] = field(default_factory=list)
    """One a file, in the order of the files."""
    further: list[FactLine] = field(default_factory=list)
    heads: dict[Thread, Head] = field(default_factory=dict)
    """Which hosts, processes and ranks log it."""
    files: set[int] = field(default_factory=set)
    """Of `firsts`: files may be read in turns."""

    @classmethod
    def of(cls, rule: Rule, first: First) -> RuleHits:
        """A rule that one line fired."""
        hits = cls(rule)
        hits.seen(first.head, first.file)
        hits.firsts.append(first)
        return hits

    def seen(self, head: Head, file: int) -> bool:
        """Count a hit; True if it is the file's first (its line is kept)."""
        self.count += 1
        if head.source not in self.heads and len(self.heads) < SOURCES:
            self.heads[head.source] = head
        if file in self.files or len(self.files) >= FILES:
            return False
        self.files.add(file)
        return True


@dataclass(slots=True)
class RankProgress:
    """How far a rank had come when it failed, from torch's report."""

    timed_out: bool = False
    seq: int | None = None
    """Of the collective that timed out; None also where torch does not tell it, as of the backend nccl2."""
    op: str = ""
    enqueued: int | None = None
    completed: int | None = None


class Tally:
    def __init__(self, book: Book) -> None:
        self.entries = [RuleHits(rule) for rule in book.rules]
        self.progress: dict[int, RankProgress] = {}
        """By rank."""
        self._file = 0
        self._name = ""

    def open(self, file: int, name: str) -> None:
        """The next lines are of this file: its number, from 1, and its name."""
        self._file, self._name = file, name

    def add(self, rule: Rule, match: re.Match[str], head: Head, number: int) -> None:
        """A line that fired a rule, and its number in the file."""
        entry = self.entries[rule.place]
        if host := _host(match):
            head = replace(head, host=host, source=(host, *head.source[1:]))
        if entry.seen(head, self._file):
            entry.firsts.append(_first(rule, match, head, self._file, self.evidence(match.string, number)))
        elif len(entry.further) < EVIDENCE - 1:
            entry.further.append(self.evidence(match.string, number))
        if rule.id in ("pt-watchdog", "pt-pg-status"):
            self._progressed(match, head)

    def evidence(self, line: str, number: int) -> FactLine:
        """A line of the file that is read now."""
        return FactLine(self._name, number, shown(line))

    def _progressed(self, match: re.Match[str], head: Head) -> None:
        """Keep each rank's first: later ones are of other groups, or follow from it."""
        values = match.groupdict()
        if values.get("rank"):
            rank: int | None = int(values["rank"][:9])
        else:
            rank = None if head.node else head.rank
        if rank is None or (rank not in self.progress and len(self.progress) >= SOURCES):
            return
        state = self.progress.setdefault(rank, RankProgress())
        if "seq" in values:
            state.timed_out = True
            if values["seq"] and state.seq is None:
                state.seq, state.op = int(values["seq"][:18]), values["op"] or ""
        elif "enqueued" in values and state.enqueued is None:
            state.enqueued, state.completed = int(values["enqueued"][:18]), int(values["completed"][:18])


def _host(match: re.Match[str]) -> str:
    """The host that a line names, as against that which wrote it; "" for none."""
    names = match.re.groupindex
    if "host" not in names:
        return ""
    return match["host"] or ("host_too" in names and match["host_too"]) or ""


def _first(rule: Rule, match: re.Match[str], head: Head, file: int, evidence: FactLine) -> First:
    values = {
        name.removesuffix("_too"): clean_text(value, 200)
        for name, value in match.groupdict().items()
        if value
    }
    softer = bool(rule.softer) and rule.softer in match[0]
    return First(file, evidence, head, stamp_of(match.string), values, softer)
