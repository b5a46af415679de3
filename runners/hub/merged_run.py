"""One run on several nodes in its hub: its launch interface, the journal of all nodes, their logs, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from ...presets.plan import Plan
from ...presets.trusted_files import private_folder
from ..logs import kept_pieces, line_times
from ..logs.kept_pieces import ask_anywhere
from ..node.routes import Route
from ..run import clock
from ..run.daemon import DaemonRun
from ..run.errors import RunError
from ..run.formatting import agreeing
from ..run.log_files import parse_file_id, part_of, whole_id
from ..run.model import (
    HUB,
    ClusterChanged,
    Event,
    FirstCause,
    LinkChanged,
    LinkState,
    LogGrew,
    ReadLog,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from ..run.parts import in_background
from ..run.run_directories import Entry
from ..run.state import RunState
from ..run.wire.client import Link, LinkError, Window

# Interface between the hub and a launch. `cluster_launch.py` has `async def launch(run, set_routes)` and
# `def cloud_of(run) -> Cloud | None`. The hub calls `launch` if the run directory has a launch.json and the journal
# has no `StageChanged(Stage.START, "done")` of node HUB. A hub that died during a launch therefore calls it again,
# and `launch` must find out how far it was. `launch` emits its own stages, that one last. It sets the routes as soon
# as it knows them, even before the nodes answer: links retry with back-off. It calls `fail` if the launch fails.


LAUNCH_FILE = "launch.json"
"""File in the hub's run directory with the parameters of its launch."""
LOG_FILE = "launch.log"
"""SkyPilot's output during the launch."""
CANCEL = "cancel-job"
"""Name of the background part that asks SkyPilot to cancel a run's job."""
CANCEL_SECONDS = 60.0
"""Seconds that a launch has for cleaning up after a stop."""


class CloudError(RunError):
    """The cloud cannot carry out a request; the text is one sentence with the reason and a remedy."""

    code = 1


SetRoutes = Callable[[list[Route]], None]
"""Write nodes.json and connect by exactly these routes; reconnect if a route changed.

Raises RunError, OSError.
"""


class Cloud:
    """The provider of the nodes during the hub's life. This base class is for nodes that distui may not take down."""

    not_ours: ClassVar[str]
    """Reason why distui does not take the cluster down."""

    async def watch(self) -> None:
        """Emit ClusterChanged at each change (autostop, price, down) until cancelled."""
        await asyncio.Event().wait()

    async def cancel(self) -> str:
        """End the run's job without its nodes, and return a sentence. Raises CloudError."""
        raise CloudError(self.not_ours)

    def check_down(self, cluster: str) -> None:
        """Raise CloudError if `down` is not possible, or if `cluster` is not the name of this cluster."""
        raise CloudError(self.not_ours)

    async def down(self, cluster: str) -> str:
        """Take the named cluster down, and return a sentence. Raises CloudError, also for another name."""
        raise CloudError(self.not_ours)

    async def set_autostop(self, minutes: int | None) -> str:
        """Set the idle minutes before a teardown (None: never), and return a sentence. Raises CloudError."""
        raise CloudError(self.not_ours)


GIVE_UP_S = 60.0
"""Seconds without a link before a node counts as lost, if all others have ended."""
STOP_GIVE_UP_S = 15.0
"""`GIVE_UP_S` for a run that is being stopped."""
UNHEARD_S = 600.0
"""`GIVE_UP_S` for a stop that reached no node: a node that answers later still gets the stop."""


@dataclass(frozen=True, slots=True)
class NodeEnding:
    node: int
    host: str
    ended: RunEnded | None = None
    read: bool = True
    """Whether the hub has read all the required data of an ended part."""
    link: LinkState | None = None
    silent_s: float = 0.0
    """Seconds since the link's state last changed."""

    @property
    def name(self) -> str:
        return f"node {self.node} ({self.host})" if self.host else f"node {self.node}"

    def is_settled(self, patient_s: float) -> bool:
        """Return True if the part has ended and is read, or if the node counts as lost."""
        if self.ended is not None:
            return self.read
        return self.link is LinkState.LOST and self.silent_s >= patient_s


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    stopping: bool = False
    why: str = "stopped"
    """Text of the end of a stopped run."""
    nnodes_min: int | None = None
    """Minimum number of nodes for an elastic run to continue and succeed."""
    cause: FirstCause | None = None
    """First cause of the newest attempt."""
    cluster_down: bool = False
    idle: str = ""
    """`AttemptEnded.idle` of the newest attempt."""

    def needed(self, nnodes: int) -> int:
        """Return how many of `nnodes` nodes have to succeed."""
        return min(nnodes, self.nnodes_min or nnodes)


