"""What the cockpit is handed on this machine: the registry's runs, the jobs distui did not start, and the launcher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..presets.errors import PlanError, PresetError
from ..runners import registry
from ..runners.errors import RunError
from ..runners.local import open_link
from ..runners.model import CommandDone, Down, SetAutostop
from ..runners.wire.link import Link, LinkError
from .follow import LaunchError, LaunchForm, PresetEntry, Preview, RunEntry

# What discovers jobs and what plans launches is imported where it is used: the first picture of a run needs neither.
if TYPE_CHECKING:
    from ..presets.model import Loaded
    from ..runners.hub.candidates import Candidate
    from ..runners.watch.discover import Job
    from .shelf import Shelf
    from .shells import Shell

WATCH = "watch:"


def first_pid(job: Job) -> int:
    """By which the user may name a job that distui did not start."""
    return min(found.pid for found in job.ranks.values())


def job_name(job: Job) -> str:
    """What it runs."""
    from ..runners.watch.launcher import name_of

    return name_of(min(job.ranks.values(), key=lambda found: found.rank).argv)


class LocalSource:
    """Satisfies tui.follow.RunSource."""

    def __init__(self, readonly: bool = False) -> None:
        self._readonly = readonly
        self._shelf: Shelf | None = None
        self._ended: dict[str, RunEntry] = {}
        """Runs that have ended do not change any more: their journals are read once."""

    def runs(self) -> list[RunEntry]:
        """Every run of this user here, newest first, then the jobs that can be watched."""
        from ..runners.watch.discover import scan

        now = time.time()
        known = [self._entry(entry, now) for entry in registry.entries()]
        found = [
            RunEntry(
                id=f"{WATCH}{first_pid(job)}", name=job_name(job), phase="watched",
                age_s=max(0.0, now - job.began), live=True, readonly=True,
                preset=f"not started by distui ({job.launcher})",
            )
            for job in scan().jobs.values()
            if job.run is None
        ]  # fmt: skip
        return known + found

    def _entry(self, entry: registry.Entry, now: float) -> RunEntry:
        if entry.record.run in self._ended:
            return self._ended[entry.record.run]
        phase, state = registry.phase(entry), entry.state()
        shown = RunEntry(
            id=entry.record.run, name=entry.record.name, phase=str(phase), age_s=now - entry.record.created,
            live=not phase.ended, readonly=phase.ended, preset=state.plan.preset if state.plan else "",
        )  # fmt: skip
        if phase.ended:
            self._ended[entry.record.run] = shown
        return shown

    async def open(self, run_id: str) -> Link:
        """See RunSource.open."""
        try:
            if run_id.startswith(WATCH):
                from ..runners.watch.discover import find_job, scan
                from ..runners.watch.link import WatchLink

                return WatchLink(find_job(scan(), int(run_id.removeprefix(WATCH))))
            return await open_link(registry.resolve(run_id), self._readonly)
        except RunError as error:
            raise LinkError(str(error)) from None

    @property
    def shelf(self) -> Shelf:
        """The presets; nothing of them is read before a launch."""
        if self._shelf is None:
            from .shelf import Shelf

            self._shelf = Shelf()
        return self._shelf

    def presets(self) -> list[PresetEntry]:
        """See RunSource.presets."""
        return self.shelf.entries()

    def preset(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        """See RunSource.preset."""
        try:
            return self.shelf.load(name, overrides)
        except PresetError as error:
            raise LaunchError(str(error)) from None

    def save(self, name: str, form: LaunchForm, replace: bool = False) -> str:
        """See RunSource.save."""
        from .shelf import save

        try:
            return save(name, form, replace)
        except (RunError, PresetError, PlanError) as error:
            raise LaunchError(str(error)) from None

    def plan(self, form: LaunchForm, ask: bool = False) -> Preview:
        """See RunSource.plan."""
        from . import placing

        try:
            return placing.preview(form, ask)
        except (RunError, PresetError, PlanError) as error:
            return Preview(text="", problems=(str(error),))

    async def candidates(self, form: LaunchForm) -> list[Candidate]:
        """See RunSource.candidates."""
        from . import placing

        try:
            return await placing.candidates(form)
        except (RunError, PresetError) as error:
            raise LaunchError(str(error)) from None

    async def launch(self, form: LaunchForm) -> str:
        """See RunSource.launch."""
        from . import placing

        try:
            started = await asyncio.to_thread(lambda: placing.prepare(form).start())
        except (RunError, PresetError, PlanError) as error:
            raise LaunchError(str(error)) from None
        return started.record.run

    def shell(self, run_id: str, node: int) -> Shell | None:
        """See RunSource.shell."""
        from .shells import shell_on

        if run_id.startswith(WATCH):
            return None
        try:
            entry = registry.resolve(run_id)
            return shell_on(entry.path, node) if entry.record.kind == "hub" else None
        except RunError as error:
            raise LaunchError(str(error)) from None

    async def afterwards(self, run_id: str, command: Down | SetAutostop) -> CommandDone:
        """See RunSource.afterwards."""
        from ..runners.hub import after

        try:
            ok, text = await after.do(registry.resolve(run_id), command)
        except (RunError, OSError) as error:
            raise LinkError(str(error)) from None
        return CommandDone(command.id, ok, text)
