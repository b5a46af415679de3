"""What agent and hub have in common as processes: one a run directory, told ready through a pipe, ended by SIGTERM."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ..presets.finding import PlanError
from ..presets.plan import Plan
from ..presets.render import plan_from_json
from . import file_io, run_directories
from .errors import RunError
from .host_processes import StartMode
from .wire.client import ensure_socket_dir


class Ready:
    """Tells the starter, through the pipe it left open, that the socket answers, or why it never will."""

    def __init__(self, descriptor: int | None) -> None:
        self._fd = descriptor

    def __call__(self, text: str = "ready") -> None:
        if self._fd is not None:
            try:
                os.write(self._fd, text.encode(errors="backslashreplace") + b"\n")
                os.close(self._fd)
            except OSError:
                pass  # the starter is gone: the daemon is not
            self._fd = None


Serve = Callable[[run_directories.Entry, Plan, Ready, StartMode], Awaitable[None]]
"""Serves a run until there is nothing left to do; cancelled by SIGTERM."""


def arguments(argv: list[str]) -> tuple[Path, Ready, StartMode] | None:
    """What `run RUN_DIR [READY_FD [MODE]]` says; None for anything else."""
    if not 2 <= len(argv) <= 4 or argv[0] != "run":
        return None
    return (
        Path(argv[1]),
        Ready(int(argv[2]) if len(argv) > 2 else None),
        StartMode(argv[3] if len(argv) > 3 else StartMode.READ),
    )


def load(entry: run_directories.Entry) -> Plan:
    """The plan of a run. Raises RunError, also for that of another run, whose processes it would take for its own."""
    path = entry.path / run_directories.PLAN_FILE
    try:
        plan = plan_from_json(file_io.document(path, dict[str, Any]))
    except (file_io.FileError, PlanError) as error:
        raise RunError(str(error)) from None
    for run in (plan.run, plan.env.get("DISTUI_RUN_ID", entry.record.run)):
        if run != entry.record.run:
            raise RunError(f"{path} is that of {run}: `distui relaunch {run}` launches that anew")
    return plan


def run(run_dir: Path, ready: Ready, mode: StartMode, serve: Serve) -> int:
    """Serve one run; 1 with a sentence when that cannot be."""
    file_io.strict()
    try:
        entry = run_directories.served(run_dir)
        if entry is None:
            raise RunError(f"{run_dir} is no run directory")
        lock = os.open(run_dir / run_directories.AGENT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ready("taken")  # somebody else's daemon is coming up, or goes: see local.start_agent
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
        return  # the ranks go on; the next viewer starts another one
