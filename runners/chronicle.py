"""A journal with its fold: what is told is written, folded, passed on to viewers, and wakes who waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from ..presets.plan import Plan
from .journal import Journal
from .logs.clean import clean_text
from .model import TELEMETRY, Event, PlanSummary, Stamped
from .state import RunState


def summarise(plan: Plan) -> PlanSummary:
    """The part of a plan that every screen needs."""
    return PlanSummary(
        preset=plan.preset,
        strategy=plan.strategy,
        launcher=plan.launcher,
        command=clean_text(" ".join(plan.command)),
        nnodes=plan.nnodes,
        nnodes_min=plan.nnodes_min,
        nproc_per_node=plan.nproc_per_node,
        backend=plan.backend,
        obeys=plan.obeys,
        restart_limit=plan.restart.limit,
        grace_s=plan.grace_s,
        notes=plan.notes,
        mesh=dict(plan.mesh),
    )


class Chronicle:
    """What a daemon knows of its run; `publish` is called with each event after it was folded."""

    def __init__(self, run_dir: Path) -> None:
        self.state = RunState()
        self.journal = Journal(run_dir)
        self.publish: Callable[[Stamped], None] = lambda stamped: None
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def replay(self, heard: Callable[[Stamped], None] = lambda stamped: None) -> bool:
        """Fold what an earlier daemon wrote, each event told to `heard`; whether there was anything."""
        for stamped in self.journal.replay():
            self.state.apply(stamped)
            heard(stamped)
        return self.state.seq > 0

    def emit(self, event: Event, *, node: int = 0, source: int = 0, at: float | None = None) -> None:
        """Journal an event (telemetry excepted), fold it, tell the viewers, wake who waits for it."""
        durable = not isinstance(event, TELEMETRY)
        seq = max(self.journal.seq, self.state.seq) + 1 if durable else 0
        stamped = Stamped(time.time() if at is None else at, event, seq, node, source)
        if durable:
            self.journal.append(stamped)
        self.state.apply(stamped)
        self.publish(stamped)
        for wanted, future in self._waiting:
            if not future.done() and wanted():
                future.set_result(None)

    async def until(self, wanted: Callable[[], bool], seconds: float | None) -> bool:
        """Wait for something to become true of the state; False after `seconds` (None: never)."""
        if wanted():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (wanted, future)
        self._waiting.append(item)
        try:
            async with asyncio.timeout(seconds):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(item)
