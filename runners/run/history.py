"""All files of a run, read back and folded.

The journal is the primary source. If it is torn, empty or missing, the record says which run it was and the runner's
report how its attempts ended. end.json, written and synced separately, says how the run ended.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field, structs

from . import file_io, snapshot
from .journal import END_FILE, NAME, decoded, read
from .model import (
    HUB,
    PlanSummary,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from .run_record import PLAN_FILE, RunRecord, summarise
from .state import RunState

REPORT = "runner.jsonl"


class History(Struct):
    """Folded content of a run's files, with their problems."""

    node: int = 0
    """Node number of the first event."""
    problems: list[str] = field(default_factory=list)
    """Sentences without a full stop; each names its file."""
    journaled: bool = False
    """Whether the journal itself identifies the run."""
    unread: bool = False
    """Whether an otherwise intact journal lacks an end that the runner reported."""
    state: RunState = field(default_factory=RunState)
    """Fold of all events."""
    _events: list[Stamped] = field(default_factory=list)
    _rest: Callable[[], History] | None = None
    """Reads all events, if `_events` holds only those after a snapshot."""

    @property
    def events(self) -> list[Stamped]:
        """All events in order."""
        if self._rest is not None:
            self._events, self._rest = self._rest().events, None
        return self._events

    def add(self, stamped: Stamped) -> None:
        """Append and fold one event."""
        self._events.append(stamped)
        self.state.apply(stamped)


def read_history(path: Path, record: RunRecord, whole: bool = False) -> History:
    """Read and fold all files of the run directory `path`; `whole`: fold from the first event, without a snapshot."""
    history = None if whole else _from_snapshot(path, record)
    if history is None:
        history = _from_beginning(path, record)
    if not history.state.phase.ended and record.kind != "hub":
        _add_report(path, history)
    if not history.state.phase.ended or history.unread:
        _add_end(path, history)
    return history


def _from_snapshot(path: Path, record: RunRecord) -> History | None:
    """Return the history from the snapshot and the later events; None if the snapshot is not trusted."""
    held = snapshot.load(path, record.run, path / NAME)
    if held is None:
        return None
    history = History(HUB if record.kind == "hub" else record.node, journaled=True, state=held[0])
    history._rest = functools.partial(read_history, path, record, whole=True)
    for stamped in read(path, -1, history.problems, held[1]):
        if stamped.seq <= history.state.seq:
            return None
        history.add(stamped)
    return history


def _from_beginning(path: Path, record: RunRecord) -> History:
    history = History()
    events = _journal(path, history.problems)
    history.journaled = any(isinstance(stamped.event, RunCreated) for stamped in events)
    if not history.journaled:
        if _begun(path):
            _problem(history, f"{NAME} {'is empty' if not events else 'has lost its beginning'}", NAME)
        history.add(_created(path, record))
    for stamped in events:
        history.add(stamped)
    history.node = history.events[0].node
    return history


def _problem(history: History, text: str, name: str) -> None:
    if not any(name in problem for problem in history.problems):
        history.problems.append(text)


def _begun(path: Path) -> bool:
    """Whether the run has already begun: its directory has an attempt, a report, or an end."""
    files = (path / REPORT, path / END_FILE)
    return any(path.glob("node-*/attempt-*")) or any(map(os.path.exists, files))


def _journal(path: Path, problems: list[str]) -> list[Stamped]:
    """Return the events of the journal in order of seq, each once."""
    unread: list[str] = []
    events = list(read(path, -1, unread))
    if os.path.lexists(path / NAME) or _begun(path):
        problems += unread
    if any(after.seq <= before.seq for before, after in pairwise(events)):
        problems.append(f"{NAME} is out of order")
        events = [event for _, event in sorted({event.seq: event for event in reversed(events)}.items())]
    return events


def _created(path: Path, record: RunRecord) -> Stamped:
    """Rebuild the lost first event of the journal."""
    node = HUB if record.kind == "hub" else record.node
    event = RunCreated(record.run, record.name, record.host, _plan(path), merged=record.kind == "hub")
    return Stamped(record.created, event, 0, node)


def _plan(path: Path) -> PlanSummary:
    from ...presets.plan_json import plan_from_json  # slow import that intact journals do not need

    try:
        return summarise(plan_from_json(json.loads(file_io.content(path / PLAN_FILE))))
    except Exception:  # noqa: BLE001 - the file may hold anything, and the other files show the run
        return PlanSummary("", "", "", "")


def _add_report(path: Path, history: History) -> None:
    """Add events that the runner reported and no agent has read."""
    stopping = history.state.phase is RunPhase.STOPPING
    try:
        for offset, line in file_io.lines(path / REPORT, history.state.source):
            stamped = decoded(line)
            if stamped is None:
                continue
            event = stamped.event
            if isinstance(event, RunEnded):
                history.unread = history.journaled
                if stopping and event.phase is not RunPhase.SUCCEEDED:
                    event = RunEnded(RunPhase.STOPPED, event.exit_code, "stopped")
            history.add(structs.replace(stamped, event=event, seq=0, source=offset, node=history.node))
    except file_io.FileError as error:
        if not error.missing:
            history.problems.append(f"{error.name} {error.why}")


def _add_end(path: Path, history: History) -> None:
    """Add the run's end from end.json, unless the run continued after it."""
    try:
        end = file_io.document(path / END_FILE, Stamped)
    except file_io.FileError as error:
        if not error.missing:
            history.problems.append(f"{error.name} {error.why}")
        return
    if isinstance(end.event, RunEnded) and end.seq > history.state.seq:
        history.unread = False
        history.add(structs.replace(end, seq=0))
