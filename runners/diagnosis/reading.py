"""Read log files block by block into fired rules, statements and exceptions, and find the logs of a run."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..inrank.tracebacks import shortened
from ..logs import kept_pieces
from ..run import run_directories
from ..run.errors import RunError
from ..run.log_files import list_files, parse_file_id, whole_id
from .error_lines import ErrorLines, is_alive, may_diverge, may_report
from .exceptions import Exceptions
from .exits import NEEDLES
from .file_names import NOBODYS, PROCESS, Whose, older_attempts, owners, rank_in_name
from .heads import MARK, SOURCES, Head, Stamp, old_mark, parse_head, stamp_of
from .log_records import Records, learned_records
from .log_sources import BrokenOff, Named, Source, Unread, Waits, is_flat, plain_source, silently, sources
from .log_text import PART, PASTED, SAMPLE, SEARCHED, apart, is_binary, lines_in, straight
from .nccl_facts import (
    COMMUNICATORS,
    NODES,
    RANKS,
    RINGS,
    Communicator,
    FactLine,
    NcclFacts,
    NcclNode,
    Pair,
    folded_pairs,
    speed,
)
from .prefixes import LAYERS, LEARN, Writer, learned, prompted, ray_rank, writer
from .printed_traceback import unfolded
from .recorder_dumps import DumpError, Recorders, bounded, is_dump, rank_of_dump
from .rules import BEGIN, IGNORED, STARTS, WHERE, WIDTH, Book, Raw, Tally, Version, book
from .short_logs import ShortLog
from .statements import CommunicatorPart, NodePart, Statements

REPORT, REPORT_LINES = "pt-nccl-error", 64
"""torch's first line of an NCCL error report, and the number of lines after it that may contain NCCL's reason."""
REPORTS = (REPORT, "pt-remote-error", "pt-async-error")
"""Rules that also start such a report, if its first line is missing."""
PREFIX = 1000
"""Maximum length of a one-line traceback's prefix, which is repeated before each of its lines."""
HEADS = 1 << 14
"""Maximum number of cached heads. Threads write many lines with the same head."""

Handler = Callable[[Statements, Head, str], None]

