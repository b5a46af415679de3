"""Log lines as rows, and the files for a choice of rank and stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from rich.cells import cell_len

from ...runners.logs.dating import Key
from ...runners.logs.levels import Level
from ...runners.run.formatting import spans_text, time_of_day
from ...runners.run.log_files import STREAMS, LogFile, command_id, file_id, parse_file_id
from ...runners.run.state import RunState
from . import glyphs
from .frame import fit_name
from .glyphs import Cell, Row, fit, row_width

SERVICES = ("launch", "service")
"""Streams of a run on several nodes: SkyPilot's log, and the logs of runners, agents and the hub."""

LAUNCH_LOG = "launch.log"

_SELECTORS = {0xFE0E: None, 0xFE0F: None}
"""Variation selectors of glyphs: terminals disagree about their width."""

_LEVEL = {Level.WARN: (glyphs.WARN, "warn"), Level.ERROR: (glyphs.BAD, "bad")}
_FOREIGN = re.compile(r".*rank-(?P<rank>\d+)[^/]*\.(?P<stream>out|err|nccl)")


class LogLine(NamedTuple):
    """One line without control characters."""

    text: str
    label: str
    """Short name of the writer: `r3 err`; "" for the screen's own lines."""
    level: Level
    at: float | None = None
    """Unix time when it was written."""
    own: bool = False
    """Whether the line itself has that time; otherwise it is the time when the agent read the line."""
    key: Key = (0.0, 0, 0, "", 0)
    """Sorts lines by time."""
    rank: int | None = None


class Selection(Struct, frozen=True):
    """The filter of the pane."""

    rank: int | None = None
    stream: str = "all"
    pattern: str = ""
    only_hits: bool = True
    """Whether lines without a hit are left out."""


def choices(state: RunState) -> tuple[str, ...]:
    """Return the streams that the stream key cycles through."""
    launch = ("launch",) if LAUNCH_LOG in state.log_sizes else ()
    return ("all", *STREAMS, *launch, *(("service",) if state.merged else ()))


def chosen_title(chosen: Selection, launching: bool = False) -> str:
    """Return rank, stream and pattern of the selection."""
    who = "all ranks" if chosen.rank is None else f"rank {chosen.rank}"
    stream = "" if chosen.stream == "all" else f" · {chosen.stream}"
    if chosen.stream in SERVICES or (launching and chosen.rank is None and not stream):
        who, stream = {"service": "agents and runners"}.get(chosen.stream, LAUNCH_LOG), ""
    pattern = f" · /{chosen.pattern}/" if chosen.pattern else ""
    if pattern and not chosen.only_hits:
        pattern += " in context"
    return who + stream + pattern


def label_of(file: LogFile, nodes: Mapping[int, str] | None = None) -> str:
    """Return `r3 err`, `r3` for stdout, `command`, `runner`; with the node in front if `nodes` has several."""
    who = f"r{file.rank}" if file.rank is not None else file.source
    text = who if file.stream in ("out", "log") else f"{who} {file.stream}"
    if "/" not in file.id or nodes is None or len(nodes) < 2 or file.node not in nodes:
        return text
    return f"{fit_name(nodes[file.node], node_width(nodes))} {text}"


LARGE = 100 << 20
"""Minimum bytes for the size of logs to be shown."""


def large(state: RunState, files: Container[str] | None = None) -> int:
    """Return the bytes of these logs (ids), or of all known logs, if they are large; else 0."""
    size = sum(size for name, size in state.log_sizes.items() if files is None or name in files)
    return size if size >= LARGE else 0


def node_width(nodes: Mapping[int, str]) -> int:
    """Return the width of a node's name in front of a line."""
    return min(8, max(map(len, nodes.values()), default=0))


def smart_case(pattern: str) -> str:
    r"""Make a pattern without capitals ignore case, as ripgrep does. Escapes such as `\S` do not count."""
    letters = re.sub(r"\\.", "", pattern)
    return f"(?i){pattern}" if pattern and letters.islower() and not pattern.startswith("(?") else pattern


def named(name: str) -> LogFile | None:
    """Return the file of an id; ids of jobs that distui did not start contain only rank and stream."""
    file = parse_file_id(name)
    if file is not None:
        return file
    match = _FOREIGN.fullmatch(name)
    return LogFile(name, "rank", match["stream"], rank=int(match["rank"])) if match else None


def files_for(state: RunState, rank: int | None, stream: str) -> list[LogFile]:
    """Return the files of the current attempt for this rank (None: all) and stream ("all": every stream).

    Files that no agent has reported yet follow from the layout, so that a finished run can be read too.
    """
    before_ranks = state.merged and rank is None and not state.attempt
    if stream in SERVICES or before_ranks:
        return _services(state, stream)
    files = _rank_files(state)
    if rank is None and stream == "all":
        files += _runner_logs(state)
    chosen = {
        file.id: file for file in files if rank in (None, file.rank) and stream in ("all", file.stream)
    }
    return sorted(chosen.values(), key=lambda file: file.order)


