"""One run on several nodes in its hub: the journal of all nodes, its launch and its cloud."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from ...presets.plan import Plan
from ..run import clock
from ..run.daemon_run import DaemonRun
from ..run.model import (
    HUB,
    ClusterChanged,
    Event,
    LinkChanged,
    LinkState,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from ..run.parts import in_background
from ..run.run_directories import Entry
from ..run.state import RunState
from .clouds import Cloud
from .run_ending import NodeEnding

# Interface between the hub and a launch. `cluster_launch.py` has `async def launch(run, set_routes)` and
# `def cloud_of(run) -> Cloud | None`. The hub calls `launch` if the run directory has a launch.json and the journal
# has no `StageChanged(Stage.START, "done")` of node HUB. A hub that died during a launch therefore calls it again,
# and `launch` must find out how far it was. `launch` emits its own stages, that one last. It sets the routes as soon
# as it knows them, even before the nodes answer: links retry with back-off. It calls `fail` if the launch fails.


LAUNCH_FILE = "launch.json"
"""File in the hub's run directory with the parameters of its launch."""
LOG_FILE = "launch.log"
"""SkyPilot's output during the launch."""


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
