"""What the files of a run say happened, whatever is left of them.

The journal is the first witness. Where it is torn, empty or gone, the record says which run it was, the runner's
report what became of its attempts, and end.json how it ended: that was written and synced in a file of its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from ..presets.finding import PlanError
from . import file_io, journal
from .model import HUB, PlanSummary, RunCreated, RunEnded, RunPhase, Stamped
from .state import RunState

REPORT = "runner.jsonl"
PLAN_FILE = "plan.json"
_events = msgspec.json.Decoder(Stamped)


class RunRecord(Struct, frozen=True):
    """run.json: what never changes about a run."""

    run: str
    run8: str
    """Eight hex digits; the stem of its socket names."""
    name: str
    created: float
    host: str
    kind: str = "local"
    """"local": an agent here runs all its ranks; "node": one node's part of a run on several nodes; "hub": a run on
    several nodes, as a hub here keeps it."""
    node: int = 0
    nnodes: int = 1
    whole: str = ""
    """Of a part: the id of the run it belongs to."""


@dataclass(slots=True)
class History:
    """Events in order, and what is wrong with the files that they were read from."""

    events: list[Stamped] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A sentence without its full stop each; every one names its file."""
    journaled: bool = False
    """Whether the journal itself says which run this is."""
    unread: bool = False
    """Whether a journal that is otherwise whole lacks the end that the runner reported."""
    state: RunState = field(default_factory=RunState)
    """All of it, folded."""

    def add(self, stamped: Stamped) -> None:
        """One event more."""
        self.events.append(stamped)
        self.state.apply(stamped)


def read(path: Path, record: RunRecord) -> History:
    """Everything that the run directory `path` says of its run."""
    history = History()
    events = _journal(path, history.problems)
    history.journaled = any(isinstance(stamped.event, RunCreated) for stamped in events)
    if not history.journaled:
        if _begun(path):
            _problem(
                history,
                f"{journal.NAME} {'is empty' if not events else 'has lost its beginning'}",
                journal.NAME,
            )
        history.add(_created(path, record))
    for stamped in events:
        history.add(stamped)
    if not history.state.phase.ended and record.kind != "hub":
        _add_report(path, history)
    if not history.state.phase.ended or history.unread:
        _add_end(path, history)
    return history


def _problem(history: History, text: str, name: str) -> None:
    if not any(name in problem for problem in history.problems):
        history.problems.append(text)


def _begun(path: Path) -> bool:
    """Whether the run cannot be new: an attempt or a runner's report is there."""
    files = (path / REPORT, path / journal.END_FILE)
    return any(path.glob("node-*/attempt-*")) or any(map(os.path.exists, files))


def _journal(path: Path, problems: list[str]) -> list[Stamped]:
    """The events of the journal by their numbers, each once."""
    unread: list[str] = []
    events = list(journal.read(path, -1, unread))
    if os.path.lexists(path / journal.NAME) or _begun(path):
        problems += unread
    if any(after.seq <= before.seq for before, after in pairwise(events)):
        problems.append(f"{journal.NAME} is out of order")
        events = [event for _, event in sorted({event.seq: event for event in reversed(events)}.items())]
    return events


def _created(path: Path, record: RunRecord) -> Stamped:
    """What the lost beginning of the journal has said."""
    node = HUB if record.kind == "hub" else record.node
    event = RunCreated(record.run, record.name, record.host, _plan(path), merged=record.kind == "hub")
    return Stamped(record.created, event, 0, node)


def _plan(path: Path) -> PlanSummary:
    from ..presets.render import plan_from_json  # slow to import, and most journals are whole
    from .journal import summarise

    try:
        return summarise(plan_from_json(json.loads(file_io.content(path / PLAN_FILE))))
    except (file_io.FileError, PlanError, ValueError, RecursionError, TypeError, AttributeError):
        return PlanSummary("", "", "", "")


def _add_report(path: Path, history: History) -> None:
    """What the runner reported and no agent has read yet."""
    stopping = history.state.phase is RunPhase.STOPPING
    try:
        for offset, line in file_io.lines(path / REPORT, history.state.source):
            stamped = file_io.decoded(_events, line)
            if stamped is None:
                continue
            event = stamped.event
            if isinstance(event, RunEnded):
                history.unread = history.journaled
                if stopping and event.phase is not RunPhase.SUCCEEDED:
                    event = RunEnded(RunPhase.STOPPED, event.exit_code, "stopped")
            node = history.events[0].node
            history.add(structs.replace(stamped, event=event, seq=0, source=offset, node=node))
    except file_io.FileError as error:
        if not error.missing:
            history.problems.append(f"{error.name} {error.why}")


def _add_end(path: Path, history: History) -> None:
    """How the run ended, from its second place; not of an end after which the run went on."""
    try:
        end = file_io.document(path / journal.END_FILE, Stamped)
    except file_io.FileError as error:
        if not error.missing:
            history.problems.append(f"{error.name} {error.why}")
        return
    if isinstance(end.event, RunEnded) and end.seq > history.state.seq:
        history.unread = False
        history.add(structs.replace(end, seq=0))
