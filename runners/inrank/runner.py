"""The runner: one process that owns the ranks, and outlives the agent that started it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import signal
from typing import Any

from . import child_processes
from .output_filter import private
from .worker_group import SIGNALS, WorkerGroup


def write_identity(run_dir: str, path: str, kind: str) -> None:
    """runner.json: by which a later agent knows that this pid is still this runner."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    identity = {
        "pid": os.getpid(),
        "start_ticks": child_processes.start_ticks(os.getpid()),
        "boot_id": boot_id,
        "host": platform.node(),
        "socket": path,
        "kind": kind,
    }
    temporary = os.path.join(run_dir, "runner.json.tmp")
    with open(temporary, "w", opener=private) as file:
        json.dump(identity, file)
    os.replace(temporary, os.path.join(run_dir, "runner.json"))


def hold(run_dir: str) -> None:
    """Lock runner.lock as long as this process lives: that much is seen from other containers with this home."""
    with contextlib.suppress(OSError):
        path = os.path.join(run_dir, "runner.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and never closed


def with_secrets(plan: dict[str, Any], words: str) -> dict[str, Any]:
    """The plan with the arguments that its file leaves out; this process alone has them, its ranks' environment not."""
    for at, word in (json.loads(words).get("argv", {}) if words else {}).items():
        plan["argv"][int(at)] = word
    return plan


def main(argv: list[str]) -> int:
    """Run the plan in `argv[0]`; `argv[1]`, if given: failures counted before; `argv[2]`: why its first attempt is."""
    run_dir = argv[0]
    with open(os.path.join(run_dir, "plan.json")) as file:
        plan = with_secrets(json.load(file), os.environ.pop("DISTUI_SECRET_WORDS", ""))
    if os.environ.pop("DISTUI_NESTED", None) is not None:
        from .nested_torchrun import run as run_nested

        return run_nested(plan, run_dir, argv[2:])
    hold(run_dir)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    group = WorkerGroup(plan, run_dir, int(argv[1]) if len(argv) > 1 else 0)
    group.cause = argv[2] if len(argv) > 2 else group.cause
    write_identity(run_dir, group.socket, plan["launcher"])
    if plan["launcher"] == "command":
        from .command import run
    else:
        from .elastic import run
    group.control.start()
    return run(group)
