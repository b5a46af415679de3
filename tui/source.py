"""What the cockpit is handed: the runs and jobs of this machine, the launcher, and the one task that follows a run."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..presets.finding import PlanError, PresetError
from ..presets.sanitize import clean_text
from ..runners import clock, file_io, run_directories, run_notes
from ..runners.agentless import stop_run
from ..runners.diagnosis.nccl_facts import NcclFacts, merge
from ..runners.directory_trees import size_of
from ..runners.errors import LaunchError, NoSuchRunError, RunError
from ..runners.foreign_jobs import WatchedJob, find_job, name_of, scan
from ..runners.local_agent import folded_batches, open_link
from ..runners.model import (
    Command,
    CommandDone,
    Down,
    Event,
    MetricsWindow,
    ReadMetrics,
    RunPhase,
    SetAutostop,
    Stop,
)
from ..runners.state import RunState
from ..runners.status import figures, judged_attempt
from ..runners.wire.client import BACKOFF_S, Link, LinkError, LinkFollower, Window
from ..runners.wire.ssh import HostError, Way
from .rows.frame import LinkPhase, LinkStatus
from .rows.runs import RunEntry, entry_of

# What watches jobs and what plans launches is imported where it is used: the first picture of a run needs neither.
if TYPE_CHECKING:
    from ..presets.model import Loaded
    from ..runners.hub.sky_process import Candidate
    from ..runners.launch.launch_form import LaunchForm, LaunchPreview, PresetEntry, PresetLibrary

WATCH = "watch:"
"""Before the pid in the id of a job that distui did not start."""

HOST = "host:"
"""Before host and run in the id of a run that another machine keeps."""


ASK_S = 60.0
"""How often other hosts are asked for their runs while the list is shown."""
ANSWER_S = 10.0
"""How long a host has for its answer."""
AT_ONCE = 8
"""Hosts that are being asked at the same time."""

MEASURED_S = 30.0
"""How old the size of a live run may be."""
MEASURING_S = 0.3
"""How long sizes are measured before the list is shown again."""


class Shell(Struct, frozen=True):
    """What opens a shell; `argv` () where nothing does."""

    argv: tuple[str, ...]
    text: str = ""
    """What the user should know of it, a sentence."""


class Follower(LinkFollower):
    """Follows one run: folds its events into `state`, reconnects, and carries commands and log windows."""

    def __init__(
        self,
        open_link: Callable[[], Awaitable[Link]],
        *,
        clock: Callable[[], float] = clock.now,
        backoff: tuple[float, ...] = BACKOFF_S,
        notify: Callable[[Event | None], None] = lambda event: None,
    ) -> None:
        """`notify` is called after events, once for each kind that came together, and with None when the connection
        has changed."""
        super().__init__(backoff)
        self.state = RunState()
        self.status = LinkStatus(LinkPhase.CONNECTING, clock())
        self.readonly = False
        self.heard = 0.0
        """When the last event arrived, by this machine's clock; 0.0 before the first."""
        self._open_link = open_link
        self._clock = clock
        self._notify = notify
        self._begun = 0
        """The newest event when the link was opened."""

    @property
    def stamp(self) -> tuple[int, int, bool, LinkStatus]:
        """Changes whenever something has happened; samples are counted by `state.telemetry_version`."""
        return (id(self.state), self.state.version, self.state.live, self.status)

    async def _follow(self) -> None:
        self._set(LinkPhase.LOST if self._tries else LinkPhase.CONNECTING, text=self.status.text)
        self._begun = self.state.seq
        link = self.link = await self._open_link()
        self.readonly = link.readonly
        async for batch in folded_batches(link, self.state):
            if self.status.phase is not LinkPhase.FOLLOWING:
                self._set(LinkPhase.FOLLOWING)
            self.heard = self._clock()
            for event in {type(stamped.event): stamped.event for stamped in batch}.values():
                self._notify(event)

    async def _settle(self, problem: str) -> float | None:
        if not problem and self.state.phase.ended:
            self._set(LinkPhase.ENDED)
            return None
        delay = self._count(steady=self.state.seq > self._begun)
        self._set(LinkPhase.LOST, problem or "the agent closed the connection", self._clock() + delay)
        return delay

    async def send(self, command: Command) -> CommandDone:
        """Send a command and wait for its answer. Raises LinkError, also while not connected."""
        return await self._connected().send(command)

    async def read_log(
        self, file: str, offset: int, limit: int = 65536, grep: str = "", *, line: int = 0, at: float = 0.0
    ) -> Window:
        """One window of a log file. Raises LinkError, also while not connected."""
        return await self._connected().read_log(file, offset, limit, grep, line=line, at=at)

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """Curves from the metrics on disk. Raises LinkError, also while not connected."""
        return await self._connected().read_metrics(ask)

    def _connected(self) -> Link:
        if self.link is None or self.status.phase is LinkPhase.LOST:
            raise LinkError("not connected to the agent; reconnecting")
        return self.link

    def _set(self, phase: LinkPhase, text: str = "", retry_at: float | None = None) -> None:
        self.status = LinkStatus(phase, self._clock(), retry_at, text)
        self._notify(None)