def _rank_files(state: RunState) -> list[LogFile]:
    current = [file for file in _seen(state) if file.attempt == state.attempt]
    return _foreign_files(state) or [*_expected(state), *current]


def _foreign_files(state: RunState) -> list[LogFile]:
    """Return the files of a job that distui did not start."""
    return [file for file in _seen(state) if file.attempt is None and file.source == "rank"]


def _runner_logs(state: RunState) -> list[LogFile]:
    """Return the runners' logs; [] if distui only watches the job and started no runner."""
    if _foreign_files(state):
        return []
    if state.merged:
        return _services(state, "runner")
    return [] if state.agent_pid is None else [LogFile("runner.log", "runner", "log")]


def _seen(state: RunState) -> list[LogFile]:
    return [file for name in state.log_sizes if (file := named(name)) is not None]


def _services(state: RunState, which: str) -> list[LogFile]:
    """Return the launch log, the runners' logs, or those of runners, agents and hub of a run on several nodes."""
    if which in ("launch", "all"):
        return [file for file in (parse_file_id(LAUNCH_LOG),) if file is not None]
    wanted = ("runner",) if which == "runner" else ("runner", "agent")
    return sorted((file for file in _seen(state) if file.source in wanted), key=lambda file: file.order)


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
"""Columns below which a pane shows no times."""

TIMES = ("clock", "start", "step", "off")
"""Modes of the time key: time of day, since the attempt began, since the line above, none."""


class TimeColumn(Struct, frozen=True):
    """How the log shows the time of a line."""

    mode: str = "off"
    began: float | None = None
    """Unix time when the attempt began."""

    @property
    def width(self) -> int:
        """Width without the blank after it."""
        return 0 if self.mode == "off" else 9

    def text(self, line: LogLine, above: LogLine | None) -> str:
        """Return the cell: `~` marks a time that the line itself does not have; blank if no time is known."""
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
    """Return the time column, or an empty one if the pane is too narrow. Times are never shortened to minutes."""
    return TimeColumn("off" if width < NARROW else mode, began)


def log_row(
    line: LogLine, marked: bool, pattern: re.Pattern[str] | None, label_width: int, when: str = ""
) -> Row:
    """Return one line: mark, level, label, time, text with hits."""
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
    """Return the number of leading cells that stay in place when the log scrolls sideways."""
    return 1 + bool(label_width) + bool(when_width)


def wrapped(row: Row, fixed: int, width: int) -> list[Row]:
    """Wrap a row to `width` columns. Cells before the text appear only in the first row."""
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
    """Return as much of a text as fits in so many columns, and the rest."""
    if text.isascii():
        return text[:columns], text[columns:]
    used = 0
    for at, char in enumerate(text):
        used += cell_len(char)
        if used > columns:
            return text[:at], text[at:]
    return text, ""


MANY = 3
"""Minimum number of ranks whose equal lines are folded."""


def folded(lines: Sequence[LogLine], held: dict[tuple[int, int], LogLine]) -> list[LogLine]:
    """Fold consecutive equal lines of many ranks into one line; `held` caches the folded lines."""
    shown: list[LogLine] = []
    at = 0
    while at < len(lines):
        first, end = lines[at], _end_of_equal(lines, at)
        ranks = [line.rank for line in lines[at:end] if line.rank is not None]
        if end - at < MANY or not first.text or len(ranks) < end - at:
            shown.append(first)
            at += 1
            continue
        mark = (id(first), end - at)
        if mark not in held:
            held[mark] = _joined(first, sorted(ranks))
        shown.append(held[mark])
        at = end
    return shown


def _end_of_equal(lines: Sequence[LogLine], at: int) -> int:
    """Return the index after the equal lines of different ranks that begin at `at`."""
    ranks, end = {lines[at].rank}, at + 1
    while end < len(lines) and lines[end].text == lines[at].text and lines[end].rank not in ranks:
        ranks.add(lines[end].rank)
        end += 1
    return end


def _joined(first: LogLine, ranks: Sequence[int]) -> LogLine:
    text = f"{first.text}   ({spans_text('rank', ranks)} ×{len(ranks)})"
    return first._replace(label=f"×{len(ranks)}", text=text)


class Jump(Struct, frozen=True):
    """A place in the log that the user typed."""

    line: int = 0
    at: float = 0.0
    share: float | None = None
    file: str = ""
    """If known: file and offset of a line, and its time in `at`."""
    offset: int = 0


class JumpError(ValueError):
    """The typed text is no place in the log; the message is one sentence."""


def jump_of(typed: str) -> Jump:
    """Parse `line 500` or `50%`. Raises JumpError."""
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
    """Return the number of leading lines that are identical objects."""
    count = min(len(old), len(new))
    if count and old[count - 1] is new[count - 1] and old[0] is new[0]:
        return count
    return next((at for at in range(count) if old[at] is not new[at]), count)
