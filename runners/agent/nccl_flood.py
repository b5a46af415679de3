"""Reset a level of NCCL_DEBUG that writes too much before it fills the disk.

Only a level that was set while the run was active is reset. If the launch requests the level, or this NCCL has no live
switch, a finding reports the flood.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ...presets.finding import Finding
from ...presets.nccl import FLOOD_BYTES
from ..run import clock
from ..run.formatting import size_text
from ..run.log_files import attempt_dir
from ..run.machine import disk_reserve, disk_space
from .runner_process import ServedRun

FLOOD_ID = "nccl-flood"
RATE_EVERY_S = 1.0
WINDOW_S = 3.0
"""Length of the measurement of a rate, in seconds."""
LEAST_S = 1.8
"""Shortest time for a rate, in seconds."""
GROWS = 1_000_000.0
"""Bytes per second below which the logs do not fill a disk."""
QUIET_S = 10.0
"""Seconds between two actions: a lower level needs time to take effect."""
Lower = Callable[[str], Awaitable[tuple[bool, str]]]
"""Lowers a level for a reason (half a sentence). Returns True if it was lowered, and a sentence."""


@dataclass(frozen=True, slots=True)
class Flood:
    """The logs grow too fast."""

    rate: float
    """Bytes per second."""
    free: int | None = None
    """Free bytes of the disk, if they are the reason."""

    @property
    def text(self) -> str:
        """Return half a sentence."""
        rate = f"NCCL's logs on this node grow by {self.rate / 1e6:.3g} MB/s"
        return rate if self.free is None else f"{rate}, and {size_text(self.free)} are free"


class Flow:
    """The common growth rate of some files."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._seen: deque[tuple[float, int]] = deque()

    def check(self, now: float, size: int, free: int | None, total: int | None) -> Flood | None:
        """Add the size of all files at a monotonic time, with the disk's free and total bytes.

        Return a Flood if there is one.
        """
        if self._seen and size < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, size))
        while now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        then, before = self._seen[0]
        if now - then < LEAST_S:
            return None
        rate = (size - before) / (now - then)
        if rate > self._most:
            return Flood(rate)
        if free is not None and total and rate > GROWS and free < disk_reserve(total):
            return Flood(rate, free)
        return None


class Guard:
    """Checks the log files of this node's ranks once per second."""

    def __init__(self, run: ServedRun, lower: Lower) -> None:
        self._run, self._lower = run, lower
        self._most = FLOOD_BYTES
        self._flow, self._attempt = Flow(self._most), 0
        self._quiet_until = float("-inf")

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(RATE_EVERY_S)
            flood = self.check(clock.monotonic())
            if flood is not None:
                self._quiet_until = clock.monotonic() + QUIET_S
                await self._act(flood)

    def check(self, now: float) -> Flood | None:
        """Check once. Returns None also for QUIET_S after an action."""
        state = self._run.state
        if state.attempt != self._attempt:
            self._flow, self._attempt = Flow(self._most), state.attempt
        size = written(self._run.run_dir / attempt_dir(self._run.node, self._attempt))
        if not size:
            return None
        flood = self._flow.check(now, size, *disk_space(self._run.run_dir))
        return None if now < self._quiet_until else flood

    async def _act(self, flood: Flood) -> None:
        """Lower the level and report it, or report why that is impossible."""
        done, text = await self._lower(flood.text)
        limits = f"at most {self._most / 1e6:g} MB/s, and 5 % and 2 GiB of the disk are to stay free"
        remedy = (
            "take the level for some seconds (--for 10), on one rank (--rank 0), or with fewer subsystems"
            if done
            else "restart with NCCL_DEBUG=WARN, or with fewer subsystems in NCCL_DEBUG_SUBSYS"
        )
        node = self._run.node
        finding = Finding(
            FLOOD_ID,
            "warning",
            text,
            role="fact" if done else "cause",
            node=node,
            remedy=remedy,
            evidence=(f"{flood.text}: {limits}",),
            since=clock.now(),
        )
        raised = self._run.state.findings.get((FLOOD_ID, None, node))
        if raised is None or raised.text != text:
            self._run.findings.raise_finding(finding)


def written(folder: Path) -> int:
    """Return the bytes of NCCL's files in the folder of an attempt, or 0 if there are none."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".nccl"):
                with contextlib.suppress(OSError):  # it was just renamed or removed; the others count
                    size += entry.stat(follow_symlinks=False).st_size
    return size