def first_pid(job: WatchedJob) -> int:
    """By which the user may name a job that distui did not start."""
    return min(rank.pid for rank in job.ranks.values())


def job_name(job: WatchedJob) -> str:
    """What it runs."""
    return name_of(min(job.ranks.values(), key=lambda rank: rank.rank).argv)


def _hosts() -> ModuleType:
    """What other hosts are asked by: slow to load, and many have none."""
    from ..runners.launch import hosts

    return hosts


class OtherHosts:
    """The runs of hosts that this user reaches by ssh without a password, as they were when each was asked last."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._entries: dict[str, list[RunEntry]] = {}
        """By host."""

    def entries(self, here: Collection[str], now: float) -> list[RunEntry]:
        """What is to be listed; not what is listed as a run of this machine (`here`) already."""
        return [
            entry.as_of(now)
            for entries in self._entries.values()
            for entry in entries
            if whole_of(entry.id.removeprefix(f"{HOST}{entry.host}:")) not in here
        ]

    def way(self, entry_id: str) -> tuple[Way, str] | None:
        """How the host of an entry is reached, and the run's id there; None for other entries."""
        host, _, run = entry_id.removeprefix(HOST).rpartition(":")
        return (self._ways[host], run) if entry_id.startswith(HOST) and run and host in self._ways else None

    async def ask(self, named: Sequence[str]) -> None:
        """Ask these hosts, and those of earlier launches, for their runs; none of them can fail the others."""
        try:
            ways = await asyncio.to_thread(_ways, named)
        except RunError as error:
            self._entries = {"": [host_entry("", "not asked", str(error))]}
            return
        self._ways = {way.destination: way for way in ways}
        self._entries = {
            host: self._entries.get(host) or [host_entry(host, "asking", "")] for host in self._ways
        }
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._ask(way, gate) for way in ways))

    async def _ask(self, way: Way, gate: asyncio.Semaphore) -> None:
        async with gate:
            self._entries[way.destination] = await _runs_on(way)


def _ways(named: Sequence[str]) -> list[Way]:
    """How these hosts are reached, and those of launches on hosts; [] at no cost where there are none."""
    if not named and not any(entry.record.kind == "hub" for entry in run_directories.entries()):
        return []
    ways: list[Way] = _hosts().ways_of(named)
    return ways


async def _runs_on(way: Way) -> list[RunEntry]:
    """What one host lists, or why it does not."""
    host = way.destination
    runs: list[dict[str, Any]]
    problems: list[str]
    try:
        async with asyncio.timeout(ANSWER_S):
            runs, problems = await _hosts().list_on([way])
    except TimeoutError:
        runs, problems = [], [f"{host} has not answered within {ANSWER_S:.0f} s: `ssh {host}` shows why"]
    listed = [entry for run in runs if (entry := entry_elsewhere(host, run)) is not None]
    return listed or [host_entry(host, "no answer", text) for text in problems]


def host_entry(host: str, phase: str, text: str) -> RunEntry:
    """The line of a host whose runs are not known."""
    return RunEntry(
        id=f"{HOST}{host}:",
        name="-",
        phase=phase,
        live=False,
        readonly=True,
        preset="",
        problem=clean_text(text),
        host=host,
        instead=clean_text(text) or f"{host}: its runs are asked for",
    )


