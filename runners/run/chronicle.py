"""A daemon's state of its run: journaled, folded, and sent to viewers."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...presets.secrets import mask_value
from . import clock, snapshot
from .commands import Hello
from .journal import Journal
from .model import (
    TELEMETRY,
    Event,
    Folded,
    RunPhase,
    Stamped,
)
from .state import RunState

MOST_MASKED = 1 << 16
"""Maximum bytes of an event that is searched for secrets: larger ones are stacks or a flight record."""


def withheld(event: Event) -> Event:
    """Mask the secrets in an event's texts (errors of ranks contain URLs and headers); return a long dump unchanged."""
    if len(msgspec.json.encode(event)) > MOST_MASKED:
        return event
    values = msgspec.to_builtins(event)
    shown = mask_value(values)
    return event if shown == values else msgspec.convert(shown, type(event))


class Chronicle:
    """A daemon's state of its run; each of `listeners` is called with each event after the fold."""

    def __init__(self, run_dir: Path) -> None:
        self.state = RunState()
        self.kept = RunState()
        """Fold of the journaled events only, without telemetry."""
        self.journal = Journal(run_dir)
        self._run_dir = run_dir
        self._summed = (0, 0)
        """Bytes and CRC-32 of the journal at the newest snapshot."""
        self._sent: tuple[int, bytes] = (0, b"")
        """Seq and packed state that were last sent to a viewer instead of the history."""
        self._snapped = 0
        """Seq of the newest snapshot."""
        self.listeners: list[Callable[[Stamped], None]] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def replay(self, heard: Callable[[Stamped], None] = lambda stamped: None) -> bool:
        """Fold the events of an earlier daemon, call `heard` with each, and return whether there were any."""
        for stamped in self.journal.replay():
            self.state.apply(stamped)
            heard(stamped)
        self.kept = copy.deepcopy(self.state)
        self._snap()
        return self.state.seq > 0

    def _snap(self) -> None:
        """Write a snapshot of the fold if the journal has grown much or the run has ended.

        Lists then read the snapshot instead of the journal. On a full disk the old snapshot stays.
        """
        kept = self.kept
        is_early = kept.seq - self._snapped < snapshot.EVERY and not kept.phase.ended
        if is_early or not self.journal.sound or not snapshot.fold_id():
            return
        summed = self.journal.sum(self._summed)
        if summed is None or kept.seq != self.journal.seq or not kept.run:
            return
        self._summed, self._snapped = summed, kept.seq
        with contextlib.suppress(OSError, ValueError):
            fold = snapshot.Snapshot(snapshot.fold_id(), kept.run, kept.seq, *summed, snapshot.packed(kept))
            snapshot.write(self._run_dir, fold)

    def folded(self, hello: Hello) -> Folded | None:
        """Return the state, not the history, for a viewer with this folding code that lacks many events; else None."""
        kept = self.kept
        behind = kept.seq - hello.after >= snapshot.EVERY and kept.seq == self.journal.seq
        if not hello.fold or hello.fold != snapshot.fold_id() or not behind:
            return None
        try:
            if self._sent[0] != kept.seq:
                self._sent = kept.seq, snapshot.packed(kept)
        except ValueError:
            return None
        if len(self._sent[1]) > snapshot.MOST_SENT:
            return None
        return Folded(kept.seq, self._sent[1], kept.phase.ended and kept.phase is not RunPhase.LOST)

    def emit(self, event: Event, *, node: int = 0, source: int = 0, at: float | None = None) -> None:
        """Journal an event (unless telemetry), fold it, send it to the viewers, and wake the waiters."""
        durable = not isinstance(event, TELEMETRY)
        event = withheld(event) if durable else event
        seq = max(self.journal.seq, self.state.seq) + 1 if durable else 0
        stamped = Stamped(clock.now() if at is None else at, event, seq, node, source)
        if durable:
            self.journal.append(stamped)
            if not self.state.of_part(stamped):
                self.journal.keep_end(stamped)
            self.kept.apply(stamped)
            self._snap()
        self.state.apply(stamped)
        for listener in self.listeners:
            listener(stamped)
        for wanted, future in self._waiting:
            if not future.done() and wanted():
                future.set_result(None)

    async def until(self, wanted: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until `wanted()` is true; return False after `seconds` (None: no limit)."""
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
