"""What a node is: one line of JSON for whoever is about to launch there."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from ..local_agent import gpus_here


def probe() -> str:
    """Python of the agent, cores and GPUs, home, host name and machine, and the version of distui."""
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
