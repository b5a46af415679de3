"""The runs of this machine as `distui ls --json` lists them, each read from its own files and processes."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from msgspec import Struct

from ..diagnosis.status import RunFigures, figures
from ..run import clock, run_directories, run_notes
from ..run.history import History
from ..run.model import RunPhase
from ..run.run_notes import RunNotes


class RunLine(TypedDict):
    """A run in `ls --json`."""

    run: str
    name: str
    state: str
    attempt: int | None
    created: float
    host: str
    path: str
    preset: str | None
    nodes: int | None
    ranks: int | None
    step: int | None
    total: int | None
    exit_code: int | None
    finding: str
    lasted_s: float | None
    hung: bool
    ended: float | None
    tags: list[str]
    note: str | None
    size: int | None
    problems: list[str]
    orphans: list[int]
    on: NotRequired[str]
    """The host of --host that keeps the run."""


class ReadRun(Struct, frozen=True, kw_only=True):
    """A run with all that a list shows of it."""

    entry: run_directories.Entry
    history: History
    phase: RunPhase
    figures: RunFigures
    marks: RunNotes
    orphans: list[int]
    """Pids of a lost run that still live."""

    @property
    def problems(self) -> list[str]:
        """Sentences about damaged files."""
        return [*self.history.problems, *filter(None, [self.marks.problem])]

    def document(self, size: int | None = None) -> RunLine:
        """Return the JSON of the run. `size`: bytes of its directory."""
        record, plan, its = self.entry.record, self.history.state.plan, self.figures
        return {
            "run": record.run,
            "name": record.name,
            "state": str(self.phase),
            "attempt": its.attempt,
            "created": record.created,
            "host": record.host,
            "path": str(self.entry.path),
            "preset": plan.preset if plan else None,
            "nodes": its.nodes,
            "ranks": its.ranks,
            "step": its.step,
            "total": its.total,
            "exit_code": its.exit_code,
            "finding": its.finding,
            "lasted_s": its.lasted_s,
            "hung": its.hung,
            "ended": its.ended,
            "tags": list(self.marks.tags),
            "note": self.marks.note or None,
            "size": size,
            "problems": self.problems,
            "orphans": self.orphans,
        }


def runs_here() -> list[ReadRun]:
    """Return the runs of this machine, newest first; a damaged run does not affect others."""
    return [read_run(entry) for entry in (*run_directories.entries(), *run_directories.strays())]


def read_run(entry: run_directories.Entry) -> ReadRun:
    """Read a run's own files and processes."""
    history = entry.history()
    phase = run_directories.phase(entry, history)
    return ReadRun(
        entry=entry,
        history=history,
        phase=phase,
        figures=figures(entry, history, phase, clock.now()),
        marks=run_notes.read(entry.path),
        orphans=run_directories.orphans(entry) if phase is RunPhase.LOST else [],
    )