_HANDLERS: dict[str, tuple[Handler, bool]] = {
    word: (handler, alone)
    for handler, alone, words in (
        (Statements.channel, True, "Channel Ring"),
        (Statements.trees, True, "Trees Tree"),
        (Statements.comm, True, "comm [Rank"),
        (Statements.connected, True, "Connected"),
        (Statements.timings, True, "Init"),
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
    version: Version = ()
    prefix: re.Pattern[str] | None = None
    """Prefix of its lines; see prefixes.learned."""


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
            text = f"{source.name} is no dump of a flight recorder that can be read ({error})"
            if source.given:
                raise RunError(f"{text}: give the logs alone") from None
            self.unread.sentences.append(text)
            return
        self.files.append(source.name)
        self._heard(rank, "")

    def turn_to(self, name: str, rank: int | None = None) -> None:
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

    def copied_from(self, hosts: set[str]) -> None:
        """Add hosts from shell prompts in this file."""
        if len(self.hosts) < SOURCES:
            self.hosts |= hosts

    def prefixed(self, prefix: re.Pattern[str] | None) -> None:
        """Set the prefix of this file's lines; see prefixes.learned."""
        self._at.prefix = prefix

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
        self.exceptions.open(place.number, place.name)
        self.error_lines.open(place.number, place.name)
        self.tally.open(place.number, place.name)
        self._at = place
        self.statements.version = place.version

    def feed(self, lines: Iterable[str], step: int = 1) -> None:  # noqa: C901
        """Read complete lines of the newest file without line ends. `step`: 0 for parts of one line."""
        number, nccl = self._at.line, 0
        mark_in, needle, handlers = MARK.search, self.book.needle, _HANDLERS
        statements, noted = self.statements, self.statements.noted
        for line in lines:
            number += step
            if not line:
                continue
            if len(line) > PASTED:
                line = apart(line)
            if PART in line:
                self._parts(line, number)
                continue
            if len(line) > SEARCHED:
                if (parts := self._unfolded(straight(line))) is not None:
                    self._parts(parts, number)
                    continue
                line = shortened(line, SEARCHED)
            mark = mark_in(line)
            if mark is None and ("] INFO " in line or " WARN " in line):
                mark = old_mark(line)
            if mark is None:
                self._unmarked(line, number)
                continue
            nccl += 1
            if nccl == 1:
                self._head(line[: mark.start()])  # note the writer even if no rule reads its lines
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
            elif level is None:
                self._version(line, mark, number)
                continue
            first = needle(line, start - 1)
            if first is not None and self._fired(line, first, self._head(line[: mark.start()]), number):
                continue
            if level == "WARN":
                head = self._head(line[: mark.start()])
                self.error_lines.line(line, line[mark.start() :], head, number, has_rule=False)
        self.lines += number - self._at.line
        self.nccl_lines += nccl
        self._at.line = number

    def _version(self, line: str, mark: re.Match[str], number: int) -> None:
        """Read a line with NCCL's version, which also ends one of torch's sentences."""
        self.statements.version_line(self._head(line[: mark.start()]), line[mark.end() :])
        if self.statements.noted:
            self._keep(line, number)
        if self.exceptions.within:
            self._traced(line, number)
        if first := self.book.needle(padded := " " + line):
            self._fired(padded, first, self._head(line[: mark.start()]), number)

    def _parts(self, line: str, number: int) -> None:
        """Read a line that consists of several."""
        before, self._at.line = self._at.line, number
        self.feed(line.split(PART), step=0)
        self._at.line = before

    def _unmarked(self, line: str, number: int) -> None:
        """Read a line that is not NCCL's."""
        line = straight(line)
        if self.short.open and self.short.asks(line, number):
            self.short.take(line, number, (self._at.number, self._at.name), *self._bare(line))
        traced = self.exceptions.within and self._traced(line, number)
        if first := self.book.plain(" " + line):
            self._plain(line, first, number, traced)
        elif traced or (may_diverge(line) and self.error_lines.diverged(line, number, *self._bare(line))):
            return
        elif (self.error_lines.open_here or self.exceptions.pending) and is_alive(line):
            self.error_lines.outlive()
            self.exceptions.alive(self._writer(line).stream)
        elif number == self.error_lines.awaited or (not self.error_lines.full and may_report(line)):
            head, wrote = self._bare(line)
            self.error_lines.line(line, wrote.text, head, number, has_rule=False)

    def _unfolded(self, line: str) -> str | None:
        """Split a one-line traceback into lines with PART between them; None for any other line."""
        text = self._writer(line).text
        prefix = line.partition(text)[0]
        return unfolded(text, prefix) if len(prefix) < PREFIX else None

    def _traced(self, line: str, number: int) -> bool:
        """Whether a line belongs to an open traceback."""
        wrote = self._writer(line)
        return self.exceptions.line(wrote.text, line, wrote.stream, number)

    def _plain(self, line: str, first: re.Match[str], number: int, traced: bool) -> None:
        """Read a line with a needle that is not NCCL's."""
        head, wrote = self._bare(line)
        ended = False
        if first[1] in STARTS:
            if (parts := self._unfolded(line)) is not None:
                self._parts(parts, number)
                return
            before, begun, _ = wrote.text.partition(BEGIN)
            if begun and may_report(before):
                self.error_lines.line(line, before.rstrip(": "), head, number, has_rule=False)
            self.exceptions.begin(wrote.text, line, wrote.stream, head, number)
            if first[1] == BEGIN:
                self.error_lines.introduces(number)
        elif first[1] == IGNORED:
            self.exceptions.ignore(wrote.stream, number)
        elif first[1] in NEEDLES:
            ended = self.exceptions.ended(wrote.text, line, head, number)
        if not self._fired(" " + line, first, head, number, bare=True):
            self.error_lines.line(line, wrote.text, head, number, has_rule=ended or traced)

    def _fired(self, line: str, first: re.Match[str], head: Head, number: int, bare: bool = False) -> bool:
        """Return True if a rule explains the line. `bare`: the line is not NCCL's."""
        fired = False
        for rule, match in self.book.fired(line, first):
            if bare and rule.marked and number > self._at.report_until:
                continue
            if not (rule.since or rule.until) or rule.holds_for(self.statements.version):
                self.tally.add(rule, match, head, number)
                fired = fired or rule.id != WHERE
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

    def _bare(self, line: str) -> tuple[Head, Writer]:
        """Return head and writer of a line that is not NCCL's."""
        wrote = self._writer(line)
        rank, node = self._rank_of(wrote)
        host = wrote.host or self._at.whose.host
        return Head(host=host, rank=rank, node=node, source=(host or self._at.name, None, rank)), wrote

    def _rank_of(self, wrote: Writer) -> tuple[int | None, str]:
        """Return the rank of the line, else of its file's name, and the node if it is a local rank."""
        own, process = self._at.whose, f"{PROCESS}{wrote.pid}"
        if wrote.rank is not None:
            if wrote.local is not None:
                self.locals.add(wrote.host or self._at.name, wrote.local, wrote.rank)
            elif wrote.pid:
                self.locals.add(process, 0, wrote.rank)
            elif own.node and own.rank is not None:
                self.locals.add(own.node, own.rank, wrote.rank)
            self._heard(wrote.rank, "")
            return wrote.rank, ""
        if wrote.local is not None:
            self._heard(wrote.local, wrote.host or self._at.name)
            return wrote.local, wrote.host or self._at.name
        if not wrote.pid:
            return own.rank, own.node
        if (named := ray_rank(wrote)) is not None:
            self.locals.add(f"{PROCESS}{named[0]}", 0, named[1])
        return 0, process

    def facts(self) -> NcclFacts:
        """Return everything read so far in the form that nodes send."""
        statements, raw = self.statements, dict[str, FactLine]()
        nodes = [_node(node, raw) for node in list(statements.nodes.values())[:NODES]]
        parts = statements.sessions.all()
        counted: Counter[int | None] = Counter()
        communicators = []
        for comm in parts:
            name = comm.id
            if not name and comm.nranks is not None:
                counted[comm.nranks] += 1
                name = f"{comm.nranks} ranks, no. {counted[comm.nranks]}"
            communicators.append((name, comm))
        # The sort is stable: communicators of equal size stay in the order of their init.
        communicators.sort(key=lambda each: -(each[1].nranks or 0))
        kept = tuple(_communicator(name, comm, raw) for name, comm in communicators[:COMMUNICATORS])
        for entry in self.tally.entries:
            if entry.firsts:
                raw[f"rule:{entry.rule.id}"] = entry.firsts[0].evidence
        return NcclFacts(
            nodes=tuple(nodes), communicators=kept, lines=self.lines, nccl_lines=self.nccl_lines, raw=raw
        )


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


class NoTextError(RunError):
    """A file is not a log."""


def lines_of(source: Source, refuse: bool = True) -> Iterator[list[str]]:
    """Yield lines of a log in portions; of a long line only its beginning. Raises RunError and BrokenOff.

    `refuse`: raise NoTextError for a binary file, else replace invalid bytes.
    """
    begun = not refuse

    def check(block: bytes) -> None:
        nonlocal begun
        if not begun and is_binary(block[:SAMPLE]):
            raise NoTextError(f"file {source.name} is not text: give the logs themselves")
        begun = begun or bool(block)

    return lines_in(source.stream.read, check)


def read_all(files: Iterable[Named], waits: Waits = silently) -> Reading:
    """Read every log of these files, archives and directories to its end. Raises RunError."""
    reading, files = Reading(pasted=True), list(files)
    names = [name for file in files for name in _names(*file)]
    whose, older = owners(names), older_attempts(names)
    for source in sources(files, reading.unread, waits):
        if source.name in older and not source.given:
            reading.unread.older.append(source.name)
            continue
        if is_dump(source.stream.peek()):
            reading.record(source)
            continue
        try:
            _fed(reading, source, lines_of(source), whose.get(source.name, NOBODYS))
        except NoTextError:
            if source.given:
                raise
            reading.unread.no_logs.append(source.name)
    if not reading.lines and not reading.recorders.names and reading.unread.sentences:
        raise RunError(reading.unread.sentences[0])
    return reading


def _names(name: str, path: Path) -> list[str]:
    """Return the names of the logs in a file, if it can be read twice."""
    return [name] if is_flat(path) else [source.name for source in sources([(name, path)], Unread())]


def read_run(files: Iterable[Named], stopped: Callable[[], bool] = bool) -> tuple[Reading, list[str]]:
    """Read a run's logs, whatever bytes the ranks wrote. Also return a sentence per unreadable file."""
    reading, unread = Reading(), list[str]()
    for name, path in files:
        try:
            with plain_source(name, path) as source:
                whose = Whose(rank_in_name(name))
                if not _fed(reading, source, lines_of(source, refuse=False), whose, stopped):
                    break
        except RunError as error:
            unread.append(str(error))
    return reading, [*unread, *reading.unread]


def _fed(
    reading: Reading,
    source: Source,
    blocks: Iterator[list[str]],
    whose: Whose,
    stopped: Callable[[], bool] = bool,
) -> bool:
    """Feed one log. Return False once `stopped` returns True; it is called for each block.

    Raises RunError if the user named the log and nothing of it can be read.
    """
    new = reading.files[-1:] != [source.name]
    layers: list[Records] = []
    try:
        for lines in _whole_enough(blocks):
            if stopped():
                return False
            if new:
                reading.open(source.name, whose)
                layers = _learned_layers(lines)
            for layer in layers:
                lines = layer.plain(lines)
            if new:
                some = flat(lines)
                reading.prefixed(learned(some))
                reading.copied_from(prompted(some))
                new = False
            reading.feed(lines)
    except BrokenOff as error:
        if new and source.given:
            raise RunError(f"{source.name} cannot be read ({error}): have it copied again") from None
        line = 0 if new else reading.line
        reading.unread.sentences.append(
            f"{source.name} breaks off after line {line} ({error}): have it copied again"
        )
    if new and source.name not in reading.files:
        reading.open(source.name, whose)
    reading.feed([line for layer in layers for line in layer.rest()], step=0)
    if any(layer.newest_first for layer in layers):
        reading.unread.sentences.append(
            f"{source.name} has its newest lines first: export it in order of time"
        )
    return True


def _learned_layers(lines: list[str]) -> list[Records]:
    """Return the record formats of the lines, the outermost first."""
    layers: list[Records] = []
    some = flat(lines)[:LEARN]
    while len(layers) < LAYERS and (trial := learned_records(some)) is not None:
        layers.append(trial.again())
        some = flat(trial.plain(some))
    return layers


def flat(lines: Iterable[str]) -> list[str]:
    """Return some of the lines, with each part of a line as a separate one."""
    return [part for line in islice(lines, 4 * LEARN) for part in line.split(PART)]


def _whole_enough(blocks: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the blocks, with enough lines in the first to learn the format: a pipe returns single lines."""
    first: list[str] = []
    broken: BrokenOff | None = None
    try:
        for lines in blocks:
            first += lines
            if len(first) >= LEARN:
                break
    except BrokenOff as error:
        broken = error
    if first:
        yield first
    if broken is not None:
        raise broken
    yield from blocks


def logs_of_run(entry: run_directories.Entry, attempt: int | None = None) -> list[Named]:
    """Return an attempt's logs (None: the newest) on this machine: of the run, its parts, and the hub's copies."""
    paths: dict[str, list[Path]] = {file.id: [entry.path / file.id] for file in list_files(entry.path)}
    for part in run_directories.parts(entry.record.run) if entry.record.kind == "hub" else ():
        node = part.record.node
        paths |= {whole_id(file.id, node): [part.path / file.id] for file in list_files(part.path)}
    for kept, held in kept_pieces.pieces(entry.path).items():
        paths.setdefault(kept, [entry.path / kept_pieces.FOLDER / f"{kept}@{begin}" for begin in held])
    logs = [
        file for name in paths if (file := parse_file_id(name)) is not None and file.attempt is not None
    ]
    newest = max((file.attempt or 0 for file in logs), default=0) if attempt is None else attempt
    chosen = sorted((file for file in logs if file.attempt == newest), key=lambda file: file.order)
    return [(file.id, path) for file in chosen for path in paths[file.id]]


def _node(node: NodePart, raw: dict[str, FactLine]) -> NcclNode:
    name = node.host or node.file
    for key, line in node.lines.items():  # a second network's line is `network:<host>:Socket`
        raw[":".join((key.partition(" ")[0], name, *key.split(" ", 1)[1:]))] = line.evidence()
    first = node.lines.get("host")
    file_id = None if first is None else parse_file_id(first.file)
    address = node.interfaces.get(node.bootstrap, "")
    return NcclNode(
        host=name,
        node=None if file_id is None else file_id.node,
        versions=tuple(sorted(node.versions)),
        networks=tuple(node.named_networks()),
        bootstrap=":".join(text for text in (node.bootstrap, address) if text),
        interfaces=tuple(f"{face}:{its}" for face, its in node.interfaces.items()),
        hcas=dict(node.hcas),
        plugins=tuple(sorted(node.plugins)),
        env=dict(node.env),
    )


def _communicator(name: str, comm: CommunicatorPart, raw: dict[str, FactLine]) -> Communicator:
    for key, line in comm.lines.items():
        what, _, kind = key.partition(":")
        raw[f"{what}:{name}" + (f":{kind}" if kind else "")] = line.evidence()
    members = list(comm.ranks.values())[:RANKS]
    hosts: dict[str, list[int]] = {}
    for part in members:
        hosts.setdefault(part.host, []).append(part.rank)
    owners = {part.rank: part.host for part in members}
    pairs, folded = folded_pairs(_pairs(comm), owners)
    began = ((part.rank, _unix(part.stamp)) for part in members)
    nvls_channels = comm.channels.get("nvls")
    uses_nvls = None if nvls_channels is None else bool(nvls_channels)
    return Communicator(
        id=name,
        nranks=comm.nranks,
        nnodes=comm.nnodes,
        hosts={host: tuple(sorted(ranks)) for host, ranks in sorted(hosts.items())},
        stages={part.rank: part.stage.name.lower() for part in members},
        began={rank: at for rank, at in began if at is not None},
        inits=tuple(comm.timed.values())[:RANKS],
        pairs=pairs,
        rings=_rings(comm),
        ring_count=comm.channels.get("coll") or len(comm.rings),
        trees=comm.trees,
        channels=dict(comm.channels),
        nvls=True if comm.nvls else uses_nvls,
        tuning=dict(comm.tuning),
        collectives=dict(comm.collectives),
        folded=folded,
    )


def _pairs(comm: CommunicatorPart) -> Iterable[Pair]:
    """Yield one entry per transport of a pair, the fastest first."""
    for (source, target), kinds in comm.pairs.items():
        for kind in sorted(kinds, key=speed):
            yield Pair(source, target, kind)


def _rings(comm: CommunicatorPart) -> tuple[tuple[int, ...], ...]:
    """Return the different complete rings. Until 2.28 NCCL truncates long ones."""
    orders = dict.fromkeys(tuple(map(int, text.split())) for _, text in sorted(comm.rings.items()))
    return tuple(order for order in orders if len(order) == comm.nranks)[:RINGS]


def _unix(stamp: Stamp | None) -> float | None:
    """Convert NCCL's timestamp with this machine's clock and time zone; None for other stamps."""
    if stamp is None or stamp.kind != "nccl":
        return None
    whole, _, part = stamp.text.partition(".")
    try:
        return time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        return None
