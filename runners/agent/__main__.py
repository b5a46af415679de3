"""`python -m distui.runners.agent run RUN_DIR [READY_FD [MODE]]`: the agent of a run on one node.

The runner starts the ranks and owns them. The agent follows the runner: it measures, judges, executes commands, and
serves viewers. If the agent exits, runner and ranks continue, and the next viewer starts another agent.

The agent reports on the pipe READY_FD that its socket answers, or why it will not. MODE is a StartMode: `start` may
start a runner; `read`, the default, starts none: it adopts a living runner and serves the files.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from ..run import daemon, run_directories
from ..run.host_processes import StartMode
from .runner_process import Runner, started_early

if TYPE_CHECKING:
    from ...presets.plan import Plan
    from ..run.daemon import Ready


async def serve(entry: run_directories.Entry, plan: Plan, ready: Ready, mode: StartMode) -> None:
    """Serve one node's run until it has ended and no viewer is connected."""
    if mode is StartMode.READ and run_directories.ungoverned(entry):
        ready("lost")  # the runner has exited since the agent was requested: nothing to serve or to write
        return
    spawn_runner = started_early(entry, plan) if mode is StartMode.START else Runner.start
    from .node_agent import Agent  # slow to import: the runner starts first

    agent = Agent(entry, plan, mode, spawn_runner=spawn_runner)
    agent.served.parts.watch_loop(asyncio.get_running_loop())
    try:
        await agent.run(ready)
    except asyncio.CancelledError:
        agent.served.journal.flush()  # the ranks continue, and the next viewer starts another agent
        raise


def main(argv: list[str]) -> int:
    """Run the internal entry point: see the module."""
    return daemon.main(argv, serve, "agent run RUN_DIR [READY_FD [MODE]]")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
