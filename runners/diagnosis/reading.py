"""Read the lines of logs into fired rules, statements and exceptions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..inrank.printed_traceback import BEGIN, IGNORED, STARTS, unfolded
from ..inrank.tracebacks import shortened
from ..run.errors import RunError
from .error_lines import ErrorLines, is_alive, is_glog_warning, may_diverge, may_report
from .exceptions import SIGNS, Exceptions
from .exits import NEEDLES
from .file_names import NOBODYS, PROCESS, Whose, owners
from .going_on import GoingOn
from .heads import MARK, SOURCES, Head, old_mark, parse_head, stamp_of
from .log_sources import BrokenOff, Source, Unread
from .log_text import PART, PASTED, SEARCHED, apart, straight
from .nccl_facts import NcclFacts
from .prefixes import LEARN, Writer, learned, prompted, ray_rank, writer
from .recorder_dumps import DumpError, Recorders, bounded, rank_of_dump
from .rules import EXIT_ASKED, FINISHED, RESTARTED, WHERE, WIDTH, Book, LogLine, Raw, Tally, Version, book
from .short_logs import ShortLog
from .statement_facts import facts_of
from .statements import Statements

REPORT, REPORT_LINES = "pt-nccl-error", 64
"""torch's first line of an NCCL error report, and the number of lines after it that may contain NCCL's reason."""
REPORTS = (REPORT, "pt-remote-error", "pt-async-error")
"""Rules that also start such a report, if its first line is missing."""
ZERO = re.compile(r"0\s*$")
"""The exit code of a command that has ended well, as a shell prints it."""
PREFIX = 1000
"""Maximum length of a one-line traceback's prefix, which is repeated before each of its lines."""
HEADS = 1 << 14
"""Maximum number of cached heads. Threads write many lines with the same head."""

FINAL_LAYERS = ("job", "slurm", "kubernetes", "kernel")
"""Layers of rules whose errors end a job whatever its ranks still print."""
CRASHED = re.compile(
    r"Fatal Python error|terminate called|[Ss]egmentation fault|core dumped|Watchdog caught"
)
"""A process does not go on after such a line, whatever the others print."""

THREAD = "in _bootstrap_inner"
"""A frame of a thread whose exception ends only the thread."""

Handler = Callable[[Statements, Head, str], None]

_HANDLERS: dict[str, tuple[Handler, bool]] = {
    word: (handler, alone)
    for handler, alone, words in (
        (Statements.channel, True, "Channel Ring"),
        (Statements.trees, True, "Trees Tree"),
        (Statements.comm, True, "comm [Rank"),
        (Statements.connected, True, "Connected"),
        (Statements.timings, False, "Init"),
        (Statements.network, True, "Using Assigned"),
        (Statements.nvls, False, "NVLS"),
        (Statements.interfaces, False, "NET/IB NET/Socket Bootstrap Bootstrap:"),
        (Statements.plugin, False, "NET/Plugin NET/Plugin: NET/OFI P2P TUNER/Plugin: PROFILER/Plugin:"),
    )
    for word in words.split()
}
"""Handler of a message by its first word, and whether rules skip such messages."""


_NAMED = (Statements.comm, True)
_VERSION = (Statements.version_line, True)
_VARIABLE = (Statements.variable, False)
_CALLED = (Statements.collective, False)
_NUMBERED = (Statements.numbered, True)


RAISED_FROM = "Exception raised from "
"""torch prints this above a stack in C++, also below a warning."""


@dataclass(slots=True)
class _Place:
    """Reading position in a file. Files may be read in turns."""

    name: str = ""
    number: int = 0
    """Number of the file, from 1."""
    whose: Whose = NOBODYS
    """Rank and host in its name."""
    line: int = 0
    report_until: int = 0
    ignored: int = -9
    """Number of the newest line in which Python reports that it ignores an exception."""
    exit_asked: int = -9
    """Number of the newest line in which a copied terminal prints an exit code on the next one."""
    warned: int = -9
    """Number of the newest line with a warning of torch, which a stack in C++ may follow."""
    steps_awaited: int = 0
    """Number of training steps that would show that a failed attempt was retried."""
    going_on: GoingOn | None = None
    """What follows the newest error; None before the first one, and while further lines change nothing."""
    version: Version = ()
    prefix: re.Pattern[str] | None = None
    """Prefix of its lines; see prefixes.learned."""

    def count_step(self) -> bool:
        """Count a training step. Return True for the last one that shows that a failure was retried."""
        is_last = self.steps_awaited == 1
        self.steps_awaited = max(0, self.steps_awaited - 1)
        return is_last


