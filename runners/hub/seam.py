"""Where the hub meets what launches a cluster: what each may ask of the other.

`launching.py` has `async def launch(hub: Hub) -> None`, and `def cloud_of(hub: Hub) -> Cloud | None`. The hub
calls `launch` when the run directory has a launch.json and the journal holds no `StageChanged(Stage.START,
"done")` of node HUB; so a hub that died in mid-launch calls it again, and `launch` has to find out how far
it was. `launch` emits its own stages, the last of them being that one; gives the routes as soon as it knows
them (also before the nodes answer: links try on with back-off); and calls `fail` when nothing comes of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from ...presets.plan import Plan
from ..errors import RunError
from ..model import HUB, Event
from ..registry import RunRecord
from ..state import RunState
from .routes import Route

LAUNCH_FILE = "launch.json"
"""In the hub's run directory: how to launch, in the words of launching.py alone."""
CANCEL_SECONDS = 60.0
"""How long a launch has to give up."""


class CloudError(RunError):
    """What was asked of the cloud cannot be done; the text is one sentence that says why and what to do."""

    code = 1


class Hub(Protocol):
    """What a launch may use of the hub. Everything is called on the event loop."""

    @property
    def run_dir(self) -> Path: ...

    @property
    def record(self) -> RunRecord: ...

    @property
    def plan(self) -> Plan:
        """The plan for all nodes, with placeholders. Secrets are hidden in it; their values are in the hub's own
        environment, where whoever started the hub gave them to it."""
        ...

    @property
    def state(self) -> RunState:
        """Everything journaled so far, folded: stages, cluster, links."""
        ...

    @property
    def stop_asked(self) -> asyncio.Event:
        """Set when the user wants the run to end: a launch gives up, clears away what it began, and returns.

        After `seam.CANCEL_SECONDS` it is cancelled.
        """
        ...

    def emit(self, event: Event, *, node: int = HUB) -> None:
        """Journal an event and tell the viewers."""
        ...

    def set_routes(self, routes: list[Route]) -> None:
        """Write nodes.json and connect by these and no others; routes that changed are connected anew.

        Raises RunError, OSError.
        """
        ...

    def fail(self, text: str) -> None:
        """End the run as failed; `text` is a sentence that says why and what to do."""
        ...


class Cloud(Protocol):
    """A cluster that somebody can be asked about, as long as the hub lives."""

    async def watch(self) -> None:
        """Emit ClusterChanged whenever something changes (autostop, price, down), for ever; cancelled at the end."""
        ...

    async def cancel(self) -> str:
        """End the run's job where its nodes cannot be asked to; a sentence. Raises CloudError."""
        ...

    def check_down(self, cluster: str) -> None:
        """Whether `down` may be tried. Raises CloudError where not, also for another name than the cluster's."""
        ...

    async def down(self, cluster: str) -> str:
        """Take the cluster of that name down; a sentence. Raises CloudError, also for another name."""
        ...

    async def set_autostop(self, minutes: int | None) -> str:
        """Minutes without a job until the cluster goes; None: never. A sentence. Raises CloudError."""
        ...
