"""Reads log files, block by block, into rules that fired, statements and exceptions; and where a run's logs are."""

from __future__ import annotations

import gzip
import os
import re
import stat
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import run_directories
from ..errors import RunError
from ..logs import follow
from ..logs.log_files import list_files, parse_file_id, whole_id
from .error_lines import ALIVE, ErrorLines, may_report
from .exceptions import Exceptions
from .exits import NEEDLES
from .heads import MARK, OLD, SOURCES, Head, Stamp, learned, parse_head, stamp_of, writer
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
from .rules import BEGIN, WIDTH, Book, Raw, Tally, Version, book
from .statements import CommunicatorPart, NodePart, Statements

REPORT, REPORT_LINES = "pt-nccl-error", 64
"""With what torch begins its report of an error of NCCL, and in how many lines NCCL's own reason follows."""
HEADS = 1 << 14
"""Heads that are remembered: threads write many lines with the same."""

_CODES = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Of terminals: colours, cursor, titles (ECMA-48)."""
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)

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
"""First word of a message → its handler, and whether rules ignore it."""


_NAMED = (Statements.comm, True)
_VERSION = (Statements.version_line, True)
_VARIABLE = (Statements.variable, False)
_CALLED = (Statements.collective, False)
_NUMBERED = (Statements.numbered, True)


@dataclass(slots=True)
class _Place:
    """How far a file is read; files may be read in turns."""

    name: str = ""
    number: int = 0
    """Of the file, from 1."""
    rank: int | None = None
    line: int = 0
    report_until: int = 0
    version: Version = ()
    prefix: re.Pattern[str] | None = None
    """With what its lines begin; see heads.learned."""


class Reading:
    """Everything that was read of some logs."""

    def __init__(self, rules: Book | None = None) -> None:
        self.book = rules or book()
        self.tally = Tally(self.book)
        self.statements = Statements()
        self.exceptions = Exceptions()
        self.error_lines = ErrorLines()
        self.ranks: set[int] = set()
        """Ranks whose lines or files were read."""
        self.files: list[str] = []
        """Names, in the order in which they were opened."""
        self.lines = 0
        self.nccl_lines = 0
        self._heads: dict[str, Head] = {}
        self._places: dict[str, _Place] = {}
        self._lengths: dict[int, int] = {}
        """Of files that were left."""
        self._at = _Place()

    def open(self, name: str, rank: int | None = None) -> None:
        """The next lines are of another file, or the log of this rank."""
        self.files.append(name)
        self._begin(_Place(name, len(self.files), rank_in_name(name) if rank is None else rank))

    def turn_to(self, name: str, rank: int | None = None) -> None:
        """The next lines continue this file where it was left; a new one is opened."""
        if name == self._at.name:
            return
        self.leave()
        place = self._places.pop(name, None)
        if place is None:
            self.open(name, rank)
        else:
            self._begin(place)

    def leave(self) -> None:
        """Remember how far the newest file is read."""
        if self._at.name:
            self._at.version = self.statements.version
            self._places[self._at.name] = self._at
            self._lengths[self._at.number] = self._at.line
            self._at = _Place(line=self._at.line)

    def prefixed(self, prefix: re.Pattern[str] | None) -> None:
        """With what the lines of this file begin; see heads.learned."""
        self._at.prefix = prefix

    @property
    def lengths(self) -> dict[int, int]:
        """By number of a file its lines so far."""
        return self._lengths | {self._at.number: self._at.line}

    def skip(self, lines: int) -> None:
        """Count lines of the file that are left out."""
        self._at.line += lines

    def _begin(self, place: _Place) -> None:
        self._heads.clear()
        self._lengths[self._at.number] = self._at.line
        self.exceptions.open(place.number, place.name)
        self.error_lines.open(place.number, place.name)
        self.tally.open(place.number, place.name)
        self._at = place
        if place.rank is not None and len(self.ranks) < SOURCES:
            self.ranks.add(place.rank)
        self.statements.version = place.version

    def feed(self, lines: Iterable[str]) -> None:
        """Whole lines of the file that was opened last, without their ends."""
        number, nccl = self._at.line, 0
        mark_in, needle, handlers = MARK.search, self.book.needle, _HANDLERS
        statements, noted, exceptions = self.statements, self.statements.noted, self.exceptions
        for line in lines:
            number += 1
            if not line:
                continue
            mark = mark_in(line)
            if mark is None and ("] INFO " in line or "] WARN " in line):
                mark = OLD.match(line)
            if mark is None:
                self._unmarked(line, number)
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
            elif level == "WARN":
                head = self._head(line[: mark.start()])
                self.error_lines.line(line, line[mark.start() :], head, number, has_rule=False)
        self.lines += number - self._at.line
        self.nccl_lines += nccl
        self._at.line = number

    def _unmarked(self, line: str, number: int) -> None:
        """A line that is none of NCCL's."""
        if "\x1b" in line:
            line = _CODES.sub("", line)
        traced = self.exceptions.within and self.exceptions.line(line, number)
        if first := self.book.plain(" " + line):
            self._plain(line, first, number)
        elif traced:
            return
        elif self.error_lines.open_here and ALIVE.search(line):
            self.error_lines.outlive()
        elif not self.error_lines.full and may_report(line):
            head, text = self._bare(line)
            self.error_lines.line(line, text, head, number, has_rule=False)

    def _plain(self, line: str, first: re.Match[str], number: int) -> None:
        """A line without a mark of NCCL, and a needle in it."""
        head, text = self._bare(line)
        if first[1] == BEGIN:
            self.exceptions.begin(line, head, number)
        elif first[1] in NEEDLES:
            self.exceptions.ended(text, line, head, number)
        if not self._fired(" " + line, first, head, number, bare=True):
            self.error_lines.line(line, text, head, number, has_rule=first[1] in NEEDLES)

    def _fired(self, line: str, first: re.Match[str], head: Head, number: int, bare: bool = False) -> bool:
        """A line with a needle in it; a bare one has no mark of NCCL. True where a rule reads it."""
        fired = False
        for rule, match in self.book.fired(line, first):
            if bare and rule.marked and number > self._at.report_until:
                continue
            if not (rule.since or rule.until) or rule.holds_for(self.statements.version):
                self.tally.add(rule, match, head, number)
                fired = True
                if rule.id == REPORT:
                    self._at.report_until = number + REPORT_LINES
        return fired

    def _keep(self, line: str, number: int) -> None:
        """A line that states something for the first time."""
        for lines, key, part in self.statements.noted:
            if key not in lines:
                lines[key] = Raw(self._at.name, number, line[:WIDTH])
            if part is not None and "[20" in line:  # as NCCL's own stamp begins
                part.stamp = stamp_of(line)
        self.statements.noted.clear()

    def _head(self, text: str) -> Head:
        head = self._heads.get(text)
        if head is None:
            if len(self._heads) >= HEADS:
                self._heads.clear()
            head = self._heads[text] = parse_head(text, self._at.name, self._at.rank)
        return head

    def _bare(self, line: str) -> tuple[Head, str]:
        """Who writes a line that is none of NCCL's, and what it says."""
        named, host, text = writer(line, self._at.prefix)
        rank = self._at.rank if named is None else named
        if rank is not None and len(self.ranks) < SOURCES:
            self.ranks.add(rank)
        return Head(host=host, rank=rank, source=(host or self._at.name, None, rank)), text

    def facts(self) -> NcclFacts:
        """Everything that was read so far, as NcclFacts that travel."""
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
        # Stable: equal ones stay in the order of their init.
        communicators.sort(key=lambda each: -(each[1].nranks or 0))
        kept = tuple(_communicator(name, comm, raw) for name, comm in communicators[:COMMUNICATORS])
        for entry in self.tally.entries:
            if entry.firsts:
                raw[f"rule:{entry.rule.id}"] = entry.firsts[0].evidence
        return NcclFacts(
            nodes=tuple(nodes), communicators=kept, lines=self.lines, nccl_lines=self.nccl_lines, raw=raw
        )


