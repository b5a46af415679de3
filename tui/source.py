"""What the cockpit is handed on this machine: the registry's runs, the jobs distui did not start, and the launcher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..presets.clean import clean_text
from ..presets.finding import PlanError, PresetError
from ..runners import registry
from ..runners.errors import LaunchError, RunError
from ..runners.local import open_link
from ..runners.model import CommandDone, Down, SetAutostop, Stop
from ..runners.wire.link import Link, LinkError
from ..runners.words import elapsed
from .follower import PresetEntry, RunEntry

# What discovers jobs and what plans launches is imported where it is used: the first picture of a run needs neither.
if TYPE_CHECKING:
    from ..presets.model import Loaded
    from ..runners.hub.cloud import Candidate
    from ..runners.launch.launch_form import LaunchForm, LaunchPreview
    from ..runners.watch.discover import WatchedJob
    from .shelf import Shelf
    from .terminal import Shell

WATCH = "watch:"


def first_pid(job: WatchedJob) -> int:
    """By which the user may name a job that distui did not start."""
    return min(found.pid for found in job.ranks.values())


def job_name(job: WatchedJob) -> str:
    """What it runs."""
    from ..runners.watch.discover import name_of

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
        known = entry.history()
        phase, state = registry.phase(entry, known), known.state
        shown = RunEntry(
            id=entry.record.run, name=entry.record.name, phase=str(phase), age_s=elapsed(entry.record.created, now),
            live=not phase.ended, readonly=phase.ended, preset=state.plan.preset if state.plan else "",
            problem=clean_text(f"damaged: {known.problems[0]}") if known.problems else "",
        )  # fmt: skip
        if state.phase.ended:  # a lost run may be restarted
            self._ended[entry.record.run] = shown
        return shown

    async def open(self, run_id: str) -> Link:
        """See RunSource.open."""
        try:
            if run_id.startswith(WATCH):
                from ..runners.watch.discover import find_job, scan
                from ..runners.watch.watch_link import WatchLink

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

    def plan(self, form: LaunchForm, ask: bool = False) -> LaunchPreview:
        """See RunSource.plan."""
        from ..runners.launch import launch_form

        try:
            return launch_form.preview(form, ask)
        except (RunError, PresetError, PlanError) as error:
            return launch_form.LaunchPreview(text="", problems=(str(error),))

    async def candidates(self, form: LaunchForm) -> list[Candidate]:
        """See RunSource.candidates."""
        from ..runners.launch import launch_form

        try:
            return await launch_form.candidates(form)
        except (RunError, PresetError) as error:
            raise LaunchError(str(error)) from None

    async def launch(self, form: LaunchForm) -> str:
        """See RunSource.launch."""
        from ..runners.launch import launch_form

        try:
            started = await asyncio.to_thread(lambda: launch_form.prepared(form).start())
        except (RunError, PresetError, PlanError) as error:
            raise LaunchError(str(error)) from None
        return started.record.run

    def shell(self, run_id: str, node: int) -> Shell | None:
        """See RunSource.shell."""
        from .terminal import shell_on

        if run_id.startswith(WATCH):
            return None
        try:
            entry = registry.resolve(run_id)
            return shell_on(entry.path, node) if entry.record.kind == "hub" else None
        except RunError as error:
            raise LaunchError(str(error)) from None

    async def stop(self, run_id: str, command: Stop, say: Callable[[str], None]) -> CommandDone:
        """See RunSource.stop."""
        from ..runners.forced_stop import stop_run

        try:
            return await stop_run(registry.resolve(run_id), command, say, open_link)
        except (RunError, OSError) as error:
            raise LinkError(str(error)) from None

    async def afterwards(self, run_id: str, command: Down | SetAutostop) -> CommandDone:
        """See RunSource.afterwards."""
        from ..runners.hub import after

        try:
            ok, text = await after.do(registry.resolve(run_id), command)
        except (RunError, OSError) as error:
            raise LinkError(str(error)) from None
        return CommandDone(command.id, ok, text)
