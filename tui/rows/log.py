"""Log lines as rows, and which files a choice of rank and stream means. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from rich.cells import cell_len

from ...runners.formatting import spans_text, time_of_day
from ...runners.logs.dating import Key
from ...runners.logs.follow import Level
from ...runners.logs.log_files import STREAMS, LogFile, command_id, file_id, parse_file_id
from ...runners.state import RunState
from . import glyphs
from .frame import fit_name
from .glyphs import Cell, Row, fit, row_width

SERVICES = ("launch", "service")
"""Of a run on several nodes: the log of SkyPilot, and the logs of runners, agents and the hub."""

LAUNCH_LOG = "launch.log"

_SELECTORS = {0xFE0E: None, 0xFE0F: None}
"""Variation selectors of glyphs: terminals do not agree how wide they are."""

_LEVEL = {Level.WARN: (glyphs.WARN, "warn"), Level.ERROR: (glyphs.BAD, "bad")}
_FOREIGN = re.compile(r".*rank-(?P<rank>\d+)[^/]*\.(?P<stream>out|err|nccl)")


class LogLine(NamedTuple):
    """One line, cleaned."""

    text: str
    label: str
    """Who wrote it, short: `r3 err`; "" for the screen's own lines."""
    level: Level
    at: float | None = None
    """Unix time at which it was written."""
    own: bool = False
    """Whether it has that time itself; else it is when the agent saw it."""
    key: Key = (0.0, 0, 0, "", 0)
    """Sorts lines by time."""
    rank: int | None = None


class Selection(Struct, frozen=True):
    """What the pane shows."""

    rank: int | None = None
    stream: str = "all"
    pattern: str = ""
    only_hits: bool = True
    """Whether lines without a hit are left out."""


def choices(state: RunState) -> tuple[str, ...]:
    """What the stream key goes through."""
    launch = ("launch",) if LAUNCH_LOG in state.log_sizes else ()
    return ("all", *STREAMS, *launch, *(("service",) if state.merged else ()))


def chosen_title(chosen: Selection, launching: bool = False) -> str:
    """Whose lines, of which stream, with which pattern."""
    who = "all ranks" if chosen.rank is None else f"rank {chosen.rank}"
    stream = "" if chosen.stream == "all" else f" · {chosen.stream}"
    if chosen.stream in SERVICES or (launching and chosen.rank is None and not stream):
        who, stream = {"service": "agents and runners"}.get(chosen.stream, LAUNCH_LOG), ""
    pattern = f" · /{chosen.pattern}/" if chosen.pattern else ""
    if pattern and not chosen.only_hits:
        pattern += " in context"
    return who + stream + pattern


def label_of(file: LogFile, nodes: Mapping[int, str] | None = None) -> str:
    """`r3 err`, `r3` for stdout, `command`, `runner`; with the node in front where there are `nodes`."""
    who = f"r{file.rank}" if file.rank is not None else file.source
    text = who if file.stream in ("out", "log") else f"{who} {file.stream}"
    if "/" not in file.id or nodes is None or len(nodes) < 2 or file.node not in nodes:
        return text
    return f"{fit_name(nodes[file.node], node_width(nodes))} {text}"


LARGE = 100 << 20
"""Bytes from which on the size of logs is shown."""


def large(state: RunState, files: Container[str] | None = None) -> int:
    """Bytes of these logs (ids), or of all that are known, where they are large; else 0."""
    size = sum(size for name, size in state.log_sizes.items() if files is None or name in files)
    return size if size >= LARGE else 0


def node_width(nodes: Mapping[int, str]) -> int:
    """Columns of a node's name in front of a line."""
    return min(8, max(map(len, nodes.values()), default=0))


def smart_case(pattern: str) -> str:
    """A pattern without capitals, not counting escapes such as `\\S`, as one that ignores case, as in ripgrep."""
    letters = re.sub(r"\\.", "", pattern)
    return f"(?i){pattern}" if pattern and letters.islower() and not pattern.startswith("(?") else pattern


def named(name: str) -> LogFile | None:
    """The file of an id; ids of jobs that distui did not start only name rank and stream."""
    file = parse_file_id(name)
    if file is not None:
        return file
    match = _FOREIGN.fullmatch(name)
    return LogFile(name, "rank", match["stream"], rank=int(match["rank"])) if match else None