class Reading:
    """Everything read from a set of logs."""

    def __init__(self, rules: Book | None = None, pasted: bool = False) -> None:
        self.book = rules or book()
        self.tally = Tally(self.book)
        self.statements = Statements()
        self.exceptions = Exceptions()
        self.error_lines, self.short = ErrorLines(), ShortLog(pasted)
        self.locals = self.exceptions.endings.locals
        self._ranks: set[int] = set()
        self.files: list[str] = []
        """Names in the order of opening."""
        self.unread = Unread()
        """Files that were not read."""
        self.recorders = Recorders()
        self.hosts: set[str] = set()
        """Hosts named by NCCL's lines and shell prompts."""
        self.lines = 0
        self.nccl_lines = 0
        self.trained: dict[int, int] = {}
        """Line of training after the newest failure that is retried, by file number."""
        self._going_on: dict[int, GoingOn] = {}
        """What follows the newest error, by number of the files with errors."""
        self._heads, self._places = dict[str, Head](), dict[str, _Place]()
        self._lengths: dict[int, int] = {}
        """Lines of the files that were left."""
        self._at = _Place()
        self._written: tuple[str, re.Pattern[str] | None, Writer] = "", None, writer("", None)
        """The newest line whose writer was requested, its file's prefix, and the writer."""

    def open(self, name: str, whose: Whose | None = None) -> None:
        """Start another file. `whose`: rank and host in its name, from file_names.owners."""
        whose = owners([name]).get(name, NOBODYS) if whose is None else whose
        self.files.append(name)
        self._begin(_Place(name, len(self.files), whose))
        if whose.rank is not None:
            self._heard(whose.rank, whose.node)

    def _heard(self, rank: int, node: str) -> None:
        if node:
            self.locals.add(node, rank)
        elif len(self._ranks) < SOURCES:
            self._ranks.add(rank)

    @property
    def ranks(self) -> set[int]:
        """Ranks whose lines or files were read."""
        return self._ranks | set(self.locals.ranks())

    def record(self, source: Source) -> None:
        """Read a flight recorder's dump. Raises RunError if the user named it and it cannot be read."""
        rank = rank_of_dump(source.name)
        try:
            if rank is None:
                raise DumpError("its name does not end with a rank")
            self.recorders.add(rank, source.name, bounded(source.stream.read))
        except (DumpError, BrokenOff) as error:
            text = f"{source.name} is not a dump of a flight recorder that can be read ({error})"
            if source.given:
                raise RunError(f"{text}: give only the logs") from None
            self.unread.sentences.append(text)
            return
        self.files.append(source.name)
        self._heard(rank, "")

    def switch_to(self, name: str, rank: int | None = None) -> None:
        """Continue a file at its last position, or open it if it is new."""
        if name == self._at.name:
            return
        self.leave()
        place = self._places.pop(name, None)
        if place is None:
            self.open(name, None if rank is None else Whose(rank))
        else:
            self._begin(place)

    def leave(self) -> None:
        """Remember the position in the newest file."""
        if self._at.name:
            self._at.version = self.statements.version
            self._places[self._at.name] = self._at
            self._lengths[self._at.number] = self._at.line
            self._at = _Place(line=self._at.line)

    def learn(self, lines: Sequence[str]) -> None:
        """Learn the prefix of this file's lines, ranks, and the hosts of a copied terminal, from its first lines."""
        self._at.prefix = learned(lines)
        for line in lines[:LEARN]:
            if "ank" in line and MARK.search(line) is None:
                self._rank_of(self._writer(line))
        if len(self.hosts) < SOURCES:
            self.hosts |= prompted(lines)

    @property
    def lengths(self) -> dict[int, int]:
        """Number of lines read so far, by file number."""
        return self._lengths | {self._at.number: self._at.line}

    @property
    def line(self) -> int:
        """Number of lines read from the newest file."""
        return self._at.line

    def skip(self, lines: int) -> None:
        """Count lines of the file that are not read."""
        self._at.line += lines

    def _begin(self, place: _Place) -> None:
        self._heads.clear()
        self._lengths[self._at.number] = self._at.line
        self.exceptions.open(place.number)
        self.error_lines.open(place.number)
        self.tally.open(place.number, place.name)
        self._at = place
        self.statements.version = place.version

    def feed(self, lines: Iterable[str], step: int = 1) -> None:
        """Read complete lines of the newest file without line ends. `step`: 0 for parts of one line."""
        number, nccl, find_mark, marked = self._at.line, 0, MARK.search, self._marked
        for line in lines:
            number += step
            if len(line) > PASTED:
                line = self._prepared(line)
            if PART in line:
                self._parts(line, number)
                continue
            mark = find_mark(line)
            if mark is None and ("] INFO " in line or " WARN " in line):
                mark = old_mark(line)
            if mark is not None:
                nccl += 1
                if nccl == 1:
                    self._head(line[: mark.start()])  # note the writer even if no rule reads its lines
                marked(line, mark, number)
            elif line:
                self._unmarked(line, number)
        self.lines += number - self._at.line
        self.nccl_lines += nccl
        self._at.line = number

    def _prepared(self, line: str) -> str:
        """Return a long line with PART between the lines that were joined in it, else without its middle."""
        line = apart(line)
        if PART in line or len(line) <= SEARCHED:
            return line
        return self._unfolded(straight(line)) or shortened(line, SEARCHED)

    def _marked(self, line: str, mark: re.Match[str], number: int) -> None:
        start, level, prefix = mark.end(), mark[1], line[: mark.start()]
        if level == "INFO":
            word = line[start : line.find(" ", start)]
            handler = _HANDLERS.get(word) or _other(word)
            if handler is not None:
                head = self._heads.get(prefix) or self._head(prefix)
                handler[0](self.statements, head, line[start:])
                if self.statements.noted:
                    self._keep(line, number)
                if handler[1]:
                    return
        elif level is None:
            self._version(line, mark, number)
            return
        first = self.book.needle(line, start - 1)
        if first is not None and self._fired(line, first, self._head(prefix), number):
            return
        if level == "WARN":
            place, text = self._at, line[mark.start() :]
            read = LogLine(place.number, place.name, number, line, text, self._head(prefix))
            self._report(read, has_rule=False)

    def _version(self, line: str, mark: re.Match[str], number: int) -> None:
        """Read a line with NCCL's version, which also ends one of torch's sentences."""
        self.statements.version_line(self._head(line[: mark.start()]), line[mark.end() :])
        if self.statements.noted:
            self._keep(line, number)
        if self.exceptions.within:
            self._traced(line, number)
        if first := self.book.needle(padded := " " + line):
            self._fired(padded, first, self._head(line[: mark.start()]), number)

    def _error(self, number: int, rank: int | None, is_final: bool = False) -> GoingOn:
        """Note an error of this file. The job may go on after it unless it is final."""
        going_on = self._going_on.get(self._at.number)
        if going_on is None:
            going_on = self._going_on[self._at.number] = GoingOn(number)
        self._at.going_on = going_on
        going_on.error(number, rank)
        going_on.is_final = going_on.is_final or is_final
        return going_on

    def _report(self, line: LogLine, has_rule: bool) -> None:
        """Read a line that may report an error, and note whether it does."""
        errors = self.error_lines
        kept = errors.count
        errors.line(line, has_rule)
        if errors.count == kept and not errors.full:
            return
        going_on = self._error(line.number, line.head.rank, CRASHED.search(line.text) is not None)
        if not has_rule and errors.ends_process:
            going_on.traceback(self._writer(line.raw).pid)

    def well_at(self) -> dict[int, int]:
        """Return the line that shows that the job went on after its errors or ended well, by file number.

        Return {} if a file with errors has no such line: the others may only have gone on for a while.
        """
        lengths = self.lengths
        well = {file: each.well_at(lengths.get(file, 0)) for file, each in self._going_on.items()}
        return well if all(well.values()) else {}

    def _parts(self, line: str, number: int) -> None:
        before, self._at.line = self._at.line, number
        self.feed(line.split(PART), step=0)
        self._at.line = before

    def _unmarked(self, line: str, number: int) -> None:
        """Read a line that is not NCCL's."""
        line = straight(line)
        if (going_on := self._at.going_on) is not None:
            rank = own_rank(self._writer(line)) if going_on.ranks else None
            if rank is None or rank in going_on.ranks:
                going_on.line(line, number)
            if going_on.is_decided(number):
                self._at.going_on = None
        if "[W" in line and is_glog_warning(line):
            self._at.warned = number
        elif number == self._at.warned + 1 and RAISED_FROM in line:
            return
        traced = self.exceptions.within and self._traced(line, number)
        if self.short.open and self.short.asks(line, number) and not traced:
            read = self._read(line, number)
            self.short.take(read)
            self._error(number, read.head.rank)
        if first := self.book.plain(" " + line):
            self._plain(line, first, number, traced)
        elif not traced:
            self._unknown(line, number)

    def _is_training(self, line: str, number: int) -> bool:
        """Whether a line is of a training, which shows whether it went on after an error, or has diverged."""
        errors = self.error_lines
        if may_diverge(line) and errors.diverged(self._read(line, number)):
            return True
        if not (errors.open_here or self.exceptions.pending or self._at.steps_awaited) or not is_alive(
            line
        ):
            return False
        if self._at.count_step():
            self.trained[self._at.number] = number
        errors.outlive()
        self.exceptions.alive(self._writer(line).stream)
        return True

    def _unknown(self, line: str, number: int) -> None:
        """Read a line without a needle: of a training, or of an error that no rule knows."""
        errors = self.error_lines
        if self._is_training(line, number):
            return
        if number == self._at.ignored + 1:
            return
        elif number == self._at.exit_asked + 1 and (zero := ZERO.match(line)):
            self.tally.add(self.tally.hits(FINISHED).rule, zero, self._read(line, number).head, number)
        elif number == errors.awaited or (not errors.full and may_report(line)):
            self._report(self._read(line, number), has_rule=False)

    def _unfolded(self, line: str) -> str | None:
        """Split a one-line traceback into lines with PART between them; None for any other line."""
        text = self._writer(line).text
        prefix = line.partition(text)[0]
        lines = unfolded(text) if len(prefix) < PREFIX else None
        return None if lines is None else PART.join(prefix + each for each in lines)

    def _traced(self, line: str, number: int) -> bool:
        """Whether a line belongs to an open traceback."""
        wrote = self._writer(line)
        is_traced = self.exceptions.line(wrote.text, line, wrote.stream, number)
        if is_traced:
            going_on = self._error(number, own_rank(wrote))
            if THREAD in line:
                going_on.caught(wrote.pid)
        return is_traced

    def _plain(self, line: str, first: re.Match[str], number: int, traced: bool) -> None:
        """Read a line with a needle that is not NCCL's."""
        read = self._read(line, number)
        ended = False
        if first[1] in STARTS:
            if (parts := self._unfolded(line)) is not None:
                self._parts(parts, number)
                return
            self._begin_traceback(read, first[1])
        elif first[1] == IGNORED:
            self.exceptions.ignore(read.stream, number)
            self._at.ignored = number
        elif first[1] == EXIT_ASKED:
            self._at.exit_asked = number
        elif self.book.has_any(" " + line, first, NEEDLES):
            ended = self.exceptions.ended(read)
        fired = self._fired(" " + line, first, read.head, number, bare=True)
        if fired:
            self.error_lines.explain(read)
        elif number not in (self._at.ignored + 1, self.exceptions.ignored_at) and (
            ended or traced or not self._is_training(line, number)
        ):
            self._report(read, has_rule=ended or traced)

    def _begin_traceback(self, read: LogLine, sign: str) -> None:
        """Read the first line of an exception. `sign`: what it begins with."""
        before, begun, _ = read.text.partition(BEGIN)
        if begun and may_report(before):
            self._report(read._replace(text=before.rstrip(": ")), has_rule=False)
        self.exceptions.begin(read)
        if sign == BEGIN:
            is_logged = self.error_lines.introduces(read)
            going_on = self._error(read.number, read.head.rank)
            if not is_logged:
                going_on.traceback(self._writer(read.raw).pid)

    def _fired(self, line: str, first: re.Match[str], head: Head, number: int, bare: bool = False) -> bool:
        """Return True if a rule explains the line. `bare`: the line is not NCCL's."""
        fired = False
        for rule, match in self.book.fired(line, first):
            if bare and rule.marked and number > self._at.report_until:
                continue
            if not (rule.since or rule.until) or rule.holds_for(self.statements.version):
                self.tally.add(rule, match, head, number)
                fired = fired or rule.id != WHERE
                if rule.severity == "error":
                    self._error(
                        number,
                        head.rank,
                        is_final=rule.layer in FINAL_LAYERS or CRASHED.search(line) is not None,
                    )
                if rule.retried or rule.explains or rule.reports or rule.id == RESTARTED:
                    self._at.steps_awaited = SIGNS
                    self.trained.pop(self._at.number, None)
                if rule.id in REPORTS:
                    self._at.report_until = number + REPORT_LINES
        return fired

    def _keep(self, line: str, number: int) -> None:
        """Keep a line that states a fact for the first time."""
        for lines, key, part in self.statements.noted:
            if key not in lines:
                lines[key] = Raw(self._at.name, number, line[:WIDTH])
            if part is not None and "[20" in line:  # NCCL's own timestamp begins like this
                part.stamp = stamp_of(line)
        self.statements.noted.clear()

    def _head(self, text: str) -> Head:
        head = self._heads.get(text)
        if head is None:
            if len(self._heads) >= HEADS:
                self._heads.clear()
            head = self._heads[text] = parse_head(
                text, self._at.name, None if self._at.whose.node else self._at.whose.rank
            )
            if head.host and len(self.hosts) < SOURCES:
                self.hosts.add(head.host)
        return head

    def _writer(self, line: str) -> Writer:
        """Return the writer of a line, cached for the newest line."""
        of, prefix, wrote = self._written
        if line is not of or prefix is not self._at.prefix:
            wrote = writer(line, self._at.prefix)
            self._written = line, self._at.prefix, wrote
        return wrote

    def _read(self, line: str, number: int) -> LogLine:
        """Return a line that is not NCCL's with its writer."""
        wrote = self._writer(line)
        rank, node = self._rank_of(wrote)
        host = wrote.host or self._at.whose.host
        head = Head(host=host, rank=rank, node=node, source=(host or self._at.name, None, rank))
        return LogLine(self._at.number, self._at.name, number, line, wrote.text, head, wrote.stream)

    def _rank_of(self, wrote: Writer) -> tuple[int | None, str]:
        """Return the rank of the line, else of its file's name, and the node if it is a local rank."""
        if wrote.rank is not None:
            self._map_local_rank(wrote, wrote.rank)
            self._heard(wrote.rank, "")
            return wrote.rank, ""
        if wrote.local is not None:
            self._heard(wrote.local, wrote.host or self._at.name)
            return wrote.local, wrote.host or self._at.name
        if not wrote.pid:
            return self._at.whose.rank, self._at.whose.node
        if (named := ray_rank(wrote)) is not None:
            self.locals.add(f"{PROCESS}{named[0]}", 0, named[1])
        return 0, f"{PROCESS}{wrote.pid}"

    def _map_local_rank(self, wrote: Writer, rank: int) -> None:
        """Note the local rank of a line with a global rank: of the line itself, its process, or its file's name."""
        own = self._at.whose
        if wrote.local is not None:
            self.locals.add(wrote.host or self._at.name, wrote.local, rank)
        elif wrote.pid:
            self.locals.add(f"{PROCESS}{wrote.pid}", 0, rank)
        elif own.node and own.rank is not None:
            self.locals.add(own.node, own.rank, rank)

    def facts(self) -> NcclFacts:
        """Return everything read so far in the form that nodes send."""
        return facts_of(self.statements, self.tally, self.lines, self.nccl_lines)


def own_rank(wrote: Writer) -> int | None:
    """Return the rank that a line names, else the local rank."""
    return wrote.local if wrote.rank is None else wrote.rank


def _other(word: str) -> tuple[Handler, bool] | None:
    """Return the handler for other first words."""
    kind = word[:4]
    if kind == "nccl" or kind == "NCCL":
        if word.startswith("ncclComm"):
            return _NAMED
        return _VERSION if word == kind else _VARIABLE
    if word[-1:] == ":":
        return _CALLED if word[:-1].isalpha() else None
    return _NUMBERED if word.isdecimal() else None
