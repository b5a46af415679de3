"""Log lines and reports as rows, and which files a choice of rank and stream means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...presets.sanitize import clean_text
from ...presets.secrets import mask
from ...runners.formatting import duration_exact, plural, spans_text, time_of_day
from ...runners.logs.follow import Level
from ...runners.logs.log_files import STREAMS, LogFile, command_id, file_id, parse_file_id
from ...runners.model import FirstCause, Outcome, RunPhase
from ...runners.state import Attempt, RunState
from ...runners.status import standing
from . import glyphs
from .findings import cause_text
from .frame import Frame
from .glyphs import Cell, Row, fit, wrap
from .sky_nodes import remains
from .status import fit_name

# -----------------------------------------------------------------------------------------------------------
# Log lines as rows, and which files a choice of rank and stream means.


SERVICES = ("launch", "service")
"""Of a run on several nodes: what SkyPilot said, and what runners, agents and the hub said."""

LAUNCH_LOG = "launch.log"

_SELECTORS = {0xFE0E: None, 0xFE0F: None}
"""Of a glyph's looks: terminals do not agree how wide they make it."""

_LEVEL = {Level.WARN: (glyphs.WARN, "warn"), Level.ERROR: (glyphs.BAD, "bad")}
_FOREIGN = re.compile(r".*rank-(?P<rank>\d+)[^/]*\.(?P<stream>out|err|nccl)")


class LogLine(NamedTuple):
    """One line, cleaned."""

    text: str
    label: str
    """Who wrote it, short: `r3 err`; "" for the screen's own lines."""
    level: Level


@dataclass(frozen=True, slots=True)
class Selection:
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


def node_width(nodes: Mapping[int, str]) -> int:
    """Columns of a node's name in front of a line."""
    return min(8, max(map(len, nodes.values()), default=0))


def named(name: str) -> LogFile | None:
    """What a file id says; ids of jobs that distui did not start only name rank and stream."""
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


def log_row(line: LogLine, marked: bool, pattern: re.Pattern[str] | None, label_width: int) -> Row:
    """One line: mark, level, who, text with hits."""
    glyph, style = _LEVEL.get(line.level, (" ", "text"))
    cells: list[Cell] = [(glyphs.MARK if marked else glyph, "accent" if marked else style)]
    if label_width:
        cells.append((fit(line.label, label_width) + " ", "dim"))
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


def common(old: list[LogLine], new: list[LogLine]) -> int:
    """How many lines at the front are the very same."""
    count = min(len(old), len(new))
    if count and old[count - 1] is new[count - 1] and old[0] is new[0]:
        return count
    return next((at for at in range(count) if old[at] is not new[at]), count)


# -----------------------------------------------------------------------------------------------------------
# What remains of a run: the first cause, the ledger of attempts, findings and notices.


_OUTCOME = {
    Outcome.SUCCEEDED: "ok",
    Outcome.FAILED: "bad",
    Outcome.RESTARTED: "warn",
    Outcome.STOPPED: "stale",
    Outcome.LOST: "bad",
}


def end_rows(frame: Frame, width: int) -> list[Row]:
    """The end of a run: what happened, why, and what it took."""
    state = frame.state
    glyph, style = glyphs.RUN[state.phase]
    after = "" if state.phase is RunPhase.LOST else f" after {duration_exact(state.lasted(frame.now))}"
    head = f" {glyph} {state.phase}{after}, {plural(len(state.attempts), 'attempt')}"
    code = "" if state.exit_code is None else f", exit code {state.exit_code}"
    rows: list[Row] = [((head + code, style),)]
    if state.end_text:
        rows += wrap(state.end_text, width - 1, first="   ")
    left = remains(state, frame.now)
    if left:
        rows += wrap(left, width - 1, "warn", first="   ")
    cause = _last_cause(state)
    if cause is not None and state.phase is not RunPhase.SUCCEEDED:
        rows += cause_rows(cause, width)
    if len(state.attempts) > 1:
        rows += ledger_rows(state, width)
    return rows


