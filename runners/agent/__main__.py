"""`python -m distui.runners.agent run RUN_DIR [READY_FD [MODE]]`: a run's agent; `attach RUN_DIR`: a bridge on stdio."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ...presets.plan import Plan
from .. import daemon, run_directories
from ..daemon import Ready
from ..host_processes import StartMode
from .agent import Agent, bridge


async def serve(entry: run_directories.Entry, plan: Plan, ready: Ready, mode: StartMode) -> None:
    """Serve one node's run until it has ended and nobody looks."""
    if mode is StartMode.READ and run_directories.ungoverned(entry):
        ready(
            "lost"
        )  # its runner went since the viewer looked: there is nothing to serve, and nothing is written
        return
    agent = Agent(entry, plan, mode)
    try:
        await agent.run(ready)
    except asyncio.CancelledError:
        agent.served.journal.flush()  # the ranks go on; the next viewer starts another agent
        raise


def main(argv: list[str]) -> int:
    """Internal entry point; see the module."""
    given = daemon.arguments(argv)
    if given is not None:
        return daemon.run(*given, serve)
    if len(argv) == 2 and argv[0] == "attach":
        return asyncio.run(bridge(Path(argv[1])))
    sys.stderr.write("usage: agent run RUN_DIR [READY_FD [MODE]] | agent attach RUN_DIR\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
