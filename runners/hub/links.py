"""One link to each node: connect, read events, reconnect; events merged into one journal."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import MsgspecError, Raw, structs

from ...presets.finding import Finding
from ...presets.node_plans import part_id
from ..diagnosis import nccl_facts
from ..node.agentless import FilesLink
from ..node.local_agent import open_agent
from ..node.routes import Route
from ..run import clock, run_directories
from ..run.finding_ledger import FindingLedger
from ..run.log_files import whole_id
from ..run.model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    CheckpointSaved,
    CommandDone,
    CommandReceived,
    Event,
    FindingCleared,
    FindingRaised,
    FirstCause,
    LinkChanged,
    LinkState,
    LogGrew,
    NcclChanged,
    NcclTick,
    PulseTick,
    RankChanged,
    RunCreated,
    Stamped,
    TrainingTick,
)
from ..run.pulse import Pulse
from ..run.samples import TrainingSample
from ..run.wire.client import Link, LinkError, LinkFollower, SocketLink, paced
from ..run.wire.ssh import Report, SshLink
from .kept_curves import KeptCurves
from .merged_run import MergedRun
from .node_logs import NodeLogs

SMALLEST_SHIFT_S = 0.5
"""Smaller differences of clocks are ignored: transmission takes time, and NTP keeps the nodes' clocks right."""
SKEW_S = 2.0
"""Larger differences of clocks raise a finding."""


def sub_id(command: str, node: int) -> str:
    return f"{command}.{node}"


def shift_of(reported: float, now: float) -> float:
    """Seconds to add to a node's times, from the time in its hello and the hub's at arrival; 0.0 if it sent none."""
    difference = now - reported
    return difference if reported and abs(difference) >= SMALLEST_SHIFT_S else 0.0


def merge(stamped: Stamped, node: int, shift: float, host: str = "") -> Stamped | None:
    """Return the event with its node, hub time, and seq as `source`; None for events that concern only the link.

    `host` is the hub's name for the node, the destination for ssh.
    """
    event = stamped.event
    if isinstance(event, CaughtUp):
        return None
    if isinstance(event, CommandReceived | CommandDone) and event.id.endswith(f".{node}"):
        return None  # the hub sent the command, and journals one line about it
    if isinstance(event, RunCreated) and host:
        event = structs.replace(event, host=host)
    return Stamped(stamped.time + shift, _placed(event, node, shift), 0, node, stamped.seq)


def _placed(event: Event, node: int, shift: float) -> Event:
    """Convert the fields of an event that refer to a node, a file or a time."""
    place = _PLACED.get(type(event))
    if place is not None:
        placed: Event = place(event, node, shift)
        return placed
    move = _TIMED.get(type(event)) if shift else None
    return event if move is None else move(event, shift)


def _attempt_ended(event: AttemptEnded, node: int, shift: float) -> AttemptEnded:
    training = _reported(event.training, shift)
    return structs.replace(event, first_cause=_cause(event.first_cause, node, shift), training=training)


def _rank_changed(event: RankChanged, node: int, shift: float) -> RankChanged:
    if event.cause is None and not shift:
        return event
    return structs.replace(event, cause=_cause(event.cause, node, shift), at=_moved(event.at, shift))


def _finding_raised(event: FindingRaised, node: int, shift: float) -> FindingRaised:
    since = _moved(event.finding.since, shift)
    return FindingRaised(dataclasses.replace(event.finding, node=node, since=since))


def _cause(cause: FirstCause | None, node: int, shift: float) -> FirstCause | None:
    return None if cause is None else structs.replace(cause, node=node, at=_moved(cause.at, shift))


def _checkpoint(event: CheckpointSaved, shift: float) -> CheckpointSaved:
    moved = structs.replace(event.checkpoint, at=event.checkpoint.at + shift)
    return structs.replace(event, checkpoint=moved)


_PLACED: Mapping[type, Callable[[Any, int, float], Event]] = {
    AttemptStarted: lambda event, node, shift: structs.replace(
        event, ranks=tuple(structs.replace(place, node=node) for place in event.ranks)
    ),
    AttemptEnded: _attempt_ended,
    RankChanged: _rank_changed,
    FindingRaised: _finding_raised,
    FindingCleared: lambda event, node, shift: structs.replace(event, node=node),
    LogGrew: lambda event, node, shift: LogGrew(
        {whole_id(file, node): size for file, size in event.sizes.items()}
    ),
}
"""Kind of event → its conversion."""
_TIMED: Mapping[type, Callable[[Any, float], Event]] = {
    CheckpointSaved: _checkpoint,
    PulseTick: lambda event, shift: PulseTick(tuple(_shifted(pulse, shift) for pulse in event.pulses)),
    TrainingTick: lambda event, shift: TrainingTick(_reported(event.ranks, shift)),
    NcclChanged: lambda event, shift: structs.replace(event, until=_moved(event.until, shift)),
    NcclTick: lambda event, shift: structs.replace(event, document=_later(event.document, shift)),
}
"""Kind of event with nothing but times to convert → its conversion."""


