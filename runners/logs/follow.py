"""Read logs: levels of lines, windows of bytes, kept pieces, and the choice of files."""

from __future__ import annotations

import asyncio
import enum
import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from ..run.errors import RunError
from ..run.formatting import spans_text
from ..run.log_files import LogError, LogFile, file_sizes, opened, parse_file_id, part_of, whole_id
from ..run.state import RunState
from ..run.wire.client import Window
from . import gaps, line_times, search

# -----------------------------------------------------------------------------------------------------------
# Level of a log line (none, information, warning, error), for its colour and for "next error".


class Level(enum.IntEnum):
    """Importance of a line."""

    NONE = 0
    INFO = 1
    WARN = 2
    ERROR = 3


class LevelRule(NamedTuple):
    """A pattern, and words: every matching line contains at least one of them.

    The words come first because a word search takes a hundredth of a pattern search. Without words, the pattern
    is tried at the beginning of every line.
    """

    level: Level
    words: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(level: Level, pattern: str, *words: str) -> LevelRule:
    return LevelRule(level, words, re.compile(pattern))


# `[rank0]:` is torch's prefix of each line of a rank's traceback. `E1120 12:00:00` is the prefix of glog and
# of torch's own loggers: letter of the level, month and day.
_RANK = r"^(?:\[rank\d+\]:?\s*)?"
_SIGNALS = r"Signal \d+ \(SIG[A-Z]+\)|Segmentation fault|\bBus error\b|\bcore dumped\b|^Killed$"

RULES = (
    _rule(Level.INFO, r"NCCL (?:INFO|ATTN|TRACE)", "NCCL INFO", "NCCL ATTN", "NCCL TRACE"),
    _rule(Level.WARN, r"NCCL WARN", "NCCL WARN"),
    _rule(Level.ERROR, _RANK + r"\[?[EF]\d{4} \d\d:\d\d:"),
    _rule(Level.WARN, _RANK + r"\[?W\d{4} \d\d:\d\d:"),
    _rule(Level.INFO, _RANK + r"\[?I\d{4} \d\d:\d\d:"),
    _rule(Level.ERROR, r"Traceback \(most recent call last\)", "Traceback"),
    _rule(
        Level.ERROR,
        _RANK + r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|SystemExit)(?::|\s*$)",
        *("Error", "Exception", "Interrupt", "SystemExit"),
    ),
    _rule(Level.ERROR, r"\b(?:ERROR|FATAL|CRITICAL)\b", "ERROR", "FATAL", "CRITICAL"),
    _rule(Level.ERROR, r"\b(?:CUDA|NCCL|cuDNN|CUBLAS) error\b|CUDA out of memory", " error", "CUDA out"),
    _rule(Level.ERROR, r"\bnccl(?:System|Internal|Remote|UnhandledCuda)Error\b", "nccl"),
    _rule(
        Level.ERROR, r"Watchdog caught collective operation timeout|ChildFailedError", "Watchdog", "ChildF"
    ),
    _rule(Level.ERROR, r"\bfailed \(exitcode: -?\d+\)", "exitcode"),
    _rule(Level.ERROR, _SIGNALS, "Signal", "fault", "Bus error", "core dumped", "Killed"),
    _rule(
        Level.ERROR, r"terminate called|oom-kill|Fatal Python|\bAborted\b", "term", "oom-", "Fatal", "Abort"
    ),
    _rule(Level.ERROR, r"device-side assert", "device-side"),
    _rule(Level.WARN, r"Warning:|\bWARN(?:ING)?\b|\b[Dd]eprecated\b", "Warning:", "WARN", "eprecated"),
    _rule(Level.INFO, r"\bINFO\b", "INFO"),
)
"""The leftmost match in a line decides: writers put the level before the message, so a line that NCCL or a
logger marks as INFO stays INFO, whatever it quotes. At one position the earlier rule wins."""

ALARMS = "|".join(
    f"(?:{rule.pattern.pattern})" if rule.words else f"^(?:{rule.pattern.pattern})"
    for rule in RULES
    if rule.level >= Level.WARN
)
"""Matches every line with the level WARN or ERROR, and some others. `level_of` decides."""

