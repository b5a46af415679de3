"""Match log lines with the rules of rules.toml and ends.toml, and count the matches."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, NamedTuple

from ...presets.finding import ROLES, SEVERITIES, Role, Severity
from ...presets.sanitize import clean_text
from ..inrank.printed_traceback import IGNORED, STARTS
from .exits import NEEDLES as EXITS
from .heads import SOURCES, Head, Stamp, Thread, stamp_of
from .nccl_facts import FactLine

BEFORE = r"[ \[(<:,'/\"*|>\]]"
"""Characters that may precede a needle, which leaves fewer positions to match."""

WHERE = "ray-actor-place"
"""This rule only reports where a task ran. The line may contain more."""
RAY = ("world_rank=", "process group for: ")
EXIT_ASKED = "echo $?"
"""A copied terminal's command that prints the exit code of the command before it."""
OTHERS = (*STARTS, IGNORED, *RAY, *EXITS, EXIT_ASKED)
"""Needles without a rule: the start of an exception, an exception that Python ignores, Ray's mapping of processes to
ranks, reports of exits, and a shell's command that prints one."""
FINISHED = "job-finished"
"""The rule for a report that the job has ended well."""
DONE = "script-done"
"""The rule for a line that only says "done", which a shell also prints after a failed command."""
RESTARTED = "job-restarted"
"""The rule for a restart. Training after it takes back the failures before it."""
_IN_GROUP = re.compile(r"\[Rank (\d{1,9})\] Watchdog")
"""The rank in the process group of a collective that timed out."""
_NAME = re.compile(r"\{([a-z_]+)\}")
"""A placeholder in a remedy."""
Version = tuple[int, ...]
"""(2, 21, 5); () if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rule:
    """One entry of rules.toml, which explains every field."""

    id: str
    severity: Severity
    role: Role
    layer: str
    confidence: str
    text: str
    remedy: str
    env: Mapping[str, str] = field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    """None for a rule that is derived from many lines."""
    needles: tuple[str, ...] = ()
    since: Version = ()
    until: Version = ()
    unless: tuple[str, ...] = ()
    marked: bool = False
    template: str = ""
    """The text with placeholders, used if the match has all their values."""
    newest: bool = False
    """Whether the newest line of a file is kept instead of the first."""
    reports: bool = False
    """Whether it only reports that another process has failed."""
    softer: str = ""
    """A match that contains this text is a fact instead of a cause: it is normal in some setups."""
    retried: bool = False
    """Whether training steps after it show that the job survived it, by a retry or a fault-tolerant trainer."""
    place: int = 0
    """Index in the file, from 0."""

    @property
    def explains(self) -> bool:
        return self.role == "cause" and self.severity == "error"

    def advises(self, values: Mapping[str, str]) -> str:
        """Return the remedy with the names of a match; {host} without a value becomes HOST."""
        if "{" not in self.remedy:
            return self.remedy
        return _NAME.sub(lambda name: values.get(name[1]) or name[1].upper(), self.remedy)

    def says(self, values: Mapping[str, str]) -> str:
        """Return the rule's text with the values of a match."""
        try:
            return self.template.format_map(values) if self.template else self.text
        except KeyError:
            return self.text

    def holds_for(self, version: Version) -> bool:
        """Whether this NCCL version may log it. An unknown version may."""
        if not version:
            return True
        return version >= self.since and (not self.until or version[: len(self.until)] <= self.until)


Hit = tuple[Rule, re.Match[str]]


