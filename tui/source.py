"""The cockpit's access to the runs and jobs of this machine, and to the launcher."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.structs import replace

from ..presets.finding import PlanError, PresetError
from ..presets.rank_env import COMMAND_LINE
from ..presets.secrets import mask
from ..runners.diagnosis.status import figures
from ..runners.node.agentless import stop_run
from ..runners.node.local_agent import open_link
from ..runners.removal.directory_trees import size_of
from ..runners.run import clock, file_io, run_directories, run_notes
from ..runners.run.commands import Down, SetAutostop, Stop
from ..runners.run.errors import LaunchError, RunError
from ..runners.run.model import CommandDone
from ..runners.run.wire.client import Link, LinkError
from ..runners.watch.foreign_jobs import find_job, scan
from .other_hosts import OtherHosts
from .own_verbs import verb_document
from .rows.runs import RunEntry, entry_of

# Code that watches jobs or plans launches is imported on demand, since the first frame of a run needs neither.
if TYPE_CHECKING:
    from ..presets.model import Loaded
    from ..runners.comparison.rerun_changes import LaunchChange
    from ..runners.hub.sky_process import Candidate
    from ..runners.launch.launch_form import LaunchForm, LaunchPreview
    from ..runners.launch.preset_library import PresetEntry, PresetLibrary
    from ..runners.launch.recent import CopiedForm

WATCH = "watch:"
"""Prefix of the pid in the id of a job that distui did not start."""

MEASURED_S = 30.0
"""Maximum age of a live run's size in seconds."""
MEASURING_S = 0.3
"""Maximum seconds of measuring sizes before the list is shown again."""


class Shell(Struct, frozen=True):
    """The command that opens a shell; `argv` is () if there is none."""

    argv: tuple[str, ...]
    text: str = ""
    """A sentence for the user."""