_BY_WORD = tuple((word, place) for place, rule in enumerate(RULES) for word in rule.words)
_ALWAYS = frozenset(place for place, rule in enumerate(RULES) if not rule.words)


def level_of(line: str) -> Level:
    """Return the level of one line of clean text."""
    level, first = Level.NONE, len(line) + 1
    for place in sorted(_ALWAYS.union(place for word, place in _BY_WORD if word in line)):
        rule = RULES[place]
        match = rule.pattern.search(line) if rule.words else rule.pattern.match(line)
        if match and match.start() < first:
            level, first = rule.level, match.start()
    return level


# -----------------------------------------------------------------------------------------------------------
# Windows into a log file: a piece of it, from a line start, never more than the requested size.


MAX_LIMIT = 1 << 20
"""Maximum bytes per window."""
REACH = 65536
"""Maximum distance in bytes of a window's search for a line start."""


async def ask_window(
    run_dir: str | Path,
    file: str,
    offset: int,
    limit: int = REACH,
    grep: str = "",
    *,
    line: int = 0,
    at: float = 0.0,
) -> Window:
    """Call `read_window` off the event loop and return a LogError in `Window.error`. For agents and viewers."""
    return await _ask(read_window, run_dir, file, offset, limit, grep, line, at)


class _Read(Protocol):
    """Reads a window. Raises LogError."""

    def __call__(
        self, run_dir: str | Path, file: str, offset: int, limit: int, grep: str, *, line: int, at: float
    ) -> Window: ...


async def _ask(
    read: _Read, run_dir: str | Path, file: str, offset: int, limit: int, grep: str, line: int, at: float
) -> Window:
    def answer() -> Window:
        try:
            return read(run_dir, file, offset, limit, grep, line=line, at=at)
        except LogError as error:
            return Window(file, max(offset, 0), max(offset, 0), 0, b"", str(error))

    executor = search.SEARCHES if grep or line > 1 else None
    return await asyncio.get_running_loop().run_in_executor(executor, answer)


def read_window(
    run_dir: str | Path,
    file: str,
    offset: int,
    limit: int = REACH,
    grep: str = "",
    *,
    line: int = 0,
    at: float = 0.0,
) -> Window:
    """Return at most `limit` bytes (and at most 1 MiB) of `file` from the line that contains byte `offset`.

    A negative `offset` counts from the end, and then the window begins at the first line start after it.
    A window that does not reach the end of the file ends with a complete line. If no line start is within
    64 KiB, the window begins exactly at the offset. `next` is always greater than `offset` while the file has
    more. A window whose `offset` is smaller than the requested one repeats the beginning of a line. If `size`
    is also smaller than the requested offset, the file was truncated.

    `line` and `at` name the start by line or time: see ReadLog. `times` are those of its index.

    `grep` is a Python regular expression: `data` then has only matching lines, as many as a search finds in a short time
    (runners/logs/search.py). With `limit=1`, `next` is the end of the first one. The search runs in a separate
    process that is killed after 3 s. This call blocks for that time, so an event loop uses `ask_window`.
    Raises LogError.
    """
    limit = min(max(limit, 1), MAX_LIMIT)
    while True:  # retry if the cap has removed data since the read
        window = _read_window(run_dir, file, offset, limit, grep, line, at)
        if gaps.read(f"{run_dir}/{file}", window[0].size) == window[1]:
            return window[0]


def _read_window(
    run_dir: str | Path, file: str, offset: int, limit: int, grep: str, line: int, at: float
) -> tuple[Window, gaps.Gap | None]:
    with opened(run_dir, file) as descriptor:
        gap = gaps.read(f"{run_dir}/{file}", os.fstat(descriptor).st_size)
        if line > 0:
            offset = line_start(descriptor, line, gap)
        elif at > 0:
            first = line_times.first_at(run_dir, file, at)
            if first is None:
                raise LogError(
                    f"no times of {file} were recorded: distui was not there when it was written"
                )
            offset = max(first - 1, 0)
        window = window_of(descriptor, file, offset, limit, grep, gap)
    if grep:
        times = line_times.of_lines(run_dir, file, spans_of(window))
    else:
        times = line_times.of_window(run_dir, file, window.offset, window.next)
    return (replace(window, times=times) if times else window), gap


