"""`python -m distui.runners.node job RUN | start RUN NODE | probe`: what `node.sh` executes."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from ..local_agent import gpus_here
from . import job, start


def probe() -> str:
    """A node as one line of JSON: Python, cores, GPUs, home, host name and machine, and the version of distui."""
    return json.dumps(
        {
            "python": sys.executable,
            "cores": len(os.sched_getaffinity(0)),
            "gpus": gpus_here(),
            "home": str(Path.home()),
            "hostname": platform.node(),
            "machine": platform.machine(),
            "distui": version("distui"),
        }
    )


def main(argv: list[str]) -> int:
    """Exit code of the verb; 2 with a sentence for wrong words."""
    if argv == ["probe"]:
        sys.stdout.write(probe() + "\n")
        return 0
    if argv[:1] == ["job"] and len(argv) in (2, 3):
        return job.main(argv[1:])
    if argv[:1] == ["start"] and len(argv) == 3:
        return start.main(argv[1:])
    sys.stderr.write("usage: node.sh job RUN | start RUN NODE | attach RUN8 NODE | probe | distui …\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
