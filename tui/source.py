"""The cockpit's access to runs and jobs of this machine, the launcher, and the task that follows a run."""

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
from ..runners.diagnosis.nccl_facts import NcclFacts, merge
from ..runners.diagnosis.status import figures, judged_attempt
from ..runners.node.agentless import stop_run
from ..runners.node.local_agent import folded_batches, open_link
from ..runners.removal.directory_trees import size_of
from ..runners.run import clock, file_io, run_directories, run_notes
from ..runners.run.errors import LaunchError, NoSuchRunError, RunError
from ..runners.run.model import (
    Command,
    CommandDone,
    Down,
    Event,
    MetricsWindow,
    ReadLog,
    ReadMetrics,
    RunPhase,
    SetAutostop,
    Stop,
)
from ..runners.run.state import RunState
from ..runners.run.wire.client import BACKOFF_S, Link, LinkError, LinkFollower, Window
from ..runners.run.wire.ssh import HostError, Way
from ..runners.watch.foreign_jobs import WatchedJob, find_job, name_of, scan
from .rows.frame import LinkPhase, LinkStatus
from .rows.runs import RunEntry, entry_of

# Code that watches jobs or plans launches is imported on demand, since the first frame of a run needs neither.
if TYPE_CHECKING:
    from ..presets.model import Loaded
    from ..runners.hub.sky_process import Candidate
    from ..runners.launch.launch_form import LaunchForm, LaunchPreview
    from ..runners.launch.preset_library import PresetEntry, PresetLibrary

WATCH = "watch:"
"""Prefix of the pid in the id of a job that distui did not start."""

HOST = "host:"
"""Prefix of host and run in the id of a run that another machine keeps."""


ASK_S = 60.0
"""Seconds between two queries of other hosts while the run list is shown."""
ANSWER_S = 10.0
"""Timeout of a host's answer in seconds."""
AT_ONCE = 8
"""Maximum number of hosts that are queried at the same time."""

MEASURED_S = 30.0
"""Maximum age of a live run's size in seconds."""
MEASURING_S = 0.3
"""Maximum seconds of measuring sizes before the list is shown again."""


class Shell(Struct, frozen=True):
    """The command that opens a shell; `argv` is () if there is none."""

    argv: tuple[str, ...]
    text: str = ""
    """A sentence for the user."""


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
        """Create the follower.

        `notify` is called after each batch of events, once per type of event, and with None if the connection has
        changed.
        """
        super().__init__(backoff)
        self.state = RunState()
        self.status = LinkStatus(LinkPhase.CONNECTING, clock())
        self.readonly = False
        self.heard = 0.0
        """This machine's clock when the last event arrived; 0.0 before the first."""
        self._open_link = open_link
        self._clock = clock
        self._notify = notify
        self._begun = 0
        """Sequence number of the newest event when the link was opened."""

    @property
    def stamp(self) -> tuple[int, int, bool, LinkStatus]:
        """A value that changes with every event except samples, which `state.telemetry_version` counts."""
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

    async def read_log(self, ask: ReadLog) -> Window:
        """Return one window of a log file. Raises LinkError, also while not connected."""
        return await self._connected().read_log(ask)

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """Return curves from the metrics on disk. Raises LinkError, also while not connected."""
        return await self._connected().read_metrics(ask)

    def _connected(self) -> Link:
        if self.link is None or self.status.phase is LinkPhase.LOST:
            raise LinkError("not connected to the agent; reconnecting")
        return self.link

    def _set(self, phase: LinkPhase, text: str = "", retry_at: float | None = None) -> None:
        self.status = LinkStatus(phase, self._clock(), retry_at, text)
        self._notify(None)


def first_pid(job: WatchedJob) -> int:
    """Return the pid that identifies a job that distui did not start."""
    return min(rank.pid for rank in job.ranks.values())


def job_name(job: WatchedJob) -> str:
    """Return the name of the job's program."""
    return name_of(min(job.ranks.values(), key=lambda rank: rank.rank).argv)