def _other(word: str) -> tuple[Handler, bool] | None:
    """The handler for other first words."""
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


BLOCK = 1 << 20
LONGEST = 1 << 16
"""Bytes of a line that are read."""

_ELSE = bytes(range(9)) + bytes(range(14, 27)) + bytes(range(28, 32))
"""Bytes that no text holds."""


def lines_of(path: Path, refuse: bool = True) -> Iterator[list[str]]:
    """Lines of a text file, some at a time; of a long one its beginning. Raises RunError.

    `refuse`: what begins as no text does; else its bytes that are none are replaced.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(_why(path, error)) from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise RunError(f"{path} is a directory: name the log files in it, as in {path}/*.log")
        yield from lines_in(partial(os.read, descriptor, BLOCK), _Text(path, refuse).check)
    except OSError as error:
        raise RunError(_why(path, error)) from None
    finally:
        os.close(descriptor)


def lines_in(read: Callable[[], bytes], check: Callable[[bytes], None]) -> Iterator[list[str]]:
    """Lines of a text that `read` gives in blocks, b"" at its end; `check` sees each block before it is used."""
    rest, skipping = b"", False
    while block := read():
        check(block)
        if skipping:  # the rest of a line whose beginning is in `rest`
            if (at := block.find(b"\n")) < 0:
                continue
            block, skipping = block[at:], False
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            yield decoded(rest + whole)
            rest = tail
        else:
            rest += tail
        if len(rest) > LONGEST:
            rest, skipping = rest[:LONGEST], True
    if rest:
        yield decoded(rest)


def decoded(data: bytes) -> list[str]:
    """Whole lines, each cut where it is too long."""
    lines = data.replace(b"\r\n", b"\n").decode("utf-8", "replace").split("\n")
    if len(data) > LONGEST and max(map(len, lines)) > LONGEST:
        return [line[:LONGEST] for line in lines]
    return lines


class _Text:
    """Whether a file is one, by how it begins."""

    def __init__(self, path: Path, refuse: bool) -> None:
        self._path, self._begun = path, not refuse

    def check(self, block: bytes) -> None:
        if not self._begun and _binary(block[:8192]):
            raise RunError(f"file {self._path} is no text: give the logs themselves, unpacked")
        self._begun = True


def _binary(sample: bytes) -> bool:
    """Whether more than a few bytes are none of a text."""
    return len(sample) - len(sample.translate(None, _ELSE)) > len(sample) // 20


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist: name log files, or a run (`distui ls` lists them)"
    return f"file {path} cannot be read ({(error.strerror or str(error)).lower()}): name log files that you may read"


Named = tuple[str, Path]
"""What a file is called in findings, and where it is."""
PACKED = b"\x1f\x8b"


def read_all(files: Iterable[Named], stopped: Callable[[], bool] = bool) -> Reading:
    """Each file to its end, packed by gzip or not; pieces of one file follow one another. Raises RunError.

    `stopped` is asked at each block: once it says so, no more is read.
    """
    reading = Reading()
    for name, path in files:
        if not _fed(reading, name, packed_lines(path) if is_packed(path) else lines_of(path), stopped):
            break
    return reading


def read_run(files: Iterable[Named], stopped: Callable[[], bool] = bool) -> tuple[Reading, list[str]]:
    """The same of a run's logs, whatever bytes ranks wrote; and which cannot be read, a sentence each."""
    reading, unread = Reading(), list[str]()
    for name, path in files:
        try:
            if not _fed(reading, name, lines_of(path, refuse=False), stopped):
                break
        except RunError as error:
            unread.append(str(error).replace(str(path), name))
    return reading, unread