class LocalSource:
    """The runs, jobs and presets of this machine, and its launcher."""

    simulated = False
    """Whether the first run is simulated."""

    def __init__(self, readonly: bool = False) -> None:
        self._readonly = readonly
        self._ended: dict[str, RunEntry] = {}
        """Entries of ended runs, whose journals do not change and are read only once."""
        self._sizes: dict[str, tuple[float, int]] = {}
        """Id → time of the measurement, and bytes of the directory."""
        self.elsewhere = OtherHosts()

    def runs(self) -> list[RunEntry]:
        """Return every run of this user on this machine, newest first, then the jobs that can be watched.

        Cheap: called once per second while the list is shown.
        """
        now = clock.now()
        recorded = [self._entry(entry, now) for entry in run_directories.entries()]
        watched = [
            RunEntry(
                id=f"{WATCH}{job.pid}",
                name=job.name,
                phase="watched",
                age_s=max(0.0, now - job.began),
                lasted_s=max(0.0, now - job.began),
                live=True,
                readonly=True,
                preset=job.launcher,
                ranks=len(job.ranks),
                finding="not started by distui",
            )
            for job in scan().jobs.values()
            if job.run is None
        ]
        return recorded + watched + self.elsewhere.entries({entry.id for entry in recorded}, now)

    def _entry(self, entry: run_directories.Entry, now: float) -> RunEntry:
        kept = self._ended.get(entry.record.run)
        if kept is not None:
            marks = run_notes.read(entry.path)
            size = self._size(entry.record.run)
            return replace(kept, size=size, tags=marks.tags, note=marks.note).as_of(now)
        history = entry.history()
        phase, state = run_directories.phase(entry, history), history.state
        its, marks = figures(entry, history, phase, now), run_notes.read(entry.path)
        listed = replace(entry_of(entry, history, phase, its, marks), size=self._size(entry.record.run))
        if state.phase.ended:  # a lost run may be restarted
            self._ended[entry.record.run] = listed
        return listed.as_of(now)

    def _size(self, run: str) -> int | None:
        return self._sizes[run][1] if run in self._sizes else None

    def measured_runs(self) -> list[RunEntry]:
        """Return the runs with sizes, measuring for at most MEASURING_S seconds; called in a thread."""
        began = clock.monotonic()
        for listed in self.runs():
            when, _ = self._sizes.get(listed.id, (0.0, 0))
            stale = not when or (listed.live and began - when > MEASURED_S)
            if listed.path and stale and clock.monotonic() - began < MEASURING_S:
                self._sizes[listed.id] = clock.monotonic(), size_of(Path(listed.path))
        return self.runs()

    def mark(self, kind: str, text: str, run_id: str) -> str:
        """Write a "note" or "tags" of a run, as `distui note` and `distui tag` do; return "" or an error."""
        try:
            path = run_directories.resolve(run_id).path
            if kind == "note":
                run_notes.note(path, text)
            else:
                run_notes.tag(path, *run_notes.words_of(text.split()))
        except RunError as error:
            return str(error)
        return ""

    def remove(self, runs: Sequence[str]) -> tuple[list[str], int, list[str]]:
        """Remove ended runs by their ids; return their names, the freed bytes, and a sentence for each failure."""
        from ..runners.removal import run_removal

        names, freed, problems = list[str](), 0, list[str]()
        for run in runs:
            try:
                entry = run_removal.entry_of(run)
                freed += run_removal.remove(entry).size
            except RunError as error:
                problems.append(str(error))
            else:
                names.append(entry.record.name)
                self._ended.pop(run, None)
        return names, freed, problems

    def places(self, run_id: str) -> dict[str, str]:
        """Return what a run's files on this machine say of its launch; {} without files.

        "directory" is the working directory, "records" that of the files, "environment" the user's variables.
        """
        try:
            path = run_directories.resolve(run_id).path
        except RunError:
            return {}
        places = {"records": str(path)}
        plan = file_io.document_or_none(path / run_directories.PLAN_FILE, dict[str, Any])
        if plan is not None and isinstance(plan.get("cwd"), str):
            places["directory"] = plan["cwd"]
        if plan is not None and (variables := _variables_text(plan)):
            places["environment"] = variables
        return places

    async def open(self, run_id: str) -> Link:
        """Return a link to the run, and start an agent if it has none. Raises LinkError."""
        with _raised_as(LinkError):
            if run_id.startswith(WATCH):
                from ..runners.watch.watch_link import WatchLink

                return WatchLink(find_job(scan(), int(run_id.removeprefix(WATCH))))
            return await open_link(run_directories.resolve(run_id), self._readonly)

    @cached_property
    def library(self) -> PresetLibrary:
        """The presets; nothing of them is read before a launch."""
        from ..runners.launch.preset_library import PresetLibrary

        return PresetLibrary()

    def presets(self) -> list[PresetEntry]:
        """Read all presets again, and return them, including those that cannot be loaded."""
        return self.library.entries()

    def preset(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        """Return a preset with some fields changed. Cheap. Raises LaunchError."""
        with _raised_as(LaunchError):
            return self.library.load(name, overrides)

    def save(self, name: str, form: LaunchForm, replace: bool = False) -> str:
        """Save the form's preset with its changes as the user's own; return the path of its file.

        Raises FileExistsError if the file exists and `replace` is False, and LaunchError.
        """
        from ..runners.launch import launch_form

        with _raised_as(LaunchError):
            return launch_form.save(name, form, replace)

    def plan(self, form: LaunchForm, ask: bool = False) -> LaunchPreview:
        """Return what a launch of this form would do. Changes nothing; called in a thread; never raises.

        `ask` probes the hosts that the user named; otherwise their checks are left open.
        """
        from ..runners.launch import launch_form

        try:
            return launch_form.preview(form, ask)
        except (RunError, PresetError, PlanError) as error:
            return launch_form.LaunchPreview(text="", problems=(str(error),))

    def form_of(self, run_id: str) -> CopiedForm:
        """Return the launch form of a run. Raises LaunchError."""
        from ..runners.launch import recent

        with _raised_as(LaunchError):
            if run_id.startswith(WATCH):
                raise RunError("distui did not start this job, so it has no launch form")
            return recent.copied(run_directories.resolve(run_id), os.getcwd())

    async def candidates(self, form: LaunchForm) -> list[Candidate]:
        """Return the nodes that SkyPilot offers for this form. Raises LaunchError."""
        from ..runners.launch import launch_form

        with _raised_as(LaunchError):
            return await launch_form.candidates(form)

    async def launch(self, form: LaunchForm) -> str:
        """Launch the form and return the run's id. Raises LaunchError."""
        from ..runners.launch import launch_form

        with _raised_as(LaunchError):
            started = await asyncio.to_thread(lambda: launch_form.prepared(form).start())
            return started.record.run

    async def rerun_changes(self, run_id: str) -> list[LaunchChange]:
        """Return what `distui rerun` would change. Raises LaunchError."""
        from ..runners.comparison.rerun_changes import LaunchChange

        document, _ = await _rerun(run_id, "--dry-run")
        return convert(document["changes"], list[LaunchChange])

    async def rerun(self, run_id: str) -> str:
        """Start an ended run again, as `distui rerun` does, and return the id of the new run. Raises LaunchError."""
        document, _ = await _rerun(run_id, "--detach")
        return str(document["run"])

    def retire(self, launched: str) -> str:
        """Remove the runs that the settings no longer keep after a launch; return a sentence, "" if none was removed."""
        from ..runners.removal import retention

        return retention.retire(retention.load(), launched)

    def kept_at(self, run_id: str) -> tuple[Path | None, bool]:
        """Return a run's directory on this machine (None if there is none), and whether its traces are elsewhere."""
        try:
            entry = run_directories.resolve(run_id)
        except RunError:
            return None, True
        return entry.path, entry.record.kind == "hub"

    def shell(self, run_id: str, node: int) -> Shell | None:
        """Return a shell on a node of a multi-node run; None for other runs. Raises LaunchError."""
        if run_id.startswith(WATCH):
            return None
        with _raised_as(LaunchError):
            entry = run_directories.resolve(run_id)
            return shell_on(entry.path, node) if entry.record.kind == "hub" else None

    async def stop(self, run_id: str, command: Stop, say: Callable[[str], None]) -> CommandDone:
        """Stop a run, even if its agent or hub does not answer, which `say` reports. Raises LinkError."""
        with _raised_as(LinkError):
            return await stop_run(run_directories.resolve(run_id), command, say, open_link)

    async def afterwards(self, run_id: str, command: Down | SetAutostop) -> CommandDone:
        """Execute a cluster command of a run that has ended. Raises LinkError."""
        from ..runners.hub import sky_cloud

        with _raised_as(LinkError):
            ok, text = await sky_cloud.carry_out(run_directories.resolve(run_id), command)
            return CommandDone(command.id, ok, text)


async def _rerun(run_id: str, option: str) -> tuple[dict[str, Any], list[str]]:
    """Execute `distui rerun` with JSON. Raises LaunchError."""
    with _raised_as(LaunchError):
        if run_id.startswith(WATCH):
            raise RunError(
                "distui did not start this job: start it with `distui exec` to be able to repeat it"
            )
        return await verb_document("rerun", run_id, option, "--json")


_CAUSES: dict[type[LaunchError | LinkError], tuple[type[Exception], ...]] = {
    LaunchError: (RunError, PresetError, PlanError),
    LinkError: (RunError, OSError),
}
"""Error that screens handle → errors of the lower layers that it reports."""


@contextmanager
def _raised_as(kind: type[LaunchError | LinkError]) -> Iterator[None]:
    """Convert the errors of the lower layers to the error that screens handle."""
    try:
        yield
    except _CAUSES[kind] as error:
        raise kind(str(error)) from None


def shell_on(run_dir: Path, node: int, environ: Mapping[str, str] = os.environ) -> Shell:
    """Return a shell on one node of the run with this hub directory. Raises RunError."""
    from ..runners.node import routes

    route = next((route for route in routes.read(run_dir) if route.node == node), None)
    if route is None:
        raise RunError(f"node {node} is not reachable yet; wait until its link is up")
    if route.kind == "ssh":
        return Shell(("ssh", "-t", *route.options, "--", route.target))
    if route.kind == "unix":
        return Shell((environ.get("SHELL") or "/bin/sh",), f"{route.host} is this machine")
    why = "is reached through the agent of the head node, which carries no shell"
    return Shell((), f"{route.host} {why}: ssh {route.host}")


def _variables_text(plan: Mapping[str, Any]) -> str:
    """Return the variables that the user set for a launch, secrets masked: `A=1 B=***`."""
    env, origins = plan.get("env"), plan.get("origins")
    if not isinstance(env, dict) or not isinstance(origins, dict):
        return ""
    own = sorted(name for name in env if origins.get(name) == COMMAND_LINE)
    return " ".join(f"{name}={mask(name, str(env[name]))}" for name in own)
