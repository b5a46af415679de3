"""Looks at what every rank is doing, every few seconds: through its hook, else from outside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent


class Pulses:
    """Takes the pulses of this node's ranks for as long as the run lives."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def run(self) -> None:
        """Tell a PulseTick every few seconds; cancel to stop."""
        await asyncio.Event().wait()
