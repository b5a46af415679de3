"""What agent and hub have in common as processes: one a run directory, told ready through a pipe, ended by SIGTERM."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ..presets.errors import PlanError
from ..presets.plan import Plan
from ..presets.render import plan_from_json
from . import registry
from .errors import RunError
from .wire.sockets import ensure_socket_dir


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
                pass  # the starter is gone: the daemon is not
            self._fd = None


Serve = Callable[[registry.Entry, Plan, Ready], Awaitable[None]]
"""Serves a run until there is nothing left to do; cancelled by SIGTERM."""


def load(entry: registry.Entry) -> Plan:
    """The plan of a run. Raises RunError."""
    try:
        return plan_from_json(json.loads((entry.path / registry.PLAN_FILE).read_text()))
    except (OSError, ValueError, PlanError) as error:
        raise RunError(f"{entry.path / registry.PLAN_FILE} cannot be read: {error}") from None


def run(run_dir: Path, ready: Ready, serve: Serve) -> int:
    """Serve one run; 1 with a sentence when that cannot be."""
    try:
        entry = registry.at(run_dir)
        if entry is None:
            raise RunError(f"{run_dir} is no run directory")
        lock = os.open(run_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ready("taken")  # somebody else's daemon is coming up, or goes: see local.start_agent
            return 0
        ensure_socket_dir()
        asyncio.run(_guarded(serve, entry, load(entry), ready))
    except (RunError, OSError) as error:
        ready(f"error: {error}")
        sys.stderr.write(f"distui: {error}\n")
        return 1
    return 0


async def _guarded(serve: Serve, entry: registry.Entry, plan: Plan, ready: Ready) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        await serve(entry, plan, ready)
    except asyncio.CancelledError:
        return  # the ranks go on; the next viewer starts another one
