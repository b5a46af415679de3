"""Tells which log files grew: with each sample, and while somebody looks as soon as something was written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from ..logs.growth import GrowthWatch
from ..logs.notify import Notifier

SHORTEST_S = 0.1
"""Between two looks at the files: ranks that write all the time are looked at this often."""
DEAF_S = 0.25
"""Between two looks where the kernel does not say that something was written."""


class Growing:
    """Sizes of a run's log files. Make it and use it in the event loop."""

    def __init__(self, run_dir: Path, tell: Callable[[dict[str, int]], None]) -> None:
        self._watch = GrowthWatch(run_dir)
        self._tell = tell
        self._notifier: Notifier | None = None
        self._attended = False
        self._listened: tuple[str, ...] = ()
        """Folders in which a write will be heard."""
        self._due: asyncio.TimerHandle | None = None
        self._looked = float("-inf")

    def look(self) -> None:
        """Tell what grew since the last look; also right before the end, so that nobody misses the last lines."""
        self._looked = time.monotonic()
        sizes: dict[str, int] = {}
        while True:
            folders = self._watch.folders
            # Listening begins before the look: what is written in between is heard, and what was before is seen.
            if self._notifier is not None and self._listened != folders:
                self._notifier.listen(folders)
                self._listened = folders
            sizes |= self._watch.poll(self._looked)
            if self._notifier is None or self._watch.folders == folders:
                break
        if sizes:
            self._tell(sizes)

    def attend(self, wanted: bool) -> None:
        """Somebody looks, or nobody does any more: then it is enough to look with each sample."""
        if wanted == self._attended:
            return
        self._attended = wanted
        if not wanted:
            self._rest()
            return
        try:
            self._notifier = Notifier()
        except OSError:
            self._wait(DEAF_S)
        else:
            asyncio.get_running_loop().add_reader(self._notifier.fd, self._heard)
        self.look()

    def _heard(self) -> None:
        """Something was written: look at once, unless the last look was a moment ago."""
        assert self._notifier is not None
        if self._notifier.heard():
            self._listened = ()
            left = self._looked + SHORTEST_S - time.monotonic()
            if left <= 0:
                self.look()
            elif self._due is None:
                self._wait(left)

    def _wait(self, seconds: float) -> None:
        self._due = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._due = None
        self.look()
        if self._notifier is None:
            self._wait(DEAF_S)

    def _rest(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._notifier is not None:
            asyncio.get_running_loop().remove_reader(self._notifier.fd)
            self._notifier.close()
            self._notifier, self._listened = None, ()