def ending(whole: Whole, parts: list[NodeEnding]) -> RunEnded | None:
    """Return the end of the run; None while it continues."""
    patient_s = patience(whole.stopping, any(part.ended for part in parts), whole.cluster_down)
    if not parts or not all(part.is_settled(patient_s) for part in parts):
        return None
    return _outcome(whole, parts)


def _outcome(whole: Whole, parts: list[NodeEnding]) -> RunEnded | None:
    """Return the end of a run whose nodes have all ended or are gone."""
    gone = [part for part in parts if part.ended is None]
    ended = {part.node: part.ended for part in parts if part.ended is not None}
    if whole.stopping:
        return RunEnded(RunPhase.STOPPED, 1, whole.why + _without(gone, whole.cluster_down))
    if not ended:
        return _all_gone(whole)
    bad = {node: end for node, end in ended.items() if end.phase is not RunPhase.SUCCEEDED}
    if len(ended) - len(bad) >= whole.needed(len(parts)):
        return _succeeded(whole, gone)
    return _failed(whole, parts, bad, gone)


def patience(stopping: bool, some_ended: bool, cluster_down: bool) -> float:
    """Seconds without a link before a node counts as lost; for a stop, counted from the stop."""
    if cluster_down:
        return 0.0
    if not stopping:
        return GIVE_UP_S
    return STOP_GIVE_UP_S if some_ended else UNHEARD_S


def _all_gone(whole: Whole) -> RunEnded | None:
    """End of a run without an answer from any node: None, unless the cluster is known to be down."""
    if not whole.cluster_down:
        return None
    return RunEnded(RunPhase.LOST, None, "the cluster was taken down before the run's end was reported")


def _succeeded(whole: Whole, gone: list[NodeEnding]) -> RunEnded:
    but = f", but {whole.idle}" if whole.idle else ""
    return RunEnded(RunPhase.SUCCEEDED, 0, f"every rank ended with exit code 0{but}" + _without(gone))


def _names(parts: list[NodeEnding]) -> str:
    return ", ".join(part.name for part in parts)


def _without(gone: list[NodeEnding], cluster_down: bool = False) -> str:
    if gone and cluster_down:
        return f"; how {_names(gone)} ended is unknown"
    return f"; {_names(gone)} did not answer: whatever runs there still does" if gone else ""


def _failed(
    whole: Whole, parts: list[NodeEnding], bad: Mapping[int, RunEnded], gone: list[NodeEnding]
) -> RunEnded:
    if not bad:  # the end of the silent nodes is unknown
        return RunEnded(RunPhase.LOST, None, f"all others succeeded; how {_names(gone)} ended is unknown")
    cause = whole.cause
    node = cause.node if cause is not None and cause.node in bad else min(bad)
    exit_code, text = bad[node].exit_code, bad[node].text
    if all(end.phase is RunPhase.STOPPED for end in bad.values()):
        if gone:
            return RunEnded(RunPhase.FAILED, exit_code, _lost(whole, gone, stopped=True))
        return RunEnded(RunPhase.STOPPED, exit_code, "stopped on the nodes, not from here")
    if cause is not None and cause.text not in text:
        text = f"{cause.text}; {text}"
    text = f"{_name(parts, node)}: {text}"
    if _has_head(gone):
        text = f"{_lost(whole, gone, stopped=False)}; {text}"
    else:
        text += _without(gone)
    return RunEnded(RunPhase.FAILED, exit_code, text)


def _name(parts: list[NodeEnding], node: int) -> str:
    return next(part.name for part in parts if part.node == node)


def _has_head(parts: list[NodeEnding]) -> bool:
    return any(part.node == 0 for part in parts)


def _lost(whole: Whole, gone: list[NodeEnding], stopped: bool) -> str:
    """Text if the others could not continue without the lost nodes. distui did not stop them: their launcher did."""
    where = ", where the rendezvous was," if _has_head(gone) else ""
    verb = agreeing(gone, "is", "are")
    others = "were ended by what started them" if stopped else "failed"
    return (
        f"{_names(gone)}{where} {verb} lost, and the others {others}: "
        f"`distui rerun {whole.name}` starts it again"
    )