def files_for(state: RunState, rank: int | None, stream: str) -> list[LogFile]:
    """The files of the current attempt that hold this rank (None: all) and stream ("all": every one).

    Files that nobody reported yet are named by the layout, so that a finished run can be read too.
    """
    seen = [file for name in state.log_sizes if (file := named(name)) is not None]
    foreign = [file for file in seen if file.attempt is None and file.source == "rank"]
    files = foreign or [*_expected(state), *(file for file in seen if file.attempt == state.attempt)]
    if stream in SERVICES or (state.merged and rank is None and not state.attempt):
        return _services(state, "launch" if stream == "all" else stream)
    if rank is None and stream == "all" and not foreign:
        own = LogFile("runner.log", "runner", "log")
        if state.merged or state.agent_pid is not None:  # else it is watched: distui started no runner
            files += _services(state, "runner") if state.merged else [own]
    chosen = {
        file.id: file
        for file in files
        if (rank is None or file.rank == rank) and (stream == "all" or file.stream == stream)
    }
    return sorted(chosen.values(), key=lambda file: file.order)


def _services(state: RunState, which: str) -> list[LogFile]:
    """Of a run on several nodes: launch.log, or the logs of runners, or those of the agents and the hub as well."""
    if which == "launch":
        return [file for file in (parse_file_id(LAUNCH_LOG),) if file is not None]
    seen = [file for name in state.log_sizes if (file := parse_file_id(name)) is not None]
    wanted = ("runner",) if which == "runner" else ("runner", "agent")
    return sorted((file for file in seen if file.source in wanted), key=lambda file: file.order)


def _expected(state: RunState) -> list[LogFile]:
    if not state.attempt:
        return []
    names = [
        file_id(rank.place.node, state.attempt, number, stream)
        for number, rank in state.ranks.items()
        for stream in STREAMS
    ]
    if state.plan is not None and state.plan.launcher == "command":
        names += [command_id(state.attempt, stream) for stream in ("out", "err")]
    return [file for name in names if (file := parse_file_id(name)) is not None]


NARROW = 60
"""Columns of a pane that has no room for times."""

TIMES = ("clock", "start", "step", "off")
"""What the time key goes through: time of day, since the attempt began, since the line above, none."""


class TimeColumn(Struct, frozen=True):
    """How the time of a line is shown."""

    mode: str = "off"
    began: float | None = None
    """Unix time at which the attempt began."""

    @property
    def width(self) -> int:
        """Columns, without the blank behind."""
        return 0 if self.mode == "off" else 9

    def text(self, line: LogLine, above: LogLine | None) -> str:
        """The cell: `~` before a time that is not the line's own; blank where none is known."""
        if line.at is None:
            return " " * self.width
        sign = " " if line.own else "~"
        if self.mode == "clock":
            return fit(sign + time_of_day(line.at), self.width)
        if self.mode == "start":
            since = None if self.began is None else line.at - self.began
        else:
            since = None if above is None or above.at is None else line.at - above.at
        return fit(sign + _since(since), self.width, right=True)


def _since(seconds: float | None) -> str:
    if seconds is None:
        return ""
    sign, seconds = ("-" if seconds < -0.05 else "+"), abs(seconds)
    if seconds < 100:
        return f"{sign}{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{sign}{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def time_column(mode: str, width: int, began: float | None) -> TimeColumn:
    """Whole times, or none where a pane has no room for them beside the text: minutes alone say nothing in a log."""
    return TimeColumn("off" if width < NARROW else mode, began)


def log_row(
    line: LogLine, marked: bool, pattern: re.Pattern[str] | None, label_width: int, when: str = ""
) -> Row:
    """One line: mark, level, who, when, text with hits."""
    glyph, style = _LEVEL.get(line.level, (" ", "text"))
    cells: list[Cell] = [(glyphs.MARK if marked else glyph, "accent" if marked else style)]
    if label_width:
        cells.append((fit(line.label, label_width) + " ", "dim"))
    if when:
        cells.append((when + " ", "dim"))
    text = line.text if line.text.isascii() else line.text.translate(_SELECTORS)
    body = "text" if line.label else "dim"
    text_style = {Level.WARN: "warn", Level.ERROR: "bad"}.get(line.level, body)
    return (*cells, *_with_hits(text, text_style, pattern))