def window_of(
    descriptor: int, file: str, offset: int, limit: int, grep: str = "", gap: gaps.Gap | None = None
) -> Window:
    """Return `read_window` of an open file, without times.

    The window ends where `gap` or a hole begins, or starts after it. The data before it is read like a file's end.
    """
    size = os.fstat(descriptor).st_size
    start = max(_written_end(descriptor, size, gap) + offset, 0) if offset < 0 else min(offset, size)
    begin, end = next(gaps.stretches(descriptor, start, gap), (size, size))
    if grep:
        start = begin if begin > start else _line_before(descriptor, start)
        matches, starts, position = search.search(descriptor, start, limit, grep, gap)
        return Window(file, start, position, max(size, position), matches, starts=starts)
    if begin > start:
        window = _window_at(descriptor, file, begin, begin, limit, end)
    else:
        start = _tail_start(descriptor, start, end, limit) if offset < 0 else start
        window = _window_at(descriptor, file, offset, start, limit, end)
    return window if end >= size else replace(window, size=size)


def _window_at(descriptor: int, file: str, offset: int, start: int, limit: int, size: int) -> Window:
    """Return the window up to `size`. `start` is the absolute position of `offset`."""
    if offset >= 0:
        before = _line_before(descriptor, start)
        data = _whole_lines(os.pread(descriptor, min(limit, size - before), before), before, size)
        if before + len(data) > start or start == before:
            return Window(file, before, before + len(data), size, data)
    data = _whole_lines(os.pread(descriptor, min(limit, max(size - start, 0)), start), start, size)
    return Window(file, start, start + len(data), size, data)


def spans_of(window: Window) -> list[tuple[int, int]]:
    """Return begin and end of each line that a search has found."""
    lines = window.data.removesuffix(b"\n").split(b"\n")
    return [(start, start + len(line) + 1) for start, line in zip(window.starts, lines, strict=False)]


_CHUNK = 4 << 20


def line_start(descriptor: int, line: int, gap: gaps.Gap | None = None) -> int:
    """Return a line's offset, counted from 1, or the size of a shorter file. Raises LogError for a line in `gap`."""
    left, at = line - 1, 0
    for begin, end in gaps.stretches(descriptor, 0, gap):
        if gap is not None and at < gap.end <= begin:
            if 0 <= left < gap.lines:
                first = line - left
                raise LogError(
                    f"line {line:,} is left out: {first:,} to {first + gap.lines - 1:,} are not kept"
                )
            left -= gap.lines
        at = begin
        while at < end:
            data = os.pread(descriptor, min(_CHUNK, end - at), at)
            count = data.count(b"\n")
            if count >= left and (start := at + _behind(data, left)) < end:
                return start
            left, at = max(left - count, 0), at + (len(data) or end)
    return os.fstat(descriptor).st_size


def _behind(data: bytes, count: int) -> int:
    """Return the position after this many line ends."""
    at = -1
    for _ in range(count):
        at = data.find(b"\n", at + 1)
    return at + 1


def _line_before(descriptor: int, offset: int) -> int:
    """Return the start of the line with byte `offset`, or `offset` if that is out of reach."""
    low = max(offset - REACH, 0)
    newline = os.pread(descriptor, offset - low, low).rfind(b"\n")
    if newline >= 0:
        return low + newline + 1
    return 0 if low == 0 else offset


def _written_end(descriptor: int, size: int, gap: gaps.Gap | None) -> int:
    """Return the end of the last written bytes; `size` if there are too many holes to search."""
    pieces = list(itertools.islice(gaps.stretches(descriptor, 0, gap), search.MOST_STRETCHES))
    return pieces[-1][1] if 0 < len(pieces) < search.MOST_STRETCHES else size


def _tail_start(descriptor: int, start: int, end: int, limit: int) -> int:
    """Return where a window of bytes `start` to `end` begins: after a partial line, unless it is the last line."""
    before = _line_before(descriptor, start)
    if before == start:
        return start
    newline = os.pread(descriptor, min(REACH, end - start), start).find(b"\n")
    if newline >= 0 and start + newline + 1 < end:
        return start + newline + 1
    return before if end - before <= limit else start


