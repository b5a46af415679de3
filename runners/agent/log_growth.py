"""Report growing log files of a run, and record when their lines were written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ..logs.line_times import LineTimes
from ..run import clock
from ..run.growth_watch import GONE, GrowthWatch
from ..run.inotify import Notifier

SHORTEST_S = 0.1
"""Shortest time between two checks of the files, in seconds. Applies to ranks that write continuously."""
QUIET_S = 0.25
"""Shortest time without a viewer. The checks continue, because lines get their times from them."""
DEAF_S = 0.25
"""Poll interval in seconds if inotify is unavailable."""


class Growing:
    """Sizes of a run's log files and times of growth. Create and use it in the event loop."""

    def __init__(self, run_dir: Path, report: Callable[[dict[str, int]], None]) -> None:
        self._watch = GrowthWatch(run_dir)
        self._report = report
        self._notifier: Notifier | None = None
        self._attended = False
        self._listened: tuple[str, ...] = ()
        """Folders that inotify watches."""
        self._due: asyncio.TimerHandle | None = None
        self._checked = float("-inf")
        self._times = LineTimes(run_dir)
        self._unreported: dict[str, int] = {}

    def check(self) -> None:
        """Report growth since the last check. Also called before the end, so that the last lines are reported."""
        self._check_files()
        self.flush()
        sizes, self._unreported = self._unreported, {}
        if sizes:
            self._report(sizes)

    def flush(self, file: str | None = None) -> None:
        """Write the recorded times of one log, or of all logs."""
        self._times.flush(file)

    def _check_files(self) -> None:
        before, self._checked = self._checked, clock.monotonic()
        sizes = self._unreported
        while True:
            folders = self._watch.folders
            # Watch before the poll: inotify reports later writes, and the poll finds earlier ones.
            if self._notifier is not None and self._listened != folders:
                self._notifier.listen(folders)
                self._listened = folders
            grown = self._watch.poll(self._checked)
            self._note(grown, before)
            sizes |= grown
            if self._notifier is None or self._watch.folders == folders:
                break

    def _note(self, grown: Mapping[str, int], before: float) -> None:
        """Record line times. `before`: monotonic time of the previous check."""
        now = clock.now()
        then = now - (clock.monotonic() - before) if before > 0 else None
        for file, size in grown.items():
            if size != GONE:
                self._times.note(file, size, self._watch.written[file], then, now)

    def begin(self) -> None:
        """Watch for writes from now on, with or without a viewer."""
        if self._notifier is not None:
            return
        with contextlib.suppress(OSError):
            self._notifier = Notifier()
            asyncio.get_running_loop().add_reader(self._notifier.fd, self._heard)

    def end(self) -> None:
        """Stop watching."""
        self._attended = False
        self._rest()

    def attend(self, wanted: bool) -> None:
        """Report growth immediately while a viewer is connected, otherwise once per sample."""
        if wanted == self._attended:
            return
        self._attended = wanted
        if not wanted:
            return
        self.begin()
        if self._notifier is None and self._due is None:
            self._wait(DEAF_S)
        self.check()

    def welcome(self) -> None:
        """Report earlier growth for a new viewer, even right after a check."""
        if self._attended:
            self.check()
        else:
            self.attend(True)

    def _heard(self) -> None:
        """Check after a write, but not before the shortest time since the last check has passed."""
        assert self._notifier is not None
        if self._notifier.heard():
            self._listened = ()
            left = self._checked + (SHORTEST_S if self._attended else QUIET_S) - clock.monotonic()
            if left <= 0:
                self._check_again_soon()
            elif self._due is None:
                self._wait(left)

    def _check_again_soon(self) -> None:
        if self._attended:
            self.check()
        else:
            self._check_files()

    def _wait(self, seconds: float) -> None:
        self._due = asyncio.get_running_loop().call_later(seconds, self._check_again)

    def _check_again(self) -> None:
        self._due = None
        self._check_again_soon()
        if self._notifier is None and self._attended:
            self._wait(DEAF_S)

    def _rest(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._notifier is not None:
            asyncio.get_running_loop().remove_reader(self._notifier.fd)
            self._notifier.close()
            self._notifier, self._listened = None, ()