def _reported(samples: tuple[TrainingSample, ...], shift: float) -> tuple[TrainingSample, ...]:
    return tuple(structs.replace(sample, at=sample.at + shift) for sample in samples)


def _moved(at: float | None, shift: float) -> float | None:
    return None if at is None else at + shift


def _later(document: Raw, shift: float) -> Raw:
    """Facts from NCCL's logs with the hub's times; unchanged if their version is unknown."""
    try:
        facts = nccl_facts.decode(bytes(document))
    except MsgspecError:
        return document
    return Raw(nccl_facts.encode(nccl_facts.shifted(facts, shift)))


def _shifted(pulse: Pulse, shift: float) -> Pulse:
    """Return a pulse with the hub's times, to compare arrivals of ranks on several nodes."""
    return structs.replace(
        pulse,
        at=pulse.at + shift,
        last_step=_moved(pulse.last_step, shift),
        active=tuple(structs.replace(call, created=call.created + shift) for call in pulse.active),
        recent=tuple(structs.replace(call, created=call.created + shift) for call in pulse.recent),
    )


AGENT_S = 30
"""Seconds that the bridge of a launch waits for the agent; an integer."""
LAUNCHING_S = 2.0
"""Maximum wait between tries while nodes start."""
AT_ONCE = 8
"""Maximum number of links being opened: sshd drops more (MaxStartups)."""
STEADY_S = 0.5
"""A link that lived for this many seconds is retried soon after it breaks."""
ENDED_TRIES = 3
"""Tries to reach the agent of an ended part: it may have exited, and only logs are missing."""


async def open_route(route: Route, run: str, report: Report) -> Link:
    """Open a link to the agent of one node; `report` gets the reasons of ssh's retries. Raises LinkError."""
    if route.kind == "ssh":
        link: Link = await SshLink.open(route.target, route.options, route.remote, report)
    elif route.kind == "via":
        link = await SocketLink.connect(Path(route.target), via=route.node)
    else:
        link = await _open_here(route, run)
    hello = link.hello if isinstance(link, SocketLink) else None
    if hello is not None and (hello.run, hello.node) != (part_id(run, route.node), route.node):
        await link.close()
        raise LinkError(
            f"{route.host}: what answers there serves {hello.run}, not node {route.node} of {run}"
        )
    return link


async def _open_here(route: Route, run: str) -> Link:
    """Open a part on this machine: its agent, a new one if it died, or the files of an ended part."""
    part = run_directories.at(run_directories.runs_dir() / part_id(run, route.node))
    if part is not None and route.target.endswith(f"/{part.record.run8}.sock"):
        link = await open_agent(part)
        if isinstance(link, FilesLink):  # without an agent it counts as silent, like a node that is off
            raise LinkError(link.why)
        return link
    return await SocketLink.connect(Path(route.target))