def entry_elsewhere(host: str, run: Mapping[str, Any]) -> RunEntry | None:
    """A line of `ls --json` of another machine, which may be anything, without its ages; None for no run."""

    def text(name: str) -> str:
        value = run.get(name)
        return clean_text(value) if isinstance(value, str) else ""

    def number(name: str) -> float | None:
        value = run.get(name)
        sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
        return float(value) if sound and value is not None else None

    def count(name: str) -> int | None:
        value = number(name)
        return None if value is None else int(value)

    if not text("run"):
        return None
    tags = run.get("tags")
    marks = [clean_text(tag) for tag in tags[:64] if isinstance(tag, str)] if isinstance(tags, list) else []
    problems = run.get("problems")
    damaged = isinstance(problems, list) and problems
    live = text("state") in {str(phase) for phase in RunPhase if not phase.ended}
    return RunEntry(
        id=f"{HOST}{host}:{text('run')}",
        name=text("name") or text("run"),
        phase=text("state") or "unknown",
        began=number("created"),
        ended=number("ended"),
        live=live,
        readonly=True,
        preset=text("preset"),
        host=host,
        nodes=count("nodes"),
        ranks=count("ranks"),
        step=count("step"),
        total=count("total"),
        exit_code=count("exit_code"),
        lasted_s=number("lasted_s"),
        tags=tuple(marks),
        note=text("note"),
        attempt=count("attempt"),
        size=count("size"),
        finding=text("finding"),
        hung=run.get("hung") is True,
        problem=clean_text(f"damaged: {problems[0]}") if damaged and isinstance(problems, list) else "",
    )


def whole_of(run: str) -> str:
    """The id of the run that a node's part belongs to."""
    whole, dot, number = run.rpartition(".n")
    return whole if dot and number.isdecimal() else run