class Book:
    """All rules, and their needles as one pattern."""

    def __init__(self, rules: Iterable[Rule], others: Iterable[str] = ()) -> None:
        """`others`: needles of lines that no rule matches."""
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
        """(line, start) → match of the first needle after a BEFORE character, or None."""
        self.plain = _search({*own, *others})
        """`needle` for lines that are not NCCL's; includes `others`."""

    def has_any(self, line: str, first: re.Match[str], words: Collection[str]) -> bool:
        """Whether a line has one of these needles, from its first needle on."""
        needle: re.Match[str] | None = first
        while needle is not None and needle[1] not in words:
            needle = self.plain(line, needle.end())
        return needle is not None

    def fired(self, line: str, first: re.Match[str]) -> list[Hit]:
        """Return the rules that a line fires from its first needle on. A rule is dropped if its `unless` rule fires."""
        rules, end = self._of[first[1]], first.end()
        while (further := self.needle(line, end)) is not None:
            rules += tuple(rule for rule in self._of[further[1]] if rule not in rules)
            end = further.end()
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
    """Return needles as a pattern that tests each shared prefix once and matches the longest needle."""
    groups: dict[str, set[str]] = {}
    for needle in sorted(needles - {""}):
        groups.setdefault(needle[0], set()).add(needle[1:])
    if not groups:
        return ""
    pattern = "|".join(re.escape(first) + _alternation(rests) for first, rests in groups.items())
    return f"(?:{pattern})?" if "" in needles else f"(?:{pattern})"


def parse_version(text: str) -> Version:
    """ "2.21.5+cuda12.4" → (2, 21, 5); () without a version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part[:9]) for part in match[0].split(".")) if match else ()


def parse(text: str) -> Book:
    """Parse a text in the format of rules.toml. Raises ValueError, KeyError or TypeError if it is invalid."""
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
    """Return distui's own rules."""
    files = resources.files(__package__)
    return parse("".join(files.joinpath(name).read_text("utf-8") for name in ("rules.toml", "ends.toml")))


EVIDENCE = 3
"""Maximum number of evidence lines per rule, apart from the first line of each file."""
FILES = 1024
"""Maximum number of files whose first matching line is kept per rule."""
WIDTH = 300
END = 120
"""Characters of the end of a longer line that are shown: a reason is often there."""


class Raw(NamedTuple):
    """A line as it was read. It is cleaned only if it is shown."""

    file: str
    line: int
    text: str

    def evidence(self) -> FactLine:
        return FactLine(self.file, self.line, shown(self.text))


def shown(line: str) -> str:
    """Return a line without control characters, of a long one the beginning and the end."""
    line = line.strip()
    if len(line) > WIDTH:
        line = f"{line[: WIDTH - END - 3]} … {line[-END:]}"
    return clean_text(line, WIDTH)[:WIDTH]


@dataclass(slots=True)
class First:
    """The first line of a file that fired a rule."""

    file: int
    """Number of the file in reading order."""
    evidence: FactLine
    head: Head
    stamp: Stamp | None
    values: dict[str, str] = field(default_factory=dict)
    softer: bool = False

    @classmethod
    def of(cls, file: int, name: str, number: int, line: str, head: Head) -> First:
        """Return a line as evidence. `file`, `name`: number and name of its file."""
        return cls(file, FactLine(name, number, shown(line)), head, stamp_of(line))

    @property
    def position(self) -> tuple[int, int]:
        """Number of its file, and of the line in it."""
        return self.file, self.evidence.line

    def follows(self, other: First | None) -> bool:
        """Whether it is after the other line in the same file."""
        return other is not None and self.file == other.file and self.evidence.line > other.evidence.line

    def lines_left(self, lengths: Mapping[int, int]) -> int:
        """Return the number of lines after it. `lengths`: lines of each file so far."""
        return lengths.get(self.file, 0) - self.evidence.line


class LogLine(NamedTuple):
    """A line that is not NCCL's, with its writer."""

    file: int
    """Number of its file, from 1."""
    name: str
    """Name of its file."""
    number: int
    raw: str
    text: str
    """The line without its writer's prefixes."""
    head: Head
    stream: str = ""
    """Equal for all lines of one writer; see prefixes.Writer."""

    @property
    def first(self) -> First:
        """The line as evidence."""
        return First.of(self.file, self.name, self.number, self.raw, self.head)


