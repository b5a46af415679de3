"""`python -m distui.runners.hub run RUN_DIR [READY_FD]`: the hub of one run on several nodes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ...presets.plan import Plan
from .. import daemon, registry
from .hub import Hub


async def serve(entry: registry.Entry, plan: Plan, ready: daemon.Ready) -> None:
    """Serve one run until it has ended and nobody looks."""
    hub = Hub(entry, plan)
    try:
        await hub.run(ready)
    except asyncio.CancelledError:
        await hub.links.close()
        hub.chronicle.journal.flush()  # the nodes go on; the next viewer starts another hub
        raise


def main(argv: list[str]) -> int:
    """Internal entry point; see the module."""
    if len(argv) >= 2 and argv[0] == "run":
        ready = daemon.Ready(int(argv[2]) if len(argv) > 2 else None)
        return daemon.run(Path(argv[1]), ready, serve)
    sys.stderr.write("usage: hub run RUN_DIR [READY_FD]\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