def _fed(reading: Reading, name: str, blocks: Iterator[list[str]], stopped: Callable[[], bool]) -> bool:
    """Feed one file; False when stopped."""
    new = reading.files[-1:] != [name]
    if new:
        reading.open(name)
    for lines in blocks:
        if stopped():
            return False
        if new:
            reading.prefixed(learned(lines))
            new = False
        reading.feed(lines)
    return True


def logs_of_run(entry: run_directories.Entry) -> list[Named]:
    """The logs of the newest attempt that are on this machine: the run's, its parts', and what a hub has kept."""
    paths: dict[str, list[Path]] = {file.id: [entry.path / file.id] for file in list_files(entry.path)}
    for part in run_directories.parts(entry.record.run) if entry.record.kind == "hub" else ():
        node = part.record.node
        paths |= {whole_id(file.id, node): [part.path / file.id] for file in list_files(part.path)}
    for kept, held in follow.pieces(entry.path).items():
        paths.setdefault(kept, [entry.path / follow.FOLDER / f"{kept}@{begin}" for begin in held])
    logs = [
        file for name in paths if (file := parse_file_id(name)) is not None and file.attempt is not None
    ]
    newest = max((file.attempt or 0 for file in logs), default=0)
    chosen = sorted((file for file in logs if file.attempt == newest), key=lambda file: file.order)
    return [(file.id, path) for file in chosen for path in paths[file.id]]


def is_packed(path: Path) -> bool:
    """Whether a file begins as gzip's do. False for a pipe, which cannot be read twice, and for an unreadable file."""
    if not os.path.isfile(path):  # also of a name too long for a file
        return False
    try:
        with path.open("rb") as file:
            return file.read(2) == PACKED
    except OSError:
        return False


def packed_lines(path: Path) -> Iterator[list[str]]:
    """Lines of a text that gzip packed, some at a time; of a long one its beginning. Raises RunError."""

    def check(block: bytes) -> None:
        if b"\0" in block[:8192]:
            raise RunError(f"{path} holds no text: give the logs themselves")

    try:
        with gzip.open(path) as file:
            yield from lines_in(partial(file.read, BLOCK), check)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be unpacked ({str(error).lower()}): have it copied again") from None


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
    nvls = comm.channels.get("nvls")
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
        nvls=True if comm.nvls or nvls else None if nvls is None else False,
        tuning=dict(comm.tuning),
        collectives=dict(comm.collectives),
        folded=folded,
    )


def _pairs(comm: CommunicatorPart) -> Iterable[Pair]:
    """One for each transport of a pair, the fastest kind first."""
    for (source, target), kinds in comm.pairs.items():
        for kind in sorted(kinds, key=speed):
            yield Pair(source, target, kind)


def _rings(comm: CommunicatorPart) -> tuple[tuple[int, ...], ...]:
    """Different orders that are whole; long ones are cut by NCCL itself until 2.28."""
    orders = dict.fromkeys(tuple(map(int, text.split())) for _, text in sorted(comm.rings.items()))
    return tuple(order for order in orders if len(order) == comm.nranks)[:RINGS]


def _unix(stamp: Stamp | None) -> float | None:
    """Of NCCL's own stamp, by the clock and zone of this machine."""
    if stamp is None or stamp.kind != "nccl":
        return None
    whole, _, part = stamp.text.partition(".")
    try:
        return time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        return None
