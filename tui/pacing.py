"""Paint no faster than the terminal takes it: one batch of rows in flight, its size set by how long it took.

Without this a slow link fills with old frames, and every key waits behind them. After each batch the terminal
is asked where its cursor is (`ESC[6n`); its answer says that all before it has arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

ASK = "\x1b[6n"
"""Device status report 6 (ECMA-48): the terminal answers with the cursor's position."""

FEWEST, FIRST, MOST = 1, 64, 64
"""Rows in a batch; the first one is large, because most links are fast."""

FAST_S, SLOW_S = 0.1, 0.25
"""Answers faster than this double the batch, slower ones halve it."""

PATIENCE_S = 10.0
"""A terminal that has not answered by then never will: batches go on unasked."""


class Paintable(Protocol):
    """A widget that can paint some of its rows."""

    def paint_rows(self, rows: list[int]) -> None: ...


class Pacer:
    """Holds the rows that are to be painted, and lets them go in batches."""

    def __init__(
        self,
        ask: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask` writes what was painted and then the question; `flush` writes what was painted."""
        self.active = False
        """False paints at once: no terminal of our own, or one that does not answer."""
        self.budget = FIRST
        self.rtt: float | None = None
        """Seconds that the last batch took to arrive."""
        self._ask = ask
        self._clock = clock
        self._flush = flush
        self._depth = 0
        self._painted = False
        self._asked: float | None = None
        self._dirty: dict[Paintable, set[int]] = {}

    def add(self, widget: Paintable, rows: list[int]) -> None:
        """These rows changed; they are painted as soon as the batch before has arrived."""
        if not self.active:
            widget.paint_rows(rows)
            return
        self._dirty.setdefault(widget, set()).update(rows)
        self.pump()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is painted inside leaves as one batch."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.pump()

    @property
    def held(self) -> bool:
        """Whether more of the same batch is to come."""
        return self._depth > 0

    def pump(self) -> None:
        """Let the next batch go, unless one is still on its way."""
        if self.held:
            return
        if self._asked is not None and self._clock() - self._asked >= PATIENCE_S:
            self.active, self._asked = False, None
        if self._asked is None:
            self._depth += 1
            try:
                self._paint_some(self.budget if self.active else MOST * 100)
            finally:
                self._depth -= 1
        if self._painted:
            self._painted = False
            self.sent()
        self._flush()

    def _paint_some(self, left: int) -> None:
        """At most `left` of the rows that are to be painted."""
        while self._dirty and left > 0:
            widget, rows = next(iter(self._dirty.items()))
            batch = sorted(rows)[:left]
            rows.difference_update(batch)
            if not rows:
                del self._dirty[widget]
            widget.paint_rows(batch)
            left -= len(batch)
            self._painted = True

    @property
    def busy(self) -> bool:
        """Whether a batch is still on its way."""
        return self.active and self._asked is not None

    def sent(self) -> None:
        """Something was painted: ask when it has arrived."""
        if self.held:
            self._painted = True
        elif self.active and self._asked is None:
            self._asked = self._clock()
            self._ask()

    def answered(self) -> None:
        """The terminal has taken the batch."""
        if self._asked is None:
            return
        self.rtt = self._clock() - self._asked
        self._asked = None
        if self.rtt < FAST_S:
            self.budget = min(MOST, self.budget * 2)
        elif self.rtt > SLOW_S:
            self.budget = max(FEWEST, self.budget // 2)
        self.pump()
