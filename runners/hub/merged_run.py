"""One run on several nodes, as its hub has it: what it is launched by, one journal of all nodes, their logs, its end."""

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
from .. import clock
from ..daemon import DaemonRun
from ..errors import RunError
from ..formatting import agreeing
from ..logs import follow, line_times
from ..logs.follow import ask_anywhere
from ..logs.log_files import parse_file_id, part_of, whole_id
from ..model import (
    HUB,
    ClusterChanged,
    Event,
    FirstCause,
    LinkChanged,
    LinkState,
    LogGrew,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from ..parts import in_background
from ..run_directories import Entry
from ..state import RunState
from ..wire.client import Link, LinkError, Window
from .routes import Route

# Where the hub meets what launches a cluster: what each may ask of the other.
# `cluster_launch.py` has `async def launch(run, set_routes)` and `def cloud_of(run) -> Cloud | None`. The hub
# calls `launch` when the run directory has a launch.json and the journal holds no `StageChanged(Stage.START,
# "done")` of node HUB; so a hub that died in mid-launch calls it again, and `launch` has to find out how far
# it was. `launch` emits its own stages, the last of them being that one; gives the routes as soon as it knows
# them (also before the nodes answer: links try on with back-off); and calls `fail` when nothing comes of it.


LAUNCH_FILE = "launch.json"
"""In the hub's run directory: how to launch, in the words of its launch alone."""
LOG_FILE = "launch.log"
"""What SkyPilot printed meanwhile."""
CANCEL = "cancel-job"
"""The part in which SkyPilot is asked to cancel a run's job."""
CANCEL_SECONDS = 60.0
"""How long a launch has to give up."""


class CloudError(RunError):
    """What was asked of the cloud cannot be done; the text is one sentence that says why and what to do."""

    code = 1


SetRoutes = Callable[[list[Route]], None]
"""Write nodes.json and connect by these and no others; routes that changed are connected anew.

Raises RunError, OSError.
"""


class Cloud:
    """Where the nodes come from, for as long as the hub lives: here a place that is not for distui to take down."""

    not_ours: ClassVar[str]
    """Why the cluster is not taken down from here."""

    async def watch(self) -> None:
        """Emit ClusterChanged whenever something changes (autostop, price, down), for ever; cancelled at the end."""
        await asyncio.Event().wait()

    async def cancel(self) -> str:
        """End the run's job where its nodes cannot be asked to; a sentence. Raises CloudError."""
        raise CloudError(self.not_ours)

    def check_down(self, cluster: str) -> None:
        """Whether `down` may be tried. Raises CloudError where not, also for another name than the cluster's."""
        raise CloudError(self.not_ours)

    async def down(self, cluster: str) -> str:
        """Take the cluster of that name down; a sentence. Raises CloudError, also for another name."""
        raise CloudError(self.not_ours)

    async def set_autostop(self, minutes: int | None) -> str:
        """Minutes without a job until the cluster goes; None: never. A sentence. Raises CloudError."""
        raise CloudError(self.not_ours)


GIVE_UP_S = 60.0
"""Seconds without a link after which a node counts as gone, where all others have ended."""
STOP_GIVE_UP_S = 15.0
"""The same for a run that is being stopped."""
UNHEARD_S = 600.0
"""The same where no node heard of the stop: one that answers again still will."""


@dataclass(frozen=True, slots=True)
class NodeEnding:
    node: int
    host: str
    ended: RunEnded | None = None
    read: bool = True
    """Whether everything that is wanted of an ended part was read."""
    link: LinkState | None = None
    silent_s: float = 0.0
    """How long its link has been as it is."""

    @property
    def name(self) -> str:
        return f"node {self.node} ({self.host})" if self.host else f"node {self.node}"


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    stopping: bool = False
    why: str = "stopped"
    """The text of the end of a run that was stopped."""
    nnodes_min: int | None = None
    """An elastic run goes on, and succeeds, with as few nodes."""
    cause: FirstCause | None = None
    """Of the newest attempt."""
    cluster_down: bool = False
    idle: str = ""
    """Of the newest attempt, where it succeeded without a training step."""


def ending(whole: Whole, parts: list[NodeEnding]) -> RunEnded | None:
    """How the run ended; None while it goes on."""
    patient_s = patience(whole.stopping, any(part.ended for part in parts), whole.cluster_down)
    open_parts = [part for part in parts if part.ended is None]
    gone = [part for part in open_parts if part.link is LinkState.LOST and part.silent_s >= patient_s]
    if not parts or len(gone) < len(open_parts) or any(part.ended and not part.read for part in parts):
        return None
    ended = {part.node: part.ended for part in parts if part.ended is not None}
    if whole.stopping:
        return RunEnded(RunPhase.STOPPED, 1, whole.why + _without(gone, whole.cluster_down))
    if not ended:
        return _all_gone(whole)
    good = [node for node, end in ended.items() if end.phase is RunPhase.SUCCEEDED]
    if len(good) == len(parts) or (whole.nnodes_min is not None and len(good) >= whole.nnodes_min):
        but = f", but {whole.idle}" if whole.idle else ""
        return RunEnded(RunPhase.SUCCEEDED, 0, f"every rank ended with exit code 0{but}" + _without(gone))
    return _failed(whole, parts, ended, gone)


def patience(stopping: bool, some_ended: bool, cluster_down: bool) -> float:
    """Seconds without a link after which a node counts as gone; of a run that is being stopped, since then."""
    if cluster_down:
        return 0.0
    if not stopping:
        return GIVE_UP_S
    return STOP_GIVE_UP_S if some_ended else UNHEARD_S


def _all_gone(whole: Whole) -> RunEnded | None:
    """No node answers. Unless the cluster is known to be gone, that says nothing about the run."""
    if not whole.cluster_down:
        return None
    return RunEnded(RunPhase.LOST, None, "the cluster was taken down before the run's end was reported")


def _without(gone: list[NodeEnding], cluster_down: bool = False) -> str:
    names = ", ".join(part.name for part in gone)
    if gone and cluster_down:
        return f"; how {names} ended is unknown"
    return f"; {names} did not answer: whatever runs there still does" if gone else ""


def _failed(
    whole: Whole, parts: list[NodeEnding], ended: Mapping[int, RunEnded], gone: list[NodeEnding]
) -> RunEnded | None:
    by_node = {part.node: part for part in parts}
    bad = {node: end for node, end in ended.items() if end.phase is not RunPhase.SUCCEEDED}
    if not bad:  # how the silent ones ended is unknown
        names = ", ".join(part.name for part in gone)
        return RunEnded(RunPhase.LOST, None, f"all others succeeded; how {names} ended is unknown")
    node = whole.cause.node if whole.cause is not None and whole.cause.node in bad else min(bad)
    text = bad[node].text
    if whole.cause is not None and whole.cause.text and whole.cause.text not in text:
        text = f"{whole.cause.text}; {text}"
    text = f"{by_node[node].name}: {text}"
    phases = {end.phase for end in bad.values()}
    stopped = phases == {RunPhase.STOPPED}
    if any(part.node == 0 for part in gone) or (gone and stopped):
        text = _lost(whole, gone, stopped) + ("" if stopped else f"; {text}")
    elif stopped:
        text = "stopped on the nodes, not from here"
    elif gone:
        text += _without(gone)
    phase = RunPhase.STOPPED if stopped and not gone else RunPhase.FAILED
    return RunEnded(phase, bad[node].exit_code, text)


def _lost(whole: Whole, gone: list[NodeEnding], stopped: bool) -> str:
    """Without the lost nodes the others could not go on. Nobody here stopped them: what started them did."""
    names = ", ".join(part.name for part in gone)
    where = ", where the rendezvous was," if any(part.node == 0 for part in gone) else ""
    verb = agreeing(gone, "is", "are")
    others = "were ended by what started them" if stopped else "failed"
    return (
        f"{names}{where} {verb} lost, and the others {others}: "
        f"`distui rerun {whole.name}` starts the run anew"
    )


class HubNodes:
    """What a hub remembers of each of its nodes, beside the fold."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._sources: dict[int, int] = {}
        self._ends: dict[int, RunEnded] = {}
        self.routed: set[int] = set()
        """Those that there are routes to."""

    def note(self, event: Event, node: int, source: int) -> None:
        """Remember what the fold does not."""
        if source:
            self._sources[node] = source
        if isinstance(event, RunEnded) and node != HUB:
            self._ends[node] = event
        elif isinstance(event, RunCreated) and node != HUB:
            self._ends.pop(node, None)  # a job that was started again goes on with its part

    def source(self, node: int) -> int:
        """The newest seq of a node's own journal that was taken over."""
        return self._sources.get(node, 0)

    def ended(self, node: int) -> bool:
        return node in self._ends

    def end_of(self, node: int) -> RunEnded | None:
        """How a node's part ended; None while it goes on."""
        return self._ends.get(node)

    def read_to_the_end(self, node: int) -> bool:
        """Whether nothing more is wanted of a node."""
        status = self._state.nodes.get(node)
        return self.ended(node) and status is not None and status.link is LinkState.ENDED

    def numbers(self) -> list[int]:
        """All nodes that there are routes to, or were until their parts ended."""
        return sorted(self.routed | self._ends.keys())

    def all_read(self) -> bool:
        """Whether nothing more is wanted of any node."""
        return all(self.read_to_the_end(node) for node in self.numbers())

    def some_ended(self) -> bool:
        return bool(self._ends)

    def link(self, node: int) -> LinkState | None:
        """How the hub stands to a node; None where it was never reached for."""
        status = self._state.nodes.get(node)
        return None if status is None else status.link

    def alive(self) -> list[int]:
        """Nodes whose parts have not ended."""
        return [node for node in self.numbers() if not self.ended(node)]

    def name(self, node: int) -> str:
        """ "node 1 (host)"."""
        status = self._state.nodes.get(node)
        return f"node {node} ({status.host})" if status is not None and status.host else f"node {node}"

    def describe_link(self, node: int) -> str:
        """Why a node does not answer, and for how long."""
        status = self._state.nodes.get(node)
        if status is None or not status.link_since:
            return f"{self.name(node)} was never reached"
        why = f": {status.link_text}" if status.link_text else ""
        return f"{self.name(node)} does not answer for {clock.now() - status.link_since:.0f} s{why}"

    def part(self, node: int, now: float, since: float) -> NodeEnding:
        """What is known of a node's part, whose silence counts from `since` on; both in unix seconds."""
        status = self._state.nodes.get(node)
        if status is None:
            return NodeEnding(node, "")
        silent_s = now - max(status.link_since, since)
        return NodeEnding(
            node, status.host, self._ends.get(node), self.read_to_the_end(node), status.link, silent_s
        )


TURNS = (RunEnded, LinkChanged, ClusterChanged)
"""Events after which the run may have ended."""


class MergedRun(DaemonRun):
    """The run for those who fill its journal, act on it or launch it."""

    def __init__(self, entry: Entry, plan: Plan) -> None:
        """`plan`: for all nodes, with placeholders. Secrets are hidden in it; their values are in the hub's own
        environment, from the process that started the hub."""
        super().__init__(entry, plan, HUB)
        self.nodes = HubNodes(self.state)
        self.turn = asyncio.Event()
        """Set when something may have ended the run."""
        self.cloud: Cloud | None = None
        """Who can be asked about the nodes beside their agents; None where nobody can."""
        self.launching = False
        self.interrupted = False
        """A launch was cut off, and nobody has asked yet to go on with it."""
        self.go_on = asyncio.Event()
        """Set to go on with it."""
        self.stop_asked = asyncio.Event()
        """Set when the user wants the run to end: a launch gives up, clears away what it began, and returns.

        After `CANCEL_SECONDS` it is cancelled.
        """
        self.stop_since = 0.0
        """When that was, in unix seconds."""
        self.why_stopped = "stopped"
        self._holds = 0

    def replay(self) -> bool:
        """Fold what an earlier hub wrote; whether there was anything."""
        return self.chronicle.replay(self._replayed)

    def _replayed(self, stamped: Stamped) -> None:
        self.nodes.note(stamped.event, stamped.node, stamped.source)

    def emit(self, event: Event, *, node: int = HUB, source: int = 0, at: float | None = None) -> None:
        """Journal an event and send it to the viewers.

        `source`: seq in the journal of the node, `at`: unix time by our clock.
        """
        self.chronicle.emit(event, node=node, source=source, at=at)
        self.nodes.note(event, node, source)
        if isinstance(event, TURNS):
            self.turn.set()

    def fail(self, text: str) -> None:
        """End the run as failed; `text` is a sentence that says why and what to do."""
        if not self.state.phase.ended:
            self.emit(RunEnded(RunPhase.FAILED, 1, text))

    async def done_or_stopped(self, task: asyncio.Task[Any], seconds: float | None = None) -> bool:
        """Wait until a task is done or the user stops the run, at most `seconds`; whether it is done."""
        async with in_background(self.stop_asked.wait()) as stop:
            await asyncio.wait({task, stop}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.done()

    @property
    def held(self) -> bool:
        """Whether the run's end is held back."""
        return self._holds > 0

    @contextlib.contextmanager
    def hold_end(self) -> Iterator[None]:
        """While its cluster is being taken down, or a part is being ended without its agent, the run has not ended."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.turn.set()


TAIL_BYTES = 65536
"""Of each log, kept when a part or an attempt ends."""
READ_SECONDS = 10.0
TAIL_SECONDS = 60.0
"""The most that all tails of one node may take."""
AT_ONCE = 32
"""Windows that one viewer is read at the same time: a pane of all logs must not wait for a round trip a file."""
UNDER_WAY = 2
"""Windows of one node that are on their way at the same time, none larger than TAIL_BYTES: what else its agent says
waits behind them, which on a slow line is long, and one alone would leave the line idle for half of the time."""


class NodeLogs:
    def __init__(self, run: MergedRun) -> None:
        self._run = run
        self._kept = Record(run.run_dir)
        self.shifts: dict[int, float] = {}
        """By node: seconds to add to its times."""
        self._reading = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(UNDER_WAY))
        """By node; held by each window that is on its way."""

    async def read(
        self,
        up: Callable[[int], Link | None],
        file: str,
        offset: int,
        limit: int = TAIL_BYTES,
        grep: str = "",
        *,
        line: int = 0,
        at: float = 0.0,
    ) -> Window:
        """One window, from the node that has the file; `up`: the link to a node that answers."""
        place = part_of(file)
        if place is None:
            return await ask_anywhere(self._run.run_dir, file, offset, limit, grep, line=line, at=at)
        node, name = place
        shift = self.shifts.get(node, 0.0)
        link = up(node)
        if link is not None:
            try:
                async with asyncio.timeout(READ_SECONDS), self._reading[node]:
                    window = await link.read_log(
                        name, offset, min(limit, TAIL_BYTES), grep, line=line, at=at - shift if at else 0.0
                    )
            except (LinkError, OSError, TimeoutError):
                pass  # what was kept is better than nothing
            else:
                window = self._ours(window, node, whole_id(window.file, node))
                if not grep:
                    self._kept.keep(window)
                return window
        return await self._read_kept(node, file, offset, limit, grep, line, at)

    def _ours(self, window: Window, node: int, file: str) -> Window:
        """A window of a node by our clock, under the id that the file has here."""
        shift = self.shifts.get(node, 0.0)
        times = tuple((offset, at + shift) for offset, at in window.times) if shift else window.times
        return replace(window, file=file, times=times, shift=shift)

    async def _read_kept(
        self, node: int, file: str, offset: int, limit: int, grep: str, line: int, at: float
    ) -> Window:
        window = await ask_anywhere(self._run.run_dir, file, offset, limit, grep, line=line, at=at)
        if not window.error or parse_file_id(file) is None:
            return window
        if self._empty(node, file):
            return Window(file, 0, 0, 0, b"")
        nodes, name = self._run.nodes, file.partition("/")[2]
        why = "has ended" if nodes.ended(node) else "does not answer"
        return replace(window, error=f"{nodes.name(node)} {why}, and nothing of {name} was read before")

    def _empty(self, node: int, file: str) -> bool:
        """Whether nothing had been written there when the node was last heard of: it tells of every log that grows."""
        sizes = self._run.state.log_sizes
        if file in sizes:
            return sizes[file] == 0
        return any((place := part_of(name)) is not None and place[0] == node for name in sizes)

    async def keep_tails(self, node: int, link: Link, attempt: int | None = None) -> None:
        """Keep the ends of a node's logs: of all that are known, or of one attempt, as far as its link carries them."""

        async def keep(file: str, name: str) -> None:
            async with self._reading[node]:
                at = self._kept.missing(file, self._run.state.log_sizes[file], TAIL_BYTES)
                while at is not None:
                    window = await link.read_log(name, at, TAIL_BYTES)
                    self._kept.keep(self._ours(window, node, file))
                    if window.error or window.next <= at:
                        return
                    at = window.next if window.next < window.size else None

        with contextlib.suppress(LinkError, OSError, TimeoutError):
            async with asyncio.timeout(TAIL_SECONDS):
                await asyncio.gather(*(keep(file, name) for file, name in self._files(node, attempt)))

    def _files(self, node: int, attempt: int | None) -> list[tuple[str, str]]:
        """Ids here and there of a node's logs, the newest attempt's first."""
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
        """By node: sizes of the logs that were read before this hub came."""
        sizes: dict[int, dict[str, int]] = {}
        for file, size in self._kept.sizes().items():
            place = part_of(file)
            if place is not None:
                sizes.setdefault(place[0], {})[file] = size
        return {node: LogGrew(grown) for node, grown in sizes.items()}


MOST_TIMES = 4 << 20
"""Bytes of the times of one log; then they are thinned out."""
MOST_BYTES = 512 << 20
"""Of one run; what is read after that is shown and not kept."""


class Record:
    """The kept pieces of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / follow.FOLDER
        self._held = follow.pieces(run_dir)
        self._bytes = sum(end - at for held in self._held.values() for at, end in held.items())

    def sizes(self) -> dict[str, int]:
        """Bytes that each file had when it was last read."""
        return follow.sizes(self._held)

    def missing(self, file: str, size: int, tail: int) -> int | None:
        """Where to read on so that the last `tail` bytes of a file are kept; None when they are."""
        held = self._held.get(file, {})
        at = max(size - tail, 0)
        for begin, end in held.items():
            if begin <= at < end:
                at = end
        return at if at < size else None

    def keep(self, window: Window) -> None:
        """Add a window that was read without a pattern. What the disk refuses is not kept."""
        if window.error or not window.data or parse_file_id(window.file) is None:
            return
        held = self._held.setdefault(window.file, {})
        with contextlib.suppress(OSError):
            if held and window.size < max(held.values()):
                self._forget(window.file, held)  # the file was truncated and begins anew
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
        """What a window says of times, beside the pieces; in order only when it is read."""
        if not window.times:
            return
        path = self._times_path(window.file)
        self._append(path, line_times.packed(window.times))
        if path.stat().st_size > MOST_TIMES:
            records = line_times.kept(self._root, window.file)
            path.write_bytes(line_times.packed(line_times.fitted(records, line_times.MOST_RECORDS)))

    def _keep_shift(self, window: Window) -> None:
        if follow.kept_shift(self._root.parent, window.file) != window.shift:
            path = self._root / window.file.partition("/")[0] / follow.CLOCK
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
