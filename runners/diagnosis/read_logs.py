"""Read the logs that a user names, or those of a run, from their files to a Reading."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from ..logs import kept_pieces
from ..run.errors import RunError
from ..run.log_files import list_files, parse_file_id, whole_id
from ..run.run_directories import Entry, parts
from ..run.state import RunState
from .file_names import NOBODYS, Whose, older_attempts, owners, rank_in_name
from .log_records import Records, learned_records
from .log_sources import BrokenOff, Named, Source, Unread, plain_source, sources
from .log_text import HOLE, PART, SAMPLE, is_binary, lines_in
from .prefixes import LAYERS, LEARN
from .reading import Reading
from .recorder_dumps import is_dump


class NoTextError(RunError):
    """A file is not a log."""


def lines_of(source: Source, refuse: bool = True, unread: Unread | None = None) -> Iterator[list[str]]:
    """Yield lines of a log in portions; of a long line only its beginning. Raises RunError and BrokenOff.

    `refuse`: raise NoTextError for a binary file, else replace invalid bytes. `unread` receives a note of zero bytes.
    """
    begun, has_hole = not refuse, False

    def check(block: bytes) -> None:
        nonlocal begun, has_hole
        if unread is not None and not has_hole and b"\0" in block and HOLE.search(block) is not None:
            has_hole = True
            unread.sentences.append(
                f"{source.name} has zero bytes in place of lines, as after a crash of its node: lines may be lost there"
            )
        if not begun and is_binary(block[:SAMPLE]):
            raise NoTextError(f"file {source.name} is not text: give the logs themselves")
        begun = begun or bool(block)

    return lines_in(source.stream.read, check)


def read_all(files: Iterable[Named]) -> Reading:
    """Read every log of these files, archives and directories to its end. Raises RunError."""
    reading, files = Reading(pasted=True), list(files)
    names = [name for file in files for name in _names(*file)]
    whose, older = owners(names), older_attempts(names)
    for source in sources(files, reading.unread):
        if source.name in older and not source.given:
            reading.unread.older.append(source.name)
        elif is_dump(source.stream.peek()):
            reading.record(source)
        else:
            _read_log(reading, source, whose.get(source.name, NOBODYS))
    is_empty = not reading.lines and not reading.recorders.names
    if is_empty and reading.unread.sentences:
        raise RunError(reading.unread.sentences[0])
    return reading


def _read_log(reading: Reading, source: Source, whose: Whose) -> None:
    """Read a log to its end. Raises RunError for a log that the user named and that is not text."""
    try:
        _fed(reading, source, lines_of(source, unread=reading.unread), whose)
    except NoTextError:
        if source.given:
            raise
        reading.unread.no_logs.append(source.name)


def _names(name: str, path: Path) -> list[str]:
    """Return the names of the logs in a file, if it can be read twice."""
    if not os.path.isfile(path) and not os.path.isdir(path):
        return [name]
    return [source.name for source in sources([(name, path)], Unread())]


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
    begun = reading.files[-1:] == [source.name]
    layers: list[Records] = []
    try:
        for lines in _whole_enough(blocks):
            if stopped():
                return False
            if begun:
                lines = _plain(lines, layers)
            else:
                reading.open(source.name, whose)
                layers = _learned_layers(lines)
                lines = _plain(lines, layers)
                reading.learn(flat(lines))
                begun = True
            reading.feed(lines)
    except BrokenOff as error:
        if source.given and not begun:
            raise RunError(f"{source.name} cannot be read ({error}): have it copied again") from None
        line = reading.line if begun else 0
        reading.unread.sentences.append(
            f"{source.name} breaks off after line {line} ({error}): have it copied again"
        )
    if not begun and source.name not in reading.files:
        reading.open(source.name, whose)
    _feed_rest(reading, source, layers)
    return True


def _plain(lines: list[str], layers: Iterable[Records]) -> list[str]:
    """Return one plain line per line of a log whose lines are records."""
    for layer in layers:
        lines = layer.plain(lines)
    return lines


def _feed_rest(reading: Reading, source: Source, layers: list[Records]) -> None:
    for layer in layers:
        reading.feed(layer.rest(), step=0)
        if layer.newest_first:
            sentence = f"{source.name} has its newest lines first: export it in order of time"
            reading.unread.sentences.append(sentence)


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


def judged_attempt(entry: Entry, state: RunState) -> int | None:
    """Return the attempt whose logs a diagnosis reads; None: the newest with logs.

    A hub keeps the ends of older attempts' logs, which are irrelevant to this one.
    """
    return state.attempt or None if entry.record.kind == "hub" else None


def logs_of_run(entry: Entry, attempt: int | None = None) -> list[Named]:
    """Return an attempt's logs (None: the newest) on this machine: of the run, its parts, and the hub's copies."""
    paths = _paths_of_logs(entry)
    logs = sorted(filter(None, map(parse_file_id, paths)), key=lambda log: log.order)
    if attempt is None:
        attempt = max((log.attempt or 0 for log in logs), default=0)
    judged = [log.id for log in logs if log.attempt == attempt]
    return [(log, path) for log in judged for path in paths[log]]


def _paths_of_logs(entry: Entry) -> dict[str, list[Path]]:
    """Return the files of each log by its ID: one, or the kept pieces of another node's log."""
    paths = {file.id: [entry.path / file.id] for file in list_files(entry.path)}
    for part in parts(entry.record.run) if entry.record.kind == "hub" else ():
        for file in list_files(part.path):
            paths[whole_id(file.id, part.record.node)] = [part.path / file.id]
    for kept, held in kept_pieces.pieces(entry.path).items():
        paths.setdefault(kept, [entry.path / kept_pieces.FOLDER / f"{kept}@{begin}" for begin in held])
    return paths
