"""Textual's terminal driver, with an input thread that sleeps until there is input.

Textual's wakes up ten times a second to see whether it is to end, and whether an escape stands alone.
"""

from __future__ import annotations

import os
import select
from codecs import getincrementaldecoder

from textual._xterm_parser import XTermParser
from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver


class CalmDriver(LinuxDriver):
    """Wakes up for input, for its end, and, after input, until an escape that stands alone is known as one."""

    _bell: tuple[int, int] | None = None
    """A pipe that is written to when the thread is to end."""

    def start_application_mode(self) -> None:
        """See Driver.start_application_mode."""
        self._close_bell()
        self._bell = os.pipe()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def disable_input(self) -> None:
        """See Driver.disable_input."""
        if self._bell is not None:
            os.write(self._bell[1], b"\0")
        super().disable_input()
        self._close_bell()

    def _close_bell(self) -> None:
        ends, self._bell = self._bell or (), None
        for end in ends:
            os.close(end)

    def run_input_thread(self) -> None:
        """As LinuxDriver.run_input_thread, without the timer."""
        if self._bell is None:
            return
        bell = self._bell[0]
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")().decode
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.register(bell, select.POLLIN)
        patience: float | None = None
        while bell not in (ready := dict(poll.poll(patience))):
            patience = None
            if ready:
                if not ready[self.fileno] & select.POLLIN:
                    return  # the terminal has gone
                data = os.read(self.fileno, 4096)
                if not data:
                    return
                patience = 1000 * ESCAPE_DELAY + 1
                for event in parser.feed(decode(data)):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)