class LocalSource:
    """The runs, jobs and presets of this machine, and its launcher."""

    def __init__(self, readonly: bool = False) -> None:
        self._readonly = readonly
        self._library: PresetLibrary | None = None
        self._ended: dict[str, RunEntry] = {}
        """Runs that have ended do not change any more: their journals are read once."""
        self._sizes: dict[str, tuple[float, int]] = {}
        """Id → when its directory was measured, and its bytes."""
        self.elsewhere = OtherHosts()

    def runs(self) -> list[RunEntry]:
        """Every run of this user here, newest first, then the jobs that can be watched.

        Cheap: called once a second while the list is shown.
        """
        now = clock.now()
        recorded = [self._entry(entry, now) for entry in run_directories.entries()]
        watched = [
            RunEntry(
                id=f"{WATCH}{first_pid(job)}",
                name=job_name(job),
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

    async def attach_words(self, entry_id: str, *flags: str) -> list[str]:
        """What opens the cockpit of another host on its run. Raises LaunchError."""
        hosts = _hosts()
        reached = self.elsewhere.way(entry_id)
        if reached is None:
            raise LaunchError("this line is no run: choose one")
        way, run = reached
        with _raised_as(LaunchError, (RunError, HostError)):
            words: list[str] = hosts.attach_words(way, await hosts.command_on(way), run, *flags)
            return words

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
        """The same with sizes, as far as they can be measured in a moment; called in a thread."""
        began = clock.monotonic()
        for listed in self.runs():
            when, _ = self._sizes.get(listed.id, (0.0, 0))
            stale = not when or (listed.live and began - when > MEASURED_S)
            if listed.path and stale and clock.monotonic() - began < MEASURING_S:
                self._sizes[listed.id] = clock.monotonic(), size_of(Path(listed.path))
        return self.runs()

    def mark(
        self, run_id: str, note: str | None = None, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> str:
        """Write a note on a run ("" takes it away), or its tags; "", or why not in a sentence."""
        try:
            path = run_directories.resolve(run_id).path
            if note is not None:
                run_notes.note(path, note)
            if add or remove:
                run_notes.tag(path, add, remove)
        except RunError as error:
            return str(error)
        return ""

    def remove(self, runs: Sequence[str]) -> tuple[list[str], int, list[str]]:
        """Remove runs that have ended, by their ids; the names of those that went, bytes that were freed, and a
        sentence for each that stays."""
        from ..runners import run_removal

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

    def prunable(self, older_than_s: float, keep: int) -> set[str]:
        """Ids of the runs that `distui prune` would remove with these options. Called in a thread. Raises RunError."""
        from ..runners import run_removal

        runs = run_removal.candidates(run_directories.entries())
        chosen = run_removal.pruned(runs, clock.now(), older_than_s=older_than_s, keep=keep)
        return {run.entry.record.run for run in chosen}

    def places(self, run_id: str) -> dict[str, str]:
        """Folders of a run that are known here: "directory" it runs in, "records" that it writes; {} where none is."""
        try:
            path = run_directories.resolve(run_id).path
        except RunError:
            return {}
        places = {"records": str(path)}
        plan = file_io.document_or_none(path / run_directories.PLAN_FILE, dict[str, Any])
        if plan is not None and isinstance(plan.get("cwd"), str):
            places["directory"] = plan["cwd"]
        return places

    async def open(self, run_id: str) -> Link:
        """A link to the run, starting an agent for it if none is there. Raises LinkError."""
        with _raised_as(LinkError):
            if run_id.startswith(WATCH):
                from ..runners.watch_link import WatchLink

                return WatchLink(find_job(scan(), int(run_id.removeprefix(WATCH))))
            return await open_link(run_directories.resolve(run_id), self._readonly)

    @property
    def library(self) -> PresetLibrary:
        """The presets; nothing of them is read before a launch."""
        if self._library is None:
            from ..runners.launch.launch_form import PresetLibrary

            self._library = PresetLibrary()
        return self._library

    def presets(self) -> list[PresetEntry]:
        """The presets there are, also those that cannot be loaded; read anew."""
        return self.library.entries()

    def preset(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        """A preset with some fields changed. Cheap. Raises LaunchError."""
        with _raised_as(LaunchError):
            return self.library.load(name, overrides)

    def save(self, name: str, form: LaunchForm, replace: bool = False) -> str:
        """Write the form's preset with its changes as a preset of the user's own; the path of its file.

        Raises FileExistsError where there is one and `replace` is False, and LaunchError.
        """
        from ..runners.launch import launch_form

        with _raised_as(LaunchError):
            return launch_form.save(name, form, replace)

    def plan(self, form: LaunchForm, ask: bool = False) -> LaunchPreview:
        """What launching this form would do. Changes nothing; called in a thread; never raises.

        `ask`: whether hosts that the user named are probed; else that is left open.
        """
        from ..runners.launch import launch_form

        try:
            return launch_form.preview(form, ask)
        except (RunError, PresetError, PlanError) as error:
            return launch_form.LaunchPreview(text="", problems=(str(error),))

    def form_of(self, run_id: str) -> LaunchForm:
        """The launch form of a run. Raises LaunchError."""
        from ..runners.launch import recent

        with _raised_as(LaunchError):
            if run_id.startswith(WATCH):
                raise RunError("distui did not start this job, so no form is known of it")
            return recent.form_of(run_directories.resolve(run_id), os.getcwd())

    async def candidates(self, form: LaunchForm) -> list[Candidate]:
        """The nodes that SkyPilot would take for this form. Raises LaunchError."""
        from ..runners.launch import launch_form

        with _raised_as(LaunchError):
            return await launch_form.candidates(form)

    async def launch(self, form: LaunchForm) -> str:
        """Start it and return the run's id. Raises LaunchError."""
        from ..runners.launch import launch_form

        with _raised_as(LaunchError):
            started = await asyncio.to_thread(lambda: launch_form.prepared(form).start())
            return started.record.run

    def retire(self, launched: str) -> str:
        """After a launch, remove the runs that the settings no longer keep; what went in a sentence, "" for nothing."""
        from ..runners import retention

        return retention.retire(retention.load(), launched)

    def kept_at(self, run_id: str) -> tuple[Path | None, bool]:
        """The directory of a run on this machine, and whether its traces are elsewhere; None where it has none here."""
        try:
            entry = run_directories.resolve(run_id)
        except RunError:
            return None, True
        return entry.path, entry.record.kind == "hub"

    def shell(self, run_id: str, node: int) -> Shell | None:
        """A shell on a node of a run on several; None for other runs. Raises LaunchError."""
        if run_id.startswith(WATCH):
            return None
        with _raised_as(LaunchError):
            entry = run_directories.resolve(run_id)
            return shell_on(entry.path, node) if entry.record.kind == "hub" else None

    async def stop(self, run_id: str, command: Stop, say: Callable[[str], None]) -> CommandDone:
        """End a run, also where its agent or hub does not answer, of which `say` reports. Raises LinkError."""
        with _raised_as(LinkError, (RunError, OSError)):
            return await stop_run(run_directories.resolve(run_id), command, say, open_link)

    async def afterwards(self, run_id: str, command: Down | SetAutostop) -> CommandDone:
        """What is still to be done with the cluster of a run that has ended. Raises LinkError."""
        from ..runners.hub import sky_cloud

        with _raised_as(LinkError, (RunError, OSError)):
            ok, text = await sky_cloud.carry_out(run_directories.resolve(run_id), command)
            return CommandDone(command.id, ok, text)


_REFUSED: tuple[type[Exception], ...] = (RunError, PresetError, PlanError)


@contextmanager
def _raised_as(
    kind: type[LaunchError | LinkError], caught: tuple[type[Exception], ...] = _REFUSED
) -> Iterator[None]:
    """Every refusal of the lower rooms becomes the error that screens handle."""
    try:
        yield
    except caught as error:
        raise kind(str(error)) from None


class NodeFacts:
    """Facts of the nodes as one; decoded again only where a node has reported something new."""

    def __init__(self) -> None:
        self._documents: tuple[bytes, ...] = ()
        self._facts: NcclFacts | None = None

    def of(self, state: RunState) -> NcclFacts | None:
        """What the nodes have reported so far; None where none has."""
        documents = tuple(node.nccl for _, node in sorted(state.nodes.items()) if node.nccl is not None)
        if documents != self._documents:
            self._documents, self._facts = documents, merged(documents)
        return self._facts


def merged(documents: Iterable[bytes]) -> NcclFacts | None:
    """The documents of several nodes as one; those that cannot be understood are left out."""
    facts: list[NcclFacts] = []
    for document in documents:
        try:
            facts.append(msgspec.json.decode(document, type=NcclFacts))
        except msgspec.DecodeError:  # of an agent of another version
            continue
    if len(facts) < 2:
        return facts[0] if facts else None
    return merge(facts)


def read_run(run: str, state: RunState, stop: threading.Event) -> NcclFacts | None:
    """Facts from the logs of a run as it stands; None when it was stopped. Takes its time. Raises RunError."""
    from ..runners.diagnosis.reading import logs_of_run, read_run  # the rules take a while to load

    away = "the logs of this run are not on this machine: `distui diagnose FILE` reads them where they are"
    try:
        entry = run_directories.resolve(run)
        files = logs_of_run(entry, judged_attempt(entry, state))
    except NoSuchRunError:  # of a source that keeps its runs elsewhere
        raise RunError(away) from None
    if not files:
        raise RunError(away)
    reading, _ = read_run(files, stop.is_set)
    return None if stop.is_set() else reading.facts()


def shell_on(run_dir: Path, node: int, environ: Mapping[str, str] = os.environ) -> Shell:
    """The shell on one node of the run that this hub's directory belongs to. Raises RunError."""
    from ..runners.hub import routes

    route = next((route for route in routes.read(run_dir) if route.node == node), None)
    if route is None:
        raise RunError(f"node {node} is not reachable yet; wait until its link is up")
    if route.kind == "ssh":
        return Shell(("ssh", "-t", *route.options, "--", route.target))
    if route.kind == "unix":
        return Shell((environ.get("SHELL") or "/bin/sh",), f"{route.host} is this machine")
    why = "is reached through the agent of the head node, which carries no shell"
    return Shell((), f"{route.host} {why}: ssh {route.host}")
