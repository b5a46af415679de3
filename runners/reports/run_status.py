"""The state of a run as `distui status` shows it: with damaged files, unreported notifications, tags and note."""

from __future__ import annotations

from ..diagnosis.status import DAMAGED
from ..node.agentless import DiskLink, FilesLink, damage
from ..notify.unreported import unreported
from ..run import clock, run_directories
from ..run.model import Event, FindingRaised, Stamped
from ..run.run_notes import RunNotes
from ..run.state import RunState
from ..run.wire.client import Link
from .status_document import MarkedStatus, status_json


def complete(state: RunState, entry: run_directories.Entry, link: Link) -> None:
    """Add what the link does not report: damaged files that its agent does not need, and the state that `ls` shows."""
    if isinstance(link, FilesLink) and not state.phase.ended:
        state.phase = run_directories.phase(entry, entry.history())
    events: list[Event] = []
    if state.phase.ended:
        events += map(FindingRaised, unreported(entry))
    if not isinstance(link, DiskLink) and all(each.id != DAMAGED for each in state.findings.values()):
        events += damage(entry, entry.history())
    for event in events:
        state.apply(Stamped(clock.now(), event, node=entry.record.node))
    if state.plan is not None and not state.plan.launcher:
        state.plan = None  # neither the journal nor plan.json has a plan


def marked(state: RunState, marks: RunNotes) -> MarkedStatus:
    """Return the JSON of `status`."""
    return {**status_json(state), "tags": list(marks.tags), "note": marks.note or None}
