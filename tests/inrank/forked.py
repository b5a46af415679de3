"""Runs scripts one after the other, each in ranks that are forks of this process: torch is imported once.

forked.py CASES     CASES is a file of JSON: [[SCRIPT, environment], …]; beside each script, `output` is what its
                    ranks print, and `codes` their exit codes
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from distui.runners.inrank import gloo_workers

gloo_workers.arm()

import torch.distributed  # noqa: E402
import torch.nn.parallel  # noqa: E402, F401 - for the ranks

from distui.runners.inrank.adopt import call  # noqa: E402, F401 - for the ranks

GRACE_S = 0.5
"""Seconds after which the other ranks of one that failed are ended, as torchrun does it."""
LIMIT_S = 60.0


def forked(script: Path, env: dict[str, str]) -> bool:
    """Run a script in its ranks to its end. Returns True in each rank, whose caller runs the script there."""
    ranks: list[int] = []
    for rank in range(int(env["WORLD_SIZE"])):
        pid = os.fork()
        if not pid:
            os.environ.clear()
            os.environ.update({**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            os.chdir(script.parent)
            output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            return True
        ranks.append(pid)
    (script.parent / "codes").write_text(json.dumps(codes(ranks)))
    return False


def codes(ranks: list[int]) -> list[int]:
    """The exit codes of these processes, once all have ended."""
    ended: dict[int, int] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(ended) < len(ranks):
        for pid in ranks:
            if pid not in ended and (status := os.waitpid(pid, os.WNOHANG))[0]:
                ended[pid] = os.waitstatus_to_exitcode(status[1])
                deadline = min(deadline, time.monotonic() + GRACE_S) if ended[pid] else deadline
        if time.monotonic() > deadline:
            for pid in ranks:
                if pid not in ended:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [ended[pid] for pid in ranks]


if __name__ == "__main__":
    for name, env in json.loads(Path(sys.argv[1]).read_text()):
        if forked(Path(name), env):
            sys.argv = [name]
            left = runpy.run_path(name, run_name="__main__")
            break