@dataclass(slots=True)
class RuleHits:
    rule: Rule
    count: int = 0
    firsts: list[First] = field(default_factory=list)
    """One entry per file, in the order of the files."""
    further: list[FactLine] = field(default_factory=list)
    heads: dict[Thread, Head] = field(default_factory=dict)
    """Hosts, processes and ranks that log it."""
    files: set[int] = field(default_factory=set)
    """Files of `firsts`. Files may be read in turns."""

    @property
    def is_soft(self) -> bool:
        """Whether every line is normal in some setups."""
        return bool(self.firsts) and all(first.softer for first in self.firsts)

    @classmethod
    def of(cls, rule: Rule, first: First) -> RuleHits:
        """Return the hits of a rule that one line fired."""
        hits = cls(rule)
        hits.seen(first.head, first.file)
        hits.firsts.append(first)
        return hits

    def seen(self, head: Head, file: int) -> bool:
        """Count a hit. Return True if it is the file's first, whose line the caller keeps."""
        self.count += 1
        if head.source not in self.heads and len(self.heads) < SOURCES:
            self.heads[head.source] = head
        if file in self.files or len(self.files) >= FILES:
            return False
        self.files.add(file)
        return True


@dataclass(slots=True)
class RankProgress:
    """Progress of a rank at its failure, from torch's report."""

    timed_out: bool = False
    in_group: bool = False
    """Whether it timed out in a process group in which it has another number."""
    seq: int | None = None
    """Sequence number of the collective that timed out; None also if torch does not report it, as with backend nccl2."""
    op: str = ""
    enqueued: int | None = None
    completed: int | None = None

    def note(self, values: Mapping[str, str]) -> None:
        """Note the rank's first report. Later ones are of other groups or are consequences."""
        if "seq" in values:
            self.timed_out = True
            if values["seq"] and self.seq is None:
                self.seq, self.op = int(values["seq"][:18]), values["op"] or ""
        elif "enqueued" in values and self.enqueued is None:
            self.enqueued, self.completed = int(values["enqueued"][:18]), int(values["completed"][:18])


class Tally:
    def __init__(self, book: Book) -> None:
        self.entries = [RuleHits(rule) for rule in book.rules]
        self.progress: dict[int, RankProgress] = {}
        """Progress by rank."""
        self._file = 0
        self._name = ""

    def open(self, file: int, name: str) -> None:
        """Start a file with this number (from 1) and name."""
        self._file, self._name = file, name

    def hits(self, rule: str) -> RuleHits:
        return next(entry for entry in self.entries if entry.rule.id == rule)

    def add(self, rule: Rule, match: re.Match[str], head: Head, number: int) -> None:
        """Count a line that fired a rule. `number`: its line number in the file."""
        entry = self.entries[rule.place]
        if host := _host(match):
            head = replace(head, host=host, source=(host, *head.source[1:]))
        if entry.seen(head, self._file):
            entry.firsts.append(_first(rule, match, head, self._file, self.evidence(match.string, number)))
        elif rule.newest and entry.firsts and entry.firsts[-1].file == self._file:
            entry.firsts[-1] = _first(rule, match, head, self._file, self.evidence(match.string, number))
        elif len(entry.further) < EVIDENCE - 1:
            entry.further.append(self.evidence(match.string, number))
        if rule.id in ("pt-watchdog", "pt-pg-status"):
            self._progressed(match, head)

    def evidence(self, line: str, number: int) -> FactLine:
        """Return a line of the current file as evidence."""
        return FactLine(self._name, number, shown(line))

    def _progressed(self, match: re.Match[str], head: Head) -> None:
        values = match.groupdict()
        rank = None if head.node else head.rank
        if values.get("rank"):
            rank = int(values["rank"][:9])
        if rank is not None and (rank in self.progress or len(self.progress) < SOURCES):
            progress = self.progress.setdefault(rank, RankProgress())
            progress.note(values)
            named = _IN_GROUP.search(match.string)
            progress.in_group = progress.in_group or (named is not None and int(named[1]) != rank)


def _host(match: re.Match[str]) -> str:
    """Return the host that the line's text names, which may differ from the writer's host; "" without one."""
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
