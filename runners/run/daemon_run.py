"""The run that an agent or a hub serves, shared by all its parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import file_io, run_directories
from .chronicle import Chronicle
from .finding_ledger import FindingLedger
from .model import HUB, Event, RunPhase
from .parts import Parts, failure, printed

if TYPE_CHECKING:
    from ...presets.plan import Plan


class DaemonRun:
    """Call all methods on the event loop."""

    def __init__(self, entry: run_directories.Entry, plan: Plan, node: int) -> None:
        """`node`: default node of its events; HUB for the run as a whole."""
        self.entry, self.record, self.run_dir = entry, entry.record, entry.path
        self.plan, self.node = plan, node
        self.chronicle = chronicle = Chronicle(entry.path)
        self.state, self.journal, self.until = chronicle.state, chronicle.journal, chronicle.until
        self.findings = FindingLedger(self.emit, self.state.findings)
        self.parts = Parts(self._part_failed)
        self._printed: dict[str, str] = {}
        """Part → its newest traceback in agent.log."""

    def emit(self, event: Event, *, source: int = 0, at: float | None = None) -> None:
        """See Chronicle.emit."""
        self.chronicle.emit(event, node=self.node, source=source, at=at)

    def _part_failed(self, name: str, error: BaseException, follows: str) -> None:
        """Print the traceback to agent.log unless it repeats the last one, and raise a finding."""
        text = printed(error)
        if self._printed.get(name) != text:
            self._printed[name] = text
            sys.stderr.write(f"distui: internal error in {name}: {follows}\n{text}")
        if self.state.phase.ended:
            return  # no event follows the end
        node = None if self.node == HUB else self.node
        remedy = "the traceback is in agent.log; please report it"
        self.findings.raise_finding(failure(name, error, follows, node, remedy))

    def stopping(self) -> bool:
        """Whether a requested stop is in progress."""
        return self.state.phase is RunPhase.STOPPING

    def identify(self, socket: Path) -> None:
        """Write agent.json; on a full disk, as soon as there is room."""
        path, who = self.run_dir / run_directories.AGENT_FILE, file_io.identify(socket=str(socket))
        try:
            file_io.write(path, who)
        except OSError:
            self.parts.once("identity", file_io.keep(path, who))