class HubNodes:
    """The hub's data about its nodes that the fold lacks."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._sources: dict[int, int] = {}
        self._ends: dict[int, RunEnded] = {}
        self.routed: set[int] = set()
        """Nodes with routes."""

    def note(self, event: Event, node: int, source: int) -> None:
        """Record the data of an event that the fold does not keep."""
        if source:
            self._sources[node] = source
        if isinstance(event, RunEnded) and node != HUB:
            self._ends[node] = event
        elif isinstance(event, RunCreated) and node != HUB:
            self._ends.pop(node, None)  # a restarted job continues its part

    def source(self, node: int) -> int:
        """Newest seq of a node's own journal that this journal includes."""
        return self._sources.get(node, 0)

    def ended(self, node: int) -> bool:
        return node in self._ends

    def end_of(self, node: int) -> RunEnded | None:
        """End of a node's part; None while it continues."""
        return self._ends.get(node)

    def read_to_the_end(self, node: int) -> bool:
        """Whether the hub needs no more data from a node."""
        status = self._state.nodes.get(node)
        return self.ended(node) and status is not None and status.link is LinkState.ENDED

    def numbers(self) -> list[int]:
        """All nodes that have a route, or had one until their parts ended."""
        return sorted(self.routed | self._ends.keys())

    def all_read(self) -> bool:
        """Whether the hub needs no more data from any node."""
        return all(self.read_to_the_end(node) for node in self.numbers())

    def some_ended(self) -> bool:
        return bool(self._ends)

    def link(self, node: int) -> LinkState | None:
        """State of the link to a node; None if the hub never tried to connect."""
        status = self._state.nodes.get(node)
        return None if status is None else status.link

    def alive(self) -> list[int]:
        """Nodes whose parts have not ended."""
        return [node for node in self.numbers() if not self.ended(node)]

    def name(self, node: int) -> str:
        """Name of a node with its host, as "node 1 (host)"."""
        status = self._state.nodes.get(node)
        return f"node {node} ({status.host})" if status is not None and status.host else f"node {node}"

    def describe_link(self, node: int) -> str:
        """Sentence that says why and for how long a node has not answered."""
        status = self._state.nodes.get(node)
        if status is None or not status.link_since:
            return f"{self.name(node)} was never reached"
        why = f": {status.link_text}" if status.link_text else ""
        return f"{self.name(node)} does not answer for {clock.now() - status.link_since:.0f} s{why}"

    def part(self, node: int, now: float, since: float) -> NodeEnding:
        """Return data about a node's part, whose silence counts from `since`; both times are unix seconds."""
        status = self._state.nodes.get(node)
        if status is None:
            return NodeEnding(node, "")
        silent_s = now - max(status.link_since, since)
        return NodeEnding(
            node, status.host, self._ends.get(node), self.read_to_the_end(node), status.link, silent_s
        )


TURNS = (RunEnded, LinkChanged, ClusterChanged)
"""Events that may end the run."""


