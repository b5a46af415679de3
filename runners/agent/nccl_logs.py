"""Reads what NCCL and torch write into the ranks' logs while they write it: findings, and statements for the screen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent


class NcclLogs:
    """Follows the logs of this node's ranks for as long as the run lives."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def run(self) -> None:
        """Tell an NcclTick when there is news; cancel to stop."""
        await asyncio.Event().wait()

    async def finish(self) -> None:
        """Read what is left, before the end of the run is told."""
