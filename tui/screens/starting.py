"""Starts a run from a screen, shows the progress, and opens the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ...runners.run.errors import LaunchError
from ..background import background
from .cockpit import Cockpit

SHOWN_S = 60.0
"""Seconds that progress and errors stay on the screen."""


async def start_and_open(app: Cockpit, starting: Awaitable[str]) -> None:
    """Await the start of a run, and open it. A refusal stays on the screen, and nothing else changes."""
    app.notify("planning the launch, then starting its agent …", timeout=SHOWN_S)
    try:
        run = await starting
    except LaunchError as error:
        app.clear_messages()
        app.notify(str(error), severity="error", timeout=SHOWN_S)
        return
    app.clear_messages()
    app.open_run(run)
    background(app, "retention", retire(app, run))


async def retire(app: Cockpit, launched: str) -> None:
    """Remove the runs that the settings no longer keep, and report which."""
    if gone := await asyncio.to_thread(app.source.retire, launched):
        app.notify(gone)