def _whole_lines(data: bytes, start: int, size: int) -> bytes:
    """Remove a last line that continues after the window, unless it is the only line."""
    cut = data.rfind(b"\n") + 1
    return data[:cut] if cut and start + len(data) < size else data


# -----------------------------------------------------------------------------------------------------------
# Logs of a run on several nodes: pieces that a hub has read and kept, and complete files of parts on this machine.
# `record/node-1/attempt-001/rank-0.out@65536` has the bytes of that file from 65,536 on, up to its own length.
# So offsets stay correct, and missing data is known to be missing. The files of a part on this machine are in the
# part's run directory next to the hub's.


FOLDER = "record"
Pieces = dict[str, dict[int, int]]
"""End by begin of each piece in order, by file ID."""


CLOCK = "clock"
"""File next to a node's pieces with their `Window.shift`."""


def pieces(run_dir: str | Path) -> Pieces:
    """Return all kept pieces of a run's logs."""
    root = Path(run_dir) / FOLDER
    kept: Pieces = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            file, at, begin = path.relative_to(root).as_posix().rpartition("@")
            if at and begin.isdecimal() and parse_file_id(file):
                kept.setdefault(file, {})[int(begin)] = int(begin) + path.stat().st_size
    return {file: dict(sorted(held.items())) for file, held in sorted(kept.items())}


def sizes(kept: Pieces) -> dict[str, int]:
    """Return the known size of each file in bytes."""
    return {file: max(held.values()) for file, held in kept.items()}


def all_sizes(run_dir: str | Path) -> dict[str, int]:
    """Return the size of every log that can be read here: the hub's, those of parts on this machine, and pieces."""
    root = Path(run_dir)
    by_file = sizes(pieces(root)) | file_sizes(root)
    for part in root.parent.glob(f"{root.name}.n*"):
        node = part.name.rpartition(".n")[2]
        if node.isdecimal():
            by_file |= {whole_id(file, int(node)): size for file, size in file_sizes(part).items()}
    return by_file


async def ask_anywhere(
    run_dir: str | Path,
    file: str,
    offset: int,
    limit: int,
    grep: str = "",
    *,
    line: int = 0,
    at: float = 0.0,
) -> Window:
    """Return a window of any node's or the hub's log, if it can be read here."""
    place = part_of(file)
    if place is None:
        return await ask_window(run_dir, file, offset, limit, grep, line=line, at=at)
    part = Path(f"{run_dir}.n{place[0]}")
    if part.is_dir():
        window = await ask_window(part, place[1], offset, limit, grep, line=line, at=at)
        return replace(window, file=file)
    return await _ask(read_piece, run_dir, file, offset, limit, grep, line, at)


def read_piece(
    run_dir: str | Path,
    file: str,
    offset: int,
    limit: int = REACH,
    grep: str = "",
    *,
    line: int = 0,
    at: float = 0.0,
) -> Window:
    """Return `read_window` of the kept pieces. In a gap, the window begins with the next piece.

    Raises LogError.
    """
    held = pieces_of(run_dir, file)
    if not held:
        raise LogError(f"nothing of {file} was read while its node answered")
    size = max(held.values())
    times = line_times.kept(Path(run_dir) / FOLDER, file)
    if line > 1:
        raise LogError(
            f"only pieces of {file} were read while its node answered: its lines cannot be counted"
        )
    if line:
        offset = 0
    elif at:
        offset = _offset_at(times, file, at)
    start = max(size + offset, 0) if offset < 0 else offset
    begin = _piece_after(held, start)
    if begin is None:
        return Window(file, min(start, size), size, size, b"")
    limit = min(max(limit, 1), MAX_LIMIT)
    inside = max(start - begin, 0)
    if offset < 0 and inside:
        inside = start - held[begin]  # counted from the end, so that the window begins with a complete line
    with opened(run_dir, f"{FOLDER}/{file}@{begin}") as descriptor:
        window = window_of(descriptor, file, inside, limit, grep)
    return replace(
        window,
        offset=window.offset + begin,
        next=window.next + begin,
        size=size,
        starts=tuple(start + begin for start in window.starts),
        times=line_times.within(times, _spans(window, begin, grep)),
        shift=kept_shift(run_dir, file),
    )


