"""The runner: one process that owns the ranks, and outlives the agent that started it."""

from __future__ import annotations

import json
import os
import platform
import signal

from . import spawned
from .group import SIGNALS, Group


def write_identity(run_dir: str, path: str, kind: str) -> None:
    """runner.json: by which a later agent knows that this pid is still this runner."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    identity = {
        "pid": os.getpid(),
        "start_ticks": spawned.start_ticks(os.getpid()),
        "boot_id": boot_id,
        "host": platform.node(),
        "socket": path,
        "kind": kind,
    }
    temporary = os.path.join(run_dir, "runner.json.tmp")
    with open(temporary, "w") as file:
        json.dump(identity, file)
    os.replace(temporary, os.path.join(run_dir, "runner.json"))


def main(argv: list[str]) -> int:
    """Run the plan in `argv[0]`; `argv[1]`, if given, is the number of failures counted before."""
    run_dir = argv[0]
    with open(os.path.join(run_dir, "plan.json")) as file:
        plan = json.load(file)
    if os.environ.pop("DISTUI_NESTED", None) is not None:
        from .nested import run as run_nested

        return run_nested(plan, run_dir, argv[2:])
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    group = Group(plan, run_dir, int(argv[1]) if len(argv) > 1 else 0)
    write_identity(run_dir, group.socket, plan["launcher"])
    if plan["launcher"] == "command":
        from .command import run
    else:
        from .elastic import run
    group.control.start()
    return run(group)
