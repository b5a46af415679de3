"""One run on several nodes, as its hub has it: one journal of all nodes, and what the hub's parts share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator

from ...presets.plan import Plan
from ..daemon import DaemonRun
from ..model import (
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
from ..run_directories import Entry
from ..state import RunState
from ..wire.link import LinkError
from .ending import NodeEnding
from .launch_order import Cloud


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
        """Whether a node's part has ended."""
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
        """Whether any node's part has ended."""
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
        return f"{self.name(node)} does not answer for {time.time() - status.link_since:.0f} s{why}"

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
        environment, where whoever started the hub gave them to it."""
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

        After `seam.CANCEL_SECONDS` it is cancelled.
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

    def spawn(self, job: Coroutine[object, object, object]) -> None:
        """Have a task do it, which may fail with its link, and is kept alive until it is done."""

        async def guarded() -> None:
            with contextlib.suppress(LinkError, OSError, TimeoutError):
                await job

        super().spawn(guarded())

    async def finish(self, seconds: float) -> None:
        """Wait so long for what was spawned."""
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=seconds)
