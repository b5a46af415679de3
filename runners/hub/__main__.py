"""`python -m distui.runners.hub run RUN_DIR [READY_FD [MODE]]`: the hub of one run on several nodes."""

from __future__ import annotations

import asyncio
import sys

from ...presets.plan import Plan
from .. import daemon, run_directories
from ..host_processes import StartMode
from .hub import Hub


async def serve(entry: run_directories.Entry, plan: Plan, ready: daemon.Ready, mode: StartMode) -> None:
    """Serve one run until it has ended and nobody looks."""
    hub = Hub(entry, plan, mode)
    try:
        await hub.serve(ready)
    except asyncio.CancelledError:
        await hub.links.close()
        hub.run.journal.flush()  # the nodes go on; the next viewer starts another hub
        raise


def main(argv: list[str]) -> int:
    """Internal entry point; see the module."""
    given = daemon.arguments(argv)
    if given is not None:
        return daemon.run(*given, serve)
    sys.stderr.write("usage: hub run RUN_DIR [READY_FD [MODE]]\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
