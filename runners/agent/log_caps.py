"""Keep the logs of a run's ranks below the cap of its plan."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...presets.finding import Finding
from ..logs import gaps
from ..run.formatting import size_text
from ..run.log_files import list_files
from ..run.model import FindingRaised
from .runner_process import ServedRun

EVERY_S = 2.0
"""Seconds between two checks of the sizes on disk."""


class LogCaps:
    """Checks the logs periodically, and removes the middle of logs that are too large."""

    def __init__(self, run: ServedRun, cap: int) -> None:
        """`cap`: bytes per log on disk."""
        self._run, self._cap = run, cap
        self._refused = False

    async def run(self) -> None:
        """Check until cancelled."""
        while not self._refused:
            await asyncio.sleep(EVERY_S)
            problem = await asyncio.to_thread(self._check)
            if problem:
                self._refused = True
                self._run.emit(FindingRaised(self._finding(problem)))

    def _check(self) -> str:
        """Cap the logs that are too large. Return why that is impossible here, or ""."""
        for file in list_files(self._run.run_dir):
            path = Path(self._run.run_dir) / file.id
            try:
                if file.stream == "log" or path.lstat().st_blocks * 512 <= self._cap:
                    continue
                if not gaps.punches(path.parent):
                    return "the file system takes no blocks back from a file that is open (fallocate: PUNCH_HOLE)"
                gaps.cap_log(path, self._cap)
            except OSError:
                continue  # deleted, or the disk is full: the next check may succeed
        return ""

    def _finding(self, why: str) -> Finding:
        cap = size_text(self._cap)
        return Finding(
            id="log-cap",
            severity="warning",
            text=f"logs grow beyond {cap}, and the cap cannot hold them: {why}",
            node=self._run.node,
            remedy="set XDG_STATE_HOME to a directory on a local disk (ext4, xfs, btrfs, tmpfs), or print less",
        )
