"""The provider of a run's nodes, for the hub and its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from ..node.routes import Route
from ..run.errors import RunError

CANCEL = "cancel-job"
"""Name of the background part that asks SkyPilot to cancel a run's job."""
CANCEL_SECONDS = 60.0
"""Seconds that a launch has for cleaning up after a stop."""


class CloudError(RunError):
    """The cloud cannot carry out a request; the text is one sentence with the reason and a remedy."""

    code = 1


SetRoutes = Callable[[list[Route]], None]
"""Write nodes.json and connect by exactly these routes; reconnect if a route changed.

Raises RunError, OSError.
"""


class Cloud:
    """The provider of the nodes during the hub's life. This base class is for nodes that distui may not take down."""

    not_ours: ClassVar[str]
    """Reason why distui does not take the cluster down."""

    async def watch(self) -> None:
        """Emit ClusterChanged at each change (autostop, price, down) until cancelled."""
        await asyncio.Event().wait()

    async def cancel(self) -> str:
        """End the run's job without its nodes, and return a sentence. Raises CloudError."""
        raise CloudError(self.not_ours)

    def check_down(self, cluster: str) -> None:
        """Raise CloudError if `down` is not possible, or if `cluster` is not the name of this cluster."""
        raise CloudError(self.not_ours)

    async def down(self, cluster: str) -> str:
        """Take the named cluster down, and return a sentence. Raises CloudError, also for another name."""
        raise CloudError(self.not_ours)

    async def set_autostop(self, minutes: int | None) -> str:
        """Set the idle minutes before a teardown (None: never), and return a sentence. Raises CloudError."""
        raise CloudError(self.not_ours)
