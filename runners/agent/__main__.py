"""`python -m distui.runners.agent run RUN_DIR [READY_FD]`: the agent of one run; `attach RUN_DIR`: a bridge on stdio."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

from ...presets.model import PlanError
from ...presets.plan import Plan
from ...presets.render import plan_from_json
from .. import registry
from ..errors import RunError
from ..wire.sockets import ensure_socket_dir
from .agent import Agent
from .attach import bridge


class Ready:
    """Tells the starter, through the pipe it left open, that the socket answers, or why it never will."""

    def __init__(self, descriptor: int | None) -> None:
        self._fd = descriptor

    def __call__(self, text: str = "ready") -> None:
        if self._fd is not None:
            try:
                os.write(self._fd, text.encode() + b"\n")
                os.close(self._fd)
            except OSError:
                pass  # the starter is gone: the agent is not
            self._fd = None


def load(entry: registry.Entry) -> Plan:
    """The plan of a run. Raises RunError."""
    try:
        return plan_from_json(json.loads((entry.path / registry.PLAN_FILE).read_text()))
    except (OSError, ValueError, PlanError) as error:
        raise RunError(f"{entry.path / registry.PLAN_FILE} cannot be read: {error}") from None


def run(run_dir: Path, ready: Ready) -> int:
    """Serve one run; 1 with a sentence when that cannot be."""
    try:
        entry = registry.at(run_dir)
        if entry is None:
            raise RunError(f"{run_dir} is no run directory")
        lock = os.open(run_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ready("taken")  # somebody else's agent is coming up, or goes: see local.start_agent
            return 0
        ensure_socket_dir()
        plan = load(entry)
        asyncio.run(_serve(entry, plan, ready))
    except (RunError, OSError) as error:
        ready(f"error: {error}")
        sys.stderr.write(f"distui: {error}\n")
        return 1
    return 0


async def _serve(entry: registry.Entry, plan: Plan, ready: Ready) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    agent = Agent(entry, plan)
    try:
        await agent.run(ready)
    except asyncio.CancelledError:
        agent.journal.flush()  # the ranks go on; the next viewer starts another agent


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
