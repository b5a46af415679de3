"""`python -m distui.runners.sky`: the same process as start.py begins, where one interpreter has both."""

from __future__ import annotations

import os
import sys

from . import catalog, clusters
from .serve import SkyServer

VERBS = {
    verb.__name__: verb
    for verb in (
        catalog.version, catalog.enabled, catalog.check, catalog.accelerators, catalog.candidates, catalog.read_task,
        clusters.launch, clusters.follow, clusters.describe, clusters.reach, clusters.jobs, clusters.job_state,
        clusters.tail, clusters.provision_log, clusters.cancel, clusters.autostop, clusters.down, clusters.cost,
        clusters.managed_launch, clusters.managed_follow, clusters.managed_jobs, clusters.managed_cancel,
        clusters.managed_tail,
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
    SkyServer(questions, answers, VERBS, clusters.give_up).serve()
    os._exit(0)  # threads that wait for SkyPilot are not waited for


if __name__ == "__main__":
    sys.exit(main())
