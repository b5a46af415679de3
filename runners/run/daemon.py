"""The process of an agent or a hub: its arguments, its lock, and the report to its starter."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...presets.finding import PlanError
from . import file_io, run_directories
from .errors import RunError
from .host_processes import StartMode
from .wire.client import ensure_socket_dir

if TYPE_CHECKING:
    from ...presets.plan import Plan


class Ready:
    """Reports to the starter, through the inherited pipe, that the socket answers, or why it will not."""

    def __init__(self, descriptor: int | None) -> None:
        self._fd = descriptor

    def __call__(self, text: str = "ready") -> None:
        """Report "ready", "lost" (no runner to serve), "taken" (another daemon serves the run), or "error: REASON"."""
        if self._fd is not None:
            try:
                os.write(self._fd, text.encode(errors="backslashreplace") + b"\n")
                os.close(self._fd)
            except OSError:
                pass  # the starter has ended, but the daemon continues
            self._fd = None


Serve = Callable[[run_directories.Entry, "Plan", Ready, StartMode], Awaitable[None]]
"""Serve a run until nothing is left to do; SIGTERM cancels it."""


def main(argv: list[str], serve: Serve, usage: str) -> int:
    """Serve a run by the arguments `run RUN_DIR [READY_FD [MODE]]`; other arguments print the usage and return 2."""
    if not 2 <= len(argv) <= 4 or argv[0] != "run":
        sys.stderr.write(f"usage: {usage}\n")
        return 2
    ready = Ready(int(argv[2]) if len(argv) > 2 else None)
    return run(Path(argv[1]), ready, StartMode(argv[3] if len(argv) > 3 else StartMode.READ), serve)


def load(entry: run_directories.Entry) -> Plan:
    """Load the plan of a run. Raises RunError, also for another run's plan: its processes would count as this run's."""
    # Slow to import, and modules that only read runs import this module too.
    from ...presets.plan_json import plan_from_json

    path = entry.path / run_directories.PLAN_FILE
    try:
        plan = plan_from_json(file_io.document(path, dict[str, Any]))
    except (file_io.FileError, PlanError) as error:
        raise RunError(str(error)) from None
    for run in (plan.run, plan.env.get("DISTUI_RUN_ID", entry.record.run)):
        if run != entry.record.run:
            raise RunError(f"{path} belongs to {run}: `distui rerun {run}` repeats it")
    return plan


def run(run_dir: Path, ready: Ready, mode: StartMode, serve: Serve) -> int:
    """Serve one run; print a sentence and return 1 on failure."""
    file_io.strict()
    try:
        entry = run_directories.served(run_dir)
        if entry is None:
            raise RunError(f"{run_dir} is not a run directory")
        lock = os.open(run_dir / run_directories.AGENT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ready("taken")  # another daemon starts or exits: see local_agent.start_agent
            return 0
        ensure_socket_dir()
        asyncio.run(_guarded(serve, entry, load(entry), ready, mode))
    except (RunError, OSError) as error:
        ready(f"error: {error}")
        sys.stderr.write(f"distui: {error}\n")
        return 1
    return 0


async def _guarded(
    serve: Serve, entry: run_directories.Entry, plan: Plan, ready: Ready, mode: StartMode
) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        await serve(entry, plan, ready, mode)
    except asyncio.CancelledError:
        return  # the ranks continue; the next viewer starts a new daemon