def _hosts() -> ModuleType:
    """Import the client of other hosts on demand: it is slow to load and often not needed."""
    from ..runners.launch import hosts

    return hosts


class OtherHosts:
    """The runs of hosts that this user reaches by ssh without a password, as of the last query of each."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._entries: dict[str, list[RunEntry]] = {}
        """Entries by host."""

    def entries(self, here: Collection[str], now: float) -> list[RunEntry]:
        """Return the entries to list, except runs that this machine (`here`) also lists."""
        return [
            entry.as_of(now)
            for entries in self._entries.values()
            for entry in entries
            if whole_of(entry.id.removeprefix(f"{HOST}{entry.host}:")) not in here
        ]

    def way(self, entry_id: str) -> tuple[Way, str] | None:
        """Return the connection to an entry's host, and the run's id there; None for other entries."""
        host, _, run = entry_id.removeprefix(HOST).rpartition(":")
        return (self._ways[host], run) if entry_id.startswith(HOST) and run and host in self._ways else None

    async def ask(self, named: Sequence[str]) -> None:
        """Query these hosts, and those of earlier launches, for their runs. The failure of one host affects no other."""
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
    """Return the connections to these hosts and to those of launches on hosts; [] at no cost if there are none."""
    if not named and not any(entry.record.kind == "hub" for entry in run_directories.entries()):
        return []
    ways: list[Way] = _hosts().ways_of(named)
    return ways


async def _runs_on(way: Way) -> list[RunEntry]:
    """Return the runs of one host, or a line with the reason for their absence."""
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
    """Return the line of a host whose runs are unknown."""
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


class _UntrustedRun:
    """A document that may contain anything: a value of the wrong type is unknown."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def text(self, name: str) -> str:
        value = self._document.get(name)
        return clean_text(value) if isinstance(value, str) else ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._document.get(name)
        if not isinstance(value, list):
            return ()
        return tuple(clean_text(each) for each in value[:64] if isinstance(each, str))

    def number(self, name: str) -> float | None:
        value = self._document.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if 0 <= value < 1e12 else None

    def count(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)


def entry_elsewhere(host: str, run: Mapping[str, Any]) -> RunEntry | None:
    """Return an entry for a run in another machine's `ls --json`, without its ages; None if it is invalid.

    The document is untrusted and may contain anything.
    """

    about = _UntrustedRun(run)
    text, number, count = about.text, about.number, about.count
    if not text("run"):
        return None
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
        tags=about.texts("tags"),
        note=text("note"),
        attempt=count("attempt"),
        size=count("size"),
        finding=text("finding"),
        hung=run.get("hung") is True,
        problem=clean_text(f"damaged: {problems[0]}") if damaged and isinstance(problems, list) else "",
    )


def whole_of(run: str) -> str:
    """Return the id of the whole run that a node's part belongs to."""
    whole, dot, number = run.rpartition(".n")
    return whole if dot and number.isdecimal() else run


