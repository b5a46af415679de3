"""`python -m distui.runners.sky`: the same process as start.py begins, where one interpreter has both."""

from __future__ import annotations

import os
import sys

from . import sdk
from .serve import SkyServer

VERBS = {
    verb.__name__: verb
    for verb in (
        sdk.version, sdk.enabled, sdk.check, sdk.accelerators, sdk.candidates, sdk.read_task, sdk.launch, sdk.follow,
        sdk.describe, sdk.reach, sdk.jobs, sdk.job_state, sdk.tail, sdk.provision_log, sdk.cancel, sdk.autostop,
        sdk.down, sdk.cost, sdk.managed_launch, sdk.managed_follow, sdk.managed_jobs, sdk.managed_cancel,
        sdk.managed_tail,
    )
}  # fmt: skip
"""What may be asked for, by the name of its function."""


def main() -> int:
    """Serve. What SkyPilot prints itself goes to stderr, and it can ask nothing: its stdin is empty."""
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    sys.stdout = sys.stderr
    SkyServer(questions, answers, VERBS, sdk.give_up).serve()
    os._exit(0)  # threads that wait for SkyPilot are not waited for


if __name__ == "__main__":
    sys.exit(main())
