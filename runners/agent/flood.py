"""A level of NCCL_DEBUG that writes too much is taken back before it fills the disk.

Only what somebody set while the run was going is taken back; where the launch itself asks for it, or NCCL cannot be
told while it runs, a finding says so and nothing is changed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...presets.nccl import FLOOD_BYTES, disk_reserve
from ..logs.files import attempt_dir
from ..model import Finding, FindingRaised

if TYPE_CHECKING:
    from .agent import Agent

FLOOD_ID = "nccl-flood"
EVERY_S = 1.0
WINDOW_S = 3.0
"""Over which a rate is taken."""
LEAST_S = 1.8
"""Less time than this makes no rate."""
GROWS = 1_000_000.0
"""Bytes a second below which the logs do not fill a disk."""
QUIET_S = 10.0
"""Between two times that something is done: what was lowered needs a moment to show."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Too much is written."""

    rate: float
    """Bytes a second."""
    free: int | None = None
    """Bytes left on the disk, where that is the reason."""

    @property
    def text(self) -> str:
        """Half a sentence."""
        rate = f"NCCL's logs on this node grow by {self.rate / 1e6:.3g} MB/s"
        return rate if self.free is None else f"{rate}, and {self.free / 2**30:.1f} GiB are free"


class Flow:
    """How fast some files grow together."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._seen: deque[tuple[float, int]] = deque()

    def look(self, now: float, size: int, free: int | None, total: int | None) -> Flood | None:
        """Bytes of all files at a monotonic time, free and whole bytes of the disk; a Flood where it is one."""
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
    """Looks at the files of this node's ranks once a second."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._most = limit()
        self._flow, self._attempt = Flow(self._most), 0
        self._quiet_until = float("-inf")

    async def run(self) -> None:
        """Look for as long as the run lives; cancel to stop."""
        while True:
            await asyncio.sleep(EVERY_S)
            flood = self.look(time.monotonic())
            if flood is not None:
                self._quiet_until = time.monotonic() + QUIET_S
                await self._act(flood)

    def look(self, now: float) -> Flood | None:
        """One look; None also shortly after something was done."""
        state = self._agent.state
        if state.attempt != self._attempt:
            self._flow, self._attempt = Flow(self._most), state.attempt
        size = written(self._agent.run_dir / attempt_dir(self._agent.node, self._attempt))
        if not size:
            return None
        found = self._flow.look(now, size, *_disk(self._agent.run_dir))
        return None if now < self._quiet_until else found

    async def _act(self, flood: Flood) -> None:
        """Take the level back, and say so; else say why that cannot be."""
        done, text = await self._agent.commands.nccl.lower(flood.text)
        limits = f"at most {self._most / 1e6:g} MB/s, and 5 % and 2 GiB of the disk are to stay free"
        remedy = (
            "take the level for some seconds (--for 10), on one rank (--rank 0), or with fewer subsystems"
            if done
            else "restart with NCCL_DEBUG=WARN, or with fewer subsystems in NCCL_DEBUG_SUBSYS"
        )
        role = "fact" if done else "cause"
        evidence = (f"{flood.text}: {limits}",)
        node = self._agent.node
        one = Finding(FLOOD_ID, "warn", text, role, None, node, remedy, evidence, since=time.time())
        known = self._agent.state.findings.get((FLOOD_ID, None, node))
        if known is None or known.text != text:
            self._agent.emit(FindingRaised(one))


def written(folder: Path) -> int:
    """Bytes of NCCL's own files in the folder of an attempt; 0 where there is none."""
    size = 0
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.name.endswith(".nccl"):
                    size += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return size
    return size


def limit() -> float:
    """Bytes a second of a node that are a flood; DISTUI_FLOOD_MB in the agent's environment is another number of MB."""
    try:
        return float(os.environ["DISTUI_FLOOD_MB"]) * 1e6
    except (KeyError, ValueError):
        return FLOOD_BYTES


def _disk(path: Path) -> tuple[int | None, int | None]:
    """Free and whole bytes where the run directory is; None where that is not known."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