def _last_cause(state: RunState) -> FirstCause | None:
    return next(filter(None, (attempt.first_cause for attempt in reversed(state.attempts))), None)


def cause_rows(cause: FirstCause, width: int) -> list[Row]:
    """The first cause: rank, sentence, last lines of its stderr, victims."""
    place = f"rank {cause.rank} (local {cause.local_rank}, node {cause.node}, pid {cause.pid or 'unknown'})"
    rows: list[Row] = [((" first cause  ", "dim"), (place, "head"))]
    rows += wrap(cause_text(cause), width - 1, first="   ")
    if cause.oom:
        rows += wrap(f"killed for memory: {cause.oom}", width - 1, "warn", first="   ")
    if cause.last_lines:
        rows.append(((f" last lines of rank {cause.rank}'s stderr", "dim"),))
    rows += [((" │ ", "bad"), (clean_text(line), "text")) for line in cause.last_lines]
    if cause.victims:
        rows += wrap(f"ended after it: {spans_text('rank', cause.victims)}", width - 1, "dim", first="   ")
    return rows


def ledger_rows(state: RunState, width: int) -> list[Row]:
    """Every attempt: when, how long, why it began, how it ended, what changed."""
    rows: list[Row] = [((" attempts", "dim"),)]
    for attempt in state.attempts:
        outcome = str(attempt.outcome) if attempt.outcome else "running"
        style = _OUTCOME[attempt.outcome] if attempt.outcome else "ok"
        over = attempt.ended is not None or state.ended is not None
        took = (
            duration_exact(attempt.lasted(None if attempt.ended is not None else state.ended))
            if over
            else ""
        )
        text = f"   {attempt.number:>3}  {time_of_day(attempt.began)}  {fit(attempt.cause, 10)}  {fit(took, 12)}"
        rows.append(((text, "text"), (fit(outcome, 11), style), (_changes(attempt), "dim")))
    return rows


def _differing(attempt: Attempt) -> list[str]:
    """What ranks have instead of what the attempt changed, a piece a rank."""
    return [
        f"rank {rank} has "
        + " ".join(
            f"no {name}" if value is None else f"{name}={value}" for name, value in sorted(env.items())
        )
        for rank, env in sorted(attempt.env_differs.items(), key=lambda pair: int(pair[0]))
    ]


def _changes(attempt: Attempt) -> str:
    changed = " ".join(
        f"-{name}" if value is None else f"{name}={mask(name, value)}"
        for name, value in sorted(attempt.env_diff.items())
    )
    return "; ".join(filter(None, [changed, *_differing(attempt)]))


def event_rows(frame: Frame, width: int) -> list[Row]:
    """The events screen: findings with remedy and evidence, the ledger, the notices newest first."""
    state = frame.state
    rows: list[Row] = []
    for finding in standing(state):
        glyph, style = glyphs.severity(finding)
        rows.append(
            ((f" {glyph} {finding.id}", style), (_rank_and_node(finding.rank, finding.node), "dim"))
        )
        rows += wrap(finding.text, width - 1, first="   ")
        if finding.remedy:
            rows += wrap(f"do: {finding.remedy}", width - 1, "accent", first="   ")
        rows += [((" │ ", "dim"), (clean_text(line), "dim")) for line in finding.evidence]
    if not state.findings:
        rows.append(((" no findings", "dim"),))
    cause = _last_cause(state)
    if cause is not None:
        rows += [(), *cause_rows(cause, width)]
    rows += [(), *ledger_rows(state, width), (), ((" notices, newest first", "dim"),)]
    for at, text in reversed(state.notices):
        rows += wrap(clean_text(text), width - 1, first=f"   {time_of_day(at)}  ", then=" " * 13)
    return rows


def _rank_and_node(rank: int | None, node: int | None) -> str:
    return (f"  rank {rank}" if rank is not None else "") + (f"  node {node}" if node is not None else "")