def _piece_after(held: Mapping[int, int], start: int) -> int | None:
    """Return the begin of the piece with this offset, else of the next piece; None without one."""
    return next((begin for begin, end in held.items() if end > start), None)


def _offset_at(times: Sequence[line_times.Record], file: str, at: float) -> int:
    """Return the offset before the first line at a time. Raises LogError."""
    first = line_times.offset_at(times, at)
    if first is None:
        raise LogError(f"no times of {file} were kept")
    return max(first - 1, 0)


def _spans(window: Window, begin: int, grep: str) -> list[tuple[int, int]]:
    """Return the ranges of the window's lines in the file. `begin`: offset of the piece."""
    if not grep:
        return [(window.offset + begin, window.next + begin)]
    return [(first + begin, end + begin) for first, end in spans_of(window)]


def kept_shift(run_dir: str | Path, file: str) -> float:
    """Return the clock shift in seconds of a file's node; 0.0 if none is kept."""
    try:
        return float((Path(run_dir) / FOLDER / file.partition("/")[0] / CLOCK).read_bytes())
    except (OSError, ValueError):
        return 0.0


def pieces_of(run_dir: str | Path, file: str) -> dict[int, int]:
    """Return the end of each piece of one file, by its begin. Raises LogError."""
    if parse_file_id(file) is None:
        raise LogError(f"{file!r} is not a log of this run: `distui logs` names them")
    path = Path(run_dir) / FOLDER / file
    ends = {}
    for piece in path.parent.glob(f"{path.name}@*"):
        begin = piece.name.rpartition("@")[2]
        if begin.isdecimal():
            ends[int(begin)] = int(begin) + piece.stat().st_size
    return dict(sorted(ends.items()))


# -----------------------------------------------------------------------------------------------------------
# The choice of files and lines. Pure.


def choose(
    files: Iterable[LogFile],
    ranks: Collection[int] = (),
    streams: Collection[str] = ("out", "err"),
    attempt: int | None = None,
    node: int | None = None,
) -> list[LogFile]:
    """Return the files to show. Defaults: the newest attempt, every rank and every node.

    The stream "log" selects runner and agent logs, which belong to no attempt.
    """
    matching = [file for file in files if _is_wanted(file, ranks, streams, attempt, node)]
    newest = max((file.attempt for file in matching if file.attempt is not None), default=None)
    return [file for file in matching if file.attempt in (newest, None)]


def _is_wanted(
    file: LogFile,
    ranks: Collection[int],
    streams: Collection[str],
    attempt: int | None,
    node: int | None,
) -> bool:
    return (
        file.stream in streams
        and (node is None or file.node == node)
        and (not ranks or file.rank in ranks)
        and (attempt is None or file.attempt in (attempt, None))
    )


def check_there(
    state: RunState,
    files: Iterable[LogFile],
    ranks: Collection[int] = (),
    attempt: int | None = None,
    node: int | None = None,
) -> None:
    """Raise RunError for a rank, attempt or node that the run does not have, unless no attempt has started."""
    if not state.attempts:
        return
    existing = _numbers(state, list(files))
    wanted: dict[str, Collection[int]] = {
        "rank": ranks,
        "attempt": () if attempt is None else (attempt,),
        "node": () if node is None else (node,),
    }
    for kind, asked in wanted.items():
        there = existing[kind]
        missing = [number for number in asked if number not in there]
        if missing:
            has = spans_text(kind, there) if there else f"no {kind}"
            raise RunError(f"{state.name}: no {kind} {missing[0]}, it has {has}")


def _numbers(state: RunState, files: Sequence[LogFile]) -> dict[str, set[int]]:
    """Return the ranks, attempts and nodes of a run and of its logs."""
    ranks = {file.rank for file in files if file.rank is not None}
    for each in state.attempts:
        ranks.update(place.rank for place in each.ranks)
    return {
        "rank": ranks,
        "attempt": {each.number for each in state.attempts},
        "node": {*state.nodes, *(file.node for file in files)},
    }


def compile_grep(text: str) -> re.Pattern[str] | None:
    """Return the pattern of `--grep`; None for "". Raises LogError."""
    try:
        return re.compile(text) if text else None
    except (re.error, RecursionError, OverflowError) as error:
        raise LogError(f"--grep {text!r} is not a regular expression: {error}") from error