def _with_hits(text: str, style: str, pattern: re.Pattern[str] | None) -> Sequence[Cell]:
    if pattern is None:
        return ((text, style),)
    cells: list[Cell] = []
    at = 0
    for match in pattern.finditer(text):
        if match.end() == match.start():
            continue
        cells += [(text[at : match.start()], style), (match.group(), "hit")]
        at = match.end()
    return [cell for cell in (*cells, (text[at:], style)) if cell[0]] or [("", style)]


def fixed_cells(label_width: int, when_width: int) -> int:
    """How many cells of a row of the log stay when it is scrolled sideways."""
    return 1 + bool(label_width) + bool(when_width)


def wrapped(row: Row, fixed: int, width: int) -> list[Row]:
    """A row over as many as its text needs; what does not belong to the text stands beside the first."""
    head, body = row[:fixed], row[fixed:]
    edge = row_width(head)
    room = max(8, width - edge)
    if row_width(body) <= room:
        return [row]
    rows, cells, left = list[Row](), list[Cell](), room
    for text, style in body:
        while text:
            piece, text = _split(text, left)
            if piece:
                cells.append((piece, style))
                left -= cell_len(piece)
            if text:
                rows.append(tuple(cells))
                cells, left = [], room
    rows.append(tuple(cells))
    blank: Row = tuple((" " * row_width((cell,)), "text") for cell in head)
    return [(*(head if not at else blank), *cells) for at, cells in enumerate(rows)]


def _split(text: str, columns: int) -> tuple[str, str]:
    """As much of a text as so many columns hold, and the rest."""
    if text.isascii():
        return text[:columns], text[columns:]
    used = 0
    for at, char in enumerate(text):
        used += cell_len(char)
        if used > columns:
            return text[:at], text[at:]
    return text, ""


MANY = 3
"""Equal lines of so many ranks are folded."""


def folded(lines: Sequence[LogLine], held: dict[tuple[int, int], LogLine]) -> list[LogLine]:
    """Equal lines of many ranks, one after the other, as one; `held`: those that were made before."""
    shown: list[LogLine] = []
    at = 0
    while at < len(lines):
        first, end = lines[at], at + 1
        ranks = {first.rank}
        while end < len(lines) and lines[end].text == first.text and lines[end].rank not in ranks:
            ranks.add(lines[end].rank)
            end += 1
        if end - at < MANY or not first.text or None in ranks:
            shown.append(first)
            end = at + 1
        else:
            mark = (id(first), end - at)
            if mark not in held:
                held[mark] = _joined(first, sorted(rank for rank in ranks if rank is not None))
            shown.append(held[mark])
        at = end
    return shown


def _joined(first: LogLine, ranks: Sequence[int]) -> LogLine:
    text = f"{first.text}   ({spans_text('rank', ranks)} ×{len(ranks)})"
    return first._replace(label=f"×{len(ranks)}", text=text)


class Jump(Struct, frozen=True):
    """A place in the log that was typed."""

    line: int = 0
    at: float = 0.0
    share: float | None = None
    file: str = ""
    """Where it is known: file and offset of a line, and its time in `at`."""
    offset: int = 0


class JumpError(ValueError):
    """What was typed is no place; the text is one sentence."""


def jump_of(typed: str) -> Jump:
    """`line 500` or `50%`. Raises JumpError."""
    word, _, number = typed.partition(" ")
    if word == "line":
        if not (number.isascii() and number.isdecimal() and int(number) > 0):
            raise JumpError(f"no line {number!r}: type a number from 1 on, as in `line 500`")
        return Jump(line=int(number))
    percent = int(word.removesuffix("%"))
    if percent > 100:
        raise JumpError(f"{word} is beyond the end: type 0% to 100%")
    return Jump(share=percent / 100)


def common(old: list[LogLine], new: list[LogLine]) -> int:
    """How many lines at the front are the very same."""
    count = min(len(old), len(new))
    if count and old[count - 1] is new[count - 1] and old[0] is new[0]:
        return count
    return next((at for at in range(count) if old[at] is not new[at]), count)