class LocalSource:
    """The runs, jobs and presets of this machine, and its launcher."""

    def __init__(self, readonly: bool = False) -> None:
        self._readonly = readonly
        self._library: PresetLibrary | None = None
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
        """Return the command that opens another host's cockpit on its run. Raises LaunchError."""
        hosts = _hosts()
        reached = self.elsewhere.way(entry_id)
        if reached is None:
            raise LaunchError("this line is not a run: choose one")
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
        """Return the runs with sizes, measuring for at most MEASURING_S seconds; called in a thread."""
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
        """Write a note on a run ("" removes it), or its tags; return "" or an error."""
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

    def prunable(self, older_than_s: float, keep: int) -> set[str]:
        """Return ids of the runs that `distui prune` would remove with these options.

        Called in a thread. Raises RunError.
        """
        from ..runners.removal import run_removal

        runs = run_removal.candidates(run_directories.entries())
        chosen = run_removal.pruned(runs, clock.now(), older_than_s=older_than_s, keep=keep)
        return {run.entry.record.run for run in chosen}

    def places(self, run_id: str) -> dict[str, str]:
        """Return a run's local directories: "directory" (working directory) and "records"; {} if there are none."""
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
        """Return a link to the run, and start an agent if it has none. Raises LinkError."""
        with _raised_as(LinkError):
            if run_id.startswith(WATCH):
                from ..runners.watch.watch_link import WatchLink

                return WatchLink(find_job(scan(), int(run_id.removeprefix(WATCH))))
            return await open_link(run_directories.resolve(run_id), self._readonly)

    @property
    def library(self) -> PresetLibrary:
        """The presets; nothing of them is read before a launch."""
        if self._library is None:
            from ..runners.launch.preset_library import PresetLibrary

            self._library = PresetLibrary()
        return self._library

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

    def form_of(self, run_id: str) -> LaunchForm:
        """Return the launch form of a run. Raises LaunchError."""
        from ..runners.launch import recent

        with _raised_as(LaunchError):
            if run_id.startswith(WATCH):
                raise RunError("distui did not start this job, so it has no launch form")
            return recent.form_of(run_directories.resolve(run_id), os.getcwd())

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
        with _raised_as(LinkError, (RunError, OSError)):
            return await stop_run(run_directories.resolve(run_id), command, say, open_link)

    async def afterwards(self, run_id: str, command: Down | SetAutostop) -> CommandDone:
        """Execute a cluster command of a run that has ended. Raises LinkError."""
        from ..runners.hub import sky_cloud

        with _raised_as(LinkError, (RunError, OSError)):
            ok, text = await sky_cloud.carry_out(run_directories.resolve(run_id), command)
            return CommandDone(command.id, ok, text)


_REFUSED: tuple[type[Exception], ...] = (RunError, PresetError, PlanError)


@contextmanager
def _raised_as(
    kind: type[LaunchError | LinkError], caught: tuple[type[Exception], ...] = _REFUSED
) -> Iterator[None]:
    """Convert every error of the lower layers to the error that screens handle."""
    try:
        yield
    except caught as error:
        raise kind(str(error)) from None


class NodeFacts:
    """Merged NCCL facts of all nodes; decoded again only if a node has reported new facts."""

    def __init__(self) -> None:
        self._documents: tuple[bytes, ...] = ()
        self._facts: NcclFacts | None = None

    def of(self, state: RunState) -> NcclFacts | None:
        """Return the facts that the nodes have reported so far; None if no node has."""
        documents = tuple(node.nccl for _, node in sorted(state.nodes.items()) if node.nccl is not None)
        if documents != self._documents:
            self._documents, self._facts = documents, merged(documents)
        return self._facts


def merged(documents: Iterable[bytes]) -> NcclFacts | None:
    """Merge the documents of several nodes; invalid ones are left out."""
    facts: list[NcclFacts] = []
    for document in documents:
        try:
            facts.append(msgspec.json.decode(document, type=NcclFacts))
        except msgspec.DecodeError:  # written by an agent of another version
            continue
    if len(facts) < 2:
        return facts[0] if facts else None
    return merge(facts)


def read_run(run: str, state: RunState, stop: threading.Event) -> NcclFacts | None:
    """Return facts from the logs of a run; None if `stop` was set. Slow. Raises RunError."""
    from ..runners.diagnosis.reading import logs_of_run, read_run  # the rules are slow to load

    away = "the logs of this run are not on this machine: `distui diagnose FILE` reads them where they are"
    try:
        entry = run_directories.resolve(run)
        files = logs_of_run(entry, judged_attempt(entry, state))
    except NoSuchRunError:  # the run belongs to another machine
        raise RunError(away) from None
    if not files:
        raise RunError(away)
    reading, _ = read_run(files, stop.is_set)
    return None if stop.is_set() else reading.facts()


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