class MergedRun(DaemonRun):
    """The run for modules that fill its journal, execute its commands or launch it."""

    def __init__(self, entry: Entry, plan: Plan) -> None:
        """`plan` covers all nodes, with placeholders for secrets. The secrets' values are in the hub's environment."""
        super().__init__(entry, plan, HUB)
        self.nodes = HubNodes(self.state)
        self.turn = asyncio.Event()
        """Set if the run may have ended."""
        self.cloud: Cloud | None = None
        """Provider of the nodes; None without one."""
        self.launching = False
        self.interrupted = False
        """True if a launch was cut off and no command has resumed it yet."""
        self.go_on = asyncio.Event()
        """Set to resume the launch."""
        self.stop_asked = asyncio.Event()
        """Set if the user stops the run: a launch gives up, removes what it began, and returns.

        The hub cancels a launch that needs longer than `CANCEL_SECONDS`.
        """
        self.stop_since = 0.0
        """Unix time of the stop."""
        self.why_stopped = "stopped"
        self._holds = 0

    def replay(self) -> bool:
        """Fold the events of an earlier hub, and return whether there were any."""
        return self.chronicle.replay(self._replayed)

    def _replayed(self, stamped: Stamped) -> None:
        self.nodes.note(stamped.event, stamped.node, stamped.source)

    def emit(self, event: Event, *, node: int = HUB, source: int = 0, at: float | None = None) -> None:
        """Journal an event and send it to the viewers.

        `source` is the seq in the node's journal, `at` the unix time by the hub's clock.
        """
        self.chronicle.emit(event, node=node, source=source, at=at)
        self.nodes.note(event, node, source)
        if isinstance(event, TURNS):
            self.turn.set()

    def fail(self, text: str) -> None:
        """End the run as failed; `text` is a sentence with the reason and a remedy."""
        if not self.state.phase.ended:
            self.emit(RunEnded(RunPhase.FAILED, 1, text))

    async def done_or_stopped(self, task: asyncio.Task[Any], seconds: float | None = None) -> bool:
        """Wait at most `seconds` for a task or for the user's stop, and return whether the task is done."""
        async with in_background(self.stop_asked.wait()) as stop:
            await asyncio.wait({task, stop}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.done()

    @property
    def held(self) -> bool:
        """Whether the run's end is held back."""
        return self._holds > 0

    @contextlib.contextmanager
    def hold_end(self) -> Iterator[None]:
        """Hold the run's end back during a teardown of its cluster, or while a part is ended without its agent."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.turn.set()


TAIL_BYTES = 65536
"""Bytes at the end of each log that are kept when a part or an attempt ends."""
READ_SECONDS = 10.0
TAIL_SECONDS = 60.0
"""Maximum time for all tails of one node."""
AT_ONCE = 32
"""Maximum number of concurrent windows per viewer: a pane of all logs must not need one round trip per file."""
UNDER_WAY = 2
"""Maximum number of windows in flight per node, none larger than TAIL_BYTES. Other answers of the agent queue after
them, which is long on a slow line. Only one would leave the line idle for half of the time."""


class NodeLogs:
    def __init__(self, run: MergedRun) -> None:
        self._run = run
        self._kept = Record(run.run_dir)
        self.shifts: dict[int, float] = {}
        """Node → seconds to add to its times."""
        self._reading = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(UNDER_WAY))
        """Node → semaphore that each window in flight holds."""

    async def read(self, up: Callable[[int], Link | None], ask: ReadLog) -> Window:
        """One window, from the node that has the file; `up` returns the link to a node that answers."""
        place = part_of(ask.file)
        if place is None:
            return await ask_anywhere(self._run.run_dir, ask)
        node, name = place
        shift = self.shifts.get(node, 0.0)
        link = up(node)
        if link is not None:
            try:
                at = ask.at - shift if ask.at else 0.0
                of_node = replace(ask, file=name, limit=min(ask.limit, TAIL_BYTES), at=at)
                async with asyncio.timeout(READ_SECONDS), self._reading[node]:
                    window = await link.read_log(of_node)
            except (LinkError, OSError, TimeoutError):
                pass  # fall back to the kept data
            else:
                window = self._ours(window, node, whole_id(window.file, node))
                if not ask.grep:
                    self._kept.keep(window)
                return window
        return await self._read_kept(node, ask)

    def _ours(self, window: Window, node: int, file: str) -> Window:
        """Return a node's window with times by the hub's clock and with the file's id in the hub."""
        shift = self.shifts.get(node, 0.0)
        times = tuple((offset, at + shift) for offset, at in window.times) if shift else window.times
        return replace(window, file=file, times=times, shift=shift)

    async def _read_kept(self, node: int, ask: ReadLog) -> Window:
        file, window = ask.file, await ask_anywhere(self._run.run_dir, ask)
        if not window.error or parse_file_id(file) is None:
            return window
        if self._empty(node, file):
            return Window(file, 0, 0, 0, b"")
        nodes, name = self._run.nodes, file.partition("/")[2]
        why = "has ended" if nodes.ended(node) else "does not answer"
        return replace(window, error=f"{nodes.name(node)} {why}, and nothing of {name} was read before")

    def _empty(self, node: int, file: str) -> bool:
        """Whether the file had no bytes at the node's last report: an agent reports each log that grows."""
        sizes = self._run.state.log_sizes
        if file in sizes:
            return sizes[file] == 0
        return any((place := part_of(name)) is not None and place[0] == node for name in sizes)

    async def keep_tails(self, node: int, link: Link, attempt: int | None = None) -> None:
        """Keep the ends of a node's known logs, or of one attempt's, if the link stays up."""

        async def keep(file: str, name: str) -> None:
            async with self._reading[node]:
                at = self._kept.missing(file, self._run.state.log_sizes[file], TAIL_BYTES)
                while at is not None:
                    window = await link.read_log(ReadLog(name, at, TAIL_BYTES))
                    self._kept.keep(self._ours(window, node, file))
                    if window.error or window.next <= at:
                        return
                    at = window.next if window.next < window.size else None

        with contextlib.suppress(LinkError, OSError, TimeoutError):
            async with asyncio.timeout(TAIL_SECONDS):
                await asyncio.gather(*(keep(file, name) for file, name in self._files(node, attempt)))

    def _files(self, node: int, attempt: int | None) -> list[tuple[str, str]]:
        """Hub's ids and node's ids of a node's logs, the newest attempt's first."""
        logs = []
        for file in self._run.state.log_sizes:
            place, log = part_of(file), parse_file_id(file)
            if place is None or log is None or place[0] != node:
                continue
            if attempt is None or log.attempt in (attempt, None):
                logs.append((log, place[1]))
        logs.sort(key=lambda pair: pair[0].order, reverse=True)
        return [(log.id, name) for log, name in logs]

    def kept_sizes(self) -> dict[int, LogGrew]:
        """Node → sizes of the logs that an earlier hub read."""
        sizes: dict[int, dict[str, int]] = {}
        for file, size in self._kept.sizes().items():
            place = part_of(file)
            if place is not None:
                sizes.setdefault(place[0], {})[file] = size
        return {node: LogGrew(grown) for node, grown in sizes.items()}


MOST_TIMES = 4 << 20
"""Maximum bytes of one log's times; above that they are thinned out."""
MOST_BYTES = 512 << 20
"""Maximum kept bytes per run; later windows are shown but not kept."""


class Record:
    """The kept pieces of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / kept_pieces.FOLDER
        self._held = kept_pieces.pieces(run_dir)
        self._bytes = sum(end - at for held in self._held.values() for at, end in held.items())

    def sizes(self) -> dict[str, int]:
        """File → size in bytes at its last read."""
        return kept_pieces.sizes(self._held)

    def missing(self, file: str, size: int, tail: int) -> int | None:
        """Offset to continue at so that the last `tail` bytes of a file are kept; None if they are."""
        held = self._held.get(file, {})
        at = max(size - tail, 0)
        for begin, end in held.items():
            if begin <= at < end:
                at = end
        return at if at < size else None

    def keep(self, window: Window) -> None:
        """Add a window that was read without a pattern. An OSError drops it."""
        if window.error or not window.data or parse_file_id(window.file) is None:
            return
        held = self._held.setdefault(window.file, {})
        with contextlib.suppress(OSError):
            if held and window.size < max(held.values()):
                self._forget(window.file, held)  # the file was truncated and begins again
            begin = next((at for at, end in held.items() if at <= window.offset <= end), window.offset)
            until = held.get(begin, begin)
            data = window.data[until - window.offset :]
            if data and self._bytes + len(data) <= MOST_BYTES:
                self._keep_shift(window)
                self._append(self._path(window.file, begin), data)
                self._keep_times(window)
                held[begin] = until + len(data)
                self._bytes += len(data)
        self._held[window.file] = dict(sorted(held.items()))

    def _times_path(self, file: str) -> Path:
        return self._root / line_times.FOLDER / file

    def _path(self, file: str, begin: int) -> Path:
        return self._root / f"{file}@{begin}"

    def _keep_times(self, window: Window) -> None:
        """Store a window's times next to the pieces. Their order is restored at reading."""
        if not window.times:
            return
        path = self._times_path(window.file)
        self._append(path, line_times.packed(window.times))
        if path.stat().st_size > MOST_TIMES:
            records = line_times.kept(self._root, window.file)
            path.write_bytes(line_times.packed(line_times.fitted(records, line_times.MOST_RECORDS)))

    def _keep_shift(self, window: Window) -> None:
        if kept_pieces.kept_shift(self._root.parent, window.file) != window.shift:
            path = self._root / window.file.partition("/")[0] / kept_pieces.CLOCK
            private_folder(path.parent)
            path.write_text(f"{window.shift}\n", encoding="ascii")

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        private_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, data) < len(data):
                os.ftruncate(descriptor, before)
                raise OSError("no room")
        finally:
            os.close(descriptor)

    def _forget(self, file: str, held: dict[int, int]) -> None:
        for begin in list(held):
            self._path(file, begin).unlink(missing_ok=True)
            del held[begin]
        self._times_path(file).unlink(missing_ok=True)