class NodeLink(LinkFollower):
    def __init__(
        self,
        run: MergedRun,
        logs: NodeLogs,
        curves: KeptCurves,
        connected: Callable[[int], None],
        route: Route,
        gate: asyncio.Semaphore,
    ) -> None:
        super().__init__()
        self.route = route
        self._run, self._logs, self._connected, self._gate = run, logs, connected, gate
        self._curves = curves
        self.shift = 0.0
        """Seconds to add to the node's times."""
        self._reported: tuple[LinkState, str] | None = None
        self.reached = False
        """Whether the link was up once."""
        self._findings = FindingLedger(partial(run.emit, node=route.node), run.state.findings)
        self._since = math.inf
        """Monotonic time since the current link is up."""
        self._task = run.parts.start(f"link-{route.node}", self.run)

    @property
    def node(self) -> int:
        return self.route.node

    def hurry(self) -> None:
        """Retry without waiting, and reset the back-off."""
        self._tries = 0
        super().hurry()

    async def close(self) -> None:
        await self._run.parts.stop(self._task)
        await self.drop()

    async def _settle(self, problem: str) -> float | None:
        """Retry until the part has ended and all required data was read."""
        delay = self._count(steady=clock.monotonic() - self._since >= STEADY_S)
        if self._ended() and (not problem or self._tries >= ENDED_TRIES):
            await self._finish()
            return None
        await self.drop()
        coming = self._coming()
        state = LinkState.CONNECTING if coming else LinkState.LOST
        problem = problem.removeprefix(f"{self.route.target}: ")  # the event has the name
        problem = problem or "its agent closed the connection"
        delay = min(delay, LAUNCHING_S) if coming else delay
        if self._reported != (state, problem) or self._tries < len(self._backoff):
            self._report(state, problem, clock.now() + delay)
        return delay

    def _ended(self) -> bool:
        return self._run.nodes.ended(self.node)

    async def _follow(self) -> None:
        if self._reported is None:
            self._report(LinkState.CONNECTING)
        self._since = math.inf
        async with self._gate:
            self.link = link = await open_route(self._route(), self._run.record.run, self._report_again)
        hello = link.hello if isinstance(link, SocketLink) else None
        if hello is not None:
            self._compare_clocks(hello.now)
        self.reached = True
        self._report(LinkState.UP)
        self._since = clock.monotonic()
        self._connected(self.node)
        after = self._run.nodes.source(self.node)
        if hello is not None and hello.seq < after:
            after = 0  # a new journal on the node: read it from the start
        async for stamped in paced(link.events(after)):
            merged = merge(stamped, self.node, self.shift, self.route.host)
            if merged is not None:
                self._run.emit(merged.event, node=self.node, source=merged.source, at=merged.time)
            if isinstance(stamped.event, AttemptEnded):
                tails = self._logs.keep_tails(self.node, link, stamped.event.attempt)
                self._run.parts.once("log-tails", tails)
            if isinstance(stamped.event, CaughtUp) and self._ended():
                return  # the end was read before

    def _coming(self) -> bool:
        """Whether the node's agent may still start for the first time."""
        return self._run.launching and not self._run.nodes.source(self.node)

    def _route(self) -> Route:
        """Route of the node; during a launch the bridge waits on the node, because another login takes longer."""
        if self._coming() and self.route.kind == "ssh":
            return msgspec.structs.replace(self.route, remote=(*self.route.remote, str(AGENT_S)))
        return self.route

    def _compare_clocks(self, reported: float) -> None:
        now = clock.now()
        self.shift = self._logs.shifts[self.node] = shift_of(reported, now)
        skewed = abs(self.shift) >= SKEW_S
        if skewed:
            way = "behind" if self.shift > 0 else "ahead"
            text = f"the clock of {self.route.host} is {abs(self.shift):.1f} s {way}"
            remedy = "its times are shown by this machine's clock; let NTP (chrony) keep both"
            finding = Finding("clock-skew", "warning", text, node=self.node, remedy=remedy)
            self._findings.raise_once(finding)
        else:
            self._findings.clear("clock-skew", node=self.node)

    async def _finish(self) -> None:
        """Read the ends of an ended part's logs while its agent still waits for the hub."""
        if self.link is not None:
            await self._logs.keep_tails(self.node, self.link)
            with contextlib.suppress(LinkError, OSError, TimeoutError):
                await self._curves.keep(self.node, self.link, self.shift)
        await self.drop()
        self._report(LinkState.ENDED)

    def _report_again(self, text: str, pause_s: float) -> None:
        """Emit that the connection was closed before the login; a lost node stays lost."""
        lost = self._reported is not None and self._reported[0] is LinkState.LOST
        state = LinkState.LOST if lost else LinkState.CONNECTING
        if self._reported != (state, text):
            self._report(state, text, clock.now() + pause_s)

    def _report(self, state: LinkState, text: str = "", retry_at: float | None = None) -> None:
        self._reported = (state, text)
        self._run.emit(LinkChanged(state, self.route.host, text, retry_at), node=self.node)


class Links:
    def __init__(self, run: MergedRun, logs: NodeLogs, connected: Callable[[int], None]) -> None:
        """Prepare the links of a run; `connected` is called with each node that answers."""
        self._run, self._logs, self._connected = run, logs, connected
        self._curves = KeptCurves(run)
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.by_node: dict[int, NodeLink] = {}

    def use(self, routes: list[Route]) -> None:
        """Connect by exactly these routes; an unchanged route is retried at once if it waits."""
        self._run.nodes.routed = {route.node for route in routes}
        for node in self.by_node.keys() - self._run.nodes.routed:
            gone = self.by_node.pop(node)
            self._close(gone)
            self._run.emit(LinkChanged(LinkState.ENDED, gone.route.host, "never started"), node=node)
        for route in routes:
            node_link = self.by_node.get(route.node)
            if node_link is not None and node_link.route == route:
                node_link.hurry()
                continue
            if node_link is not None:
                self._close(node_link)
            # A part that ended before is followed again if its route has changed: it was recovered elsewhere.
            if node_link is not None or not self._run.nodes.read_to_the_end(route.node):
                self.by_node[route.node] = NodeLink(
                    self._run, self._logs, self._curves, self._connected, route, self._gate
                )

    def _close(self, link: NodeLink) -> None:
        self._run.parts.once("link-close", link.close())

    def up(self, node: int) -> Link | None:
        """Return the link to a node, if it is up."""
        node_link = self.by_node.get(node)
        shown = self._run.state.nodes.get(node)
        if node_link is None or shown is None or shown.link is not LinkState.UP:
            return None
        return node_link.link

    def silent(self) -> list[int]:
        """Nodes with unfinished parts that do not answer."""
        return [node for node in self._run.nodes.alive() if self.up(node) is None]

    def hurry(self) -> None:
        """Retry all waiting links now."""
        for link in self.by_node.values():
            link.hurry()

    async def close(self) -> None:
        """Close all links."""
        await asyncio.gather(*(link.close() for link in self.by_node.values()))
