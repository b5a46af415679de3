"""Write no faster than the terminal reads: it answers a question after each batch of output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from textual.drivers.linux_driver import LinuxDriver

from ..runners.run import clock
from .terminal import take_answers

ASK = "\x1b[6n"
"""Device status report 6 (ECMA-48): the terminal answers with the cursor's position."""

FEWEST, FIRST, MOST = 256, 4096, 1 << 16
"""Minimum, initial and maximum bytes per batch. The initial size protects a slow link until its speed is known."""

FAST_S, SLOW_S = 0.05, 0.15
"""Delays over the fastest answer below which the next batch doubles, and above which it shrinks."""

PATIENCE_S, MOST_PATIENCE_S = 10.0, 320.0
"""Seconds without an answer before one more batch is sent; doubled each time up to the maximum."""

GREETING_S = 1.0
"""Patience for the very first question: most terminals answer in milliseconds, and some never."""

DEAF_S = 3.0
"""A key so many seconds after a question shows that its answer was lost."""


class Pacer:
    """Writes no faster than the terminal reads: one batch in flight, its size set by the round-trip time.

    Without this a slow link fills with old frames, and every key waits for them. After each batch the pacer requests the
    cursor's position (`ESC[6n`); the answer confirms that everything before it has arrived. A terminal that has never
    answered within PATIENCE_S gets all output at once until it answers. A terminal that stops answering gets no more
    output.
    """

    def __init__(
        self,
        take: Callable[[int], str],
        write: Callable[[str], None],
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        """Create the pacer. `take` returns at most so many bytes of pending output; `write` writes them."""
        self.active = False
        """Whether the app owns a terminal."""
        self.budget = FIRST
        self.rtt: float | None = None
        """Round-trip seconds of the last batch."""
        self.mute = False
        """Whether the terminal has never answered, although it had time to."""
        self._least: float | None = None
        """The fastest answer."""
        self._take = take
        self._write = write
        self._clock = clock
        self._depth = 0
        self._held = False
        self._asked: float | None = None
        self._sent = 0
        """Characters of the batch in flight."""
        self._patience = GREETING_S
        self._begun = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send everything painted inside as one batch."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.pump()

    def hold(self, on: bool) -> None:
        """Keep output back, or release it."""
        self._held = on
        self.pump()

    @property
    def owes(self) -> bool:
        """Whether an answer of the terminal is pending."""
        return self._asked is not None

    @property
    def busy(self) -> bool:
        """Whether a batch is in flight."""
        return self._asked is not None and not self.mute

    def greet(self, probe: str = "") -> None:
        """Start with a question before any output, so that the first answer measures the terminal's latency.

        `probe`: output whose effect on the cursor's position shows what the terminal can do.
        """
        self.active = True
        self._ask(probe)

    def pump(self) -> None:
        """Send the next batch, unless one is in flight."""
        if self._depth or self._held or not self.active:
            return
        if self._asked is not None and self._clock() - self._asked >= self._patience:
            self._give_up_answer()
        if self.busy and self._begun:  # the very first batch waits for no answer
            return
        text = self._take(MOST if self.mute else self.budget)
        if not text:
            return
        self._begun = True
        if self._asked is None:
            self._ask(text)
        else:
            self._write(text)

    def _give_up_answer(self) -> None:
        """Stop waiting for the terminal, which is mute if it has never answered."""
        self.mute = self.mute or self._least is None
        self._patience = min(max(PATIENCE_S, 2 * self._patience), MOST_PATIENCE_S)
        self.budget = FEWEST
        self._asked = None

    def _ask(self, text: str) -> None:
        self._asked, self._sent = self._clock(), len(text)
        self._write(text + ASK)

    def answered(self) -> None:
        """Record that the terminal has read the batch."""
        if self._asked is None:
            return
        took = self.rtt = self._clock() - self._asked
        self._least = took if self._least is None else min(self._least, took)
        self._asked, self.mute, self._patience = None, False, PATIENCE_S
        if took - self._least < FAST_S and 2 * self._sent > self.budget:  # a small batch is always fast
            self.budget = min(MOST, self.budget * 2)
        elif took - self._least > SLOW_S:
            self.budget = max(FEWEST, self.budget // 2, round(self.budget * FAST_S / took))
        self.pump()

    def typed(self) -> None:
        """Record a key, which shows that the terminal is in use."""
        if self._asked is not None and self._clock() - self._asked >= DEAF_S:
            self._asked = None
            self.pump()


LEAVE_S, LEAVE_MOST_S = 0.5, 3.0
"""Maximum seconds to wait at exit for answers of a fast and of a slow terminal."""


class PacedDriver(LinuxDriver):
    """Textual's driver, which at exit reads the terminal's pending answers, so that the shell does not receive them."""

    _has_input = False

    def start_application_mode(self) -> None:
        self._has_input = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def disable_input(self) -> None:
        """See Driver.disable_input.

        Textual calls it twice at exit, the second time after the shell's screen and modes are restored.
        """
        super().disable_input()
        if self._has_input:
            self._has_input = False
            self._take_answers()

    def _take_answers(self) -> None:
        pacer = getattr(self._app, "pacer", None)
        if pacer is None or not (pacer.owes or pacer.rtt is not None):
            return
        self.write(ASK)  # answered last, so that no other answer is pending
        patience = min(LEAVE_MOST_S, max(LEAVE_S, 4 * (pacer.rtt or 0.0)))
        take_answers(self.fileno, 1 + pacer.owes, patience)
