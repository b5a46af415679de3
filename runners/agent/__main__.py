"""`python -m distui.runners.agent run RUN_DIR [READY_FD]`: the agent of one run; `attach RUN_DIR`: a bridge on stdio."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ...presets.plan import Plan
from .. import daemon, registry
from ..daemon import Ready
from .agent import Agent
from .attach import bridge


async def serve(entry: registry.Entry, plan: Plan, ready: Ready) -> None:
    """Serve one node's run until it has ended and nobody looks."""
    agent = Agent(entry, plan)
    try:
        await agent.run(ready)
    except asyncio.CancelledError:
        agent.journal.flush()  # the ranks go on; the next viewer starts another agent
        raise


def run(run_dir: Path, ready: Ready) -> int:
    """Serve one run; 1 with a sentence when that cannot be."""
    return daemon.run(run_dir, ready, serve)


def main(argv: list[str]) -> int:
    """Internal entry point; see the module."""
    if len(argv) >= 2 and argv[0] == "run":
        return run(Path(argv[1]), Ready(int(argv[2]) if len(argv) > 2 else None))
    if len(argv) == 2 and argv[0] == "attach":
        return asyncio.run(bridge(Path(argv[1])))
    sys.stderr.write("usage: agent run RUN_DIR [READY_FD] | agent attach RUN_DIR\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
