"""Stands in for the process that asks SkyPilot, in its own time: `skypilot.py FOLDER … START`.

No cloud is asked for a picture. Questions and answers are those of runners/sky, as JSON lines; the texts are what
SkyPilot 0.14 prints for a launch on AWS. It comes as far as the setup, and stays there.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

UP = Path(sys.argv[1]) / "up"
"""There once the cluster is: several such processes tell the same."""
LAUNCH = (
    (0.2, "⚙︎ Launching on AWS us-east-1 (us-east-1a,us-east-1b,us-east-1c).\n"),
    (5.0, "└── Instances are up.\n"),
    (4.0, "✓ Cluster launched: lab.  View logs: sky logs --provision lab\n"),
    (0.2, "⚙︎ Syncing files.\n"),
    (1.0, "  Syncing workdir (to 2 nodes): . -> ~/sky_workdir\n"),
    (2.0, "✓ Synced workdir.\n"),
    (0.2, "✓ Setup detached.\n"),
    (0.2, "⚙︎ Job submitted, ID: 1\n"),
)
TAIL = (
    "(setup pid=2114) Collecting torch==2.9.1\n",
    "(setup pid=2114)   Downloading torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl (899.8 MB)\n",
    "(setup pid=2107, ip=10.0.21.7) Collecting torch==2.9.1\n",
    "(setup pid=2114) Collecting numpy\n",
    "(setup pid=2107, ip=10.0.21.7)   Downloading torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl (899.8 MB)\n",
    "(setup pid=2114)   Downloading numpy-2.3.5-cp312-cp312-manylinux_2_28_x86_64.whl (16.6 MB)\n",
)
Say = Callable[[str], None]


def launch(say: Say) -> dict[str, Any]:
    """As long as it takes."""
    for seconds, line in LAUNCH:
        time.sleep(seconds)
        say(line)
    UP.write_text(str(time.time()))
    return {"job": 1, **about()}


def about() -> dict[str, Any]:
    """The cluster."""
    return {
        "state": "UP", "nodes": 2, "hosts": [], "resources": "p5.48xlarge (H100:8)", "infra": "aws/us-east-1",
        "since": float(UP.read_text()) - 8.0, "autostop_min": 30, "down": False, "ours": True, "user": "me",
        "event": "", "managed": False,
    }  # fmt: skip


def tail(say: Say) -> None:
    """Two nodes install what the user wants."""
    for line in TAIL:
        time.sleep(0.7)
        say(line)
    time.sleep(600)


def answer(verb: str, say: Say) -> Any:
    """What a verb of runners/sky gives."""
    match verb:
        case "version":
            return {"version": "0.14.1", "python": sys.executable, "supported": True}
        case "launch":
            return launch(say)
        case "describe":
            return about() if UP.exists() else None
        case "cost":
            return {"total": 196.64, "seconds": 3600.0}
        case "jobs":
            return []
        case "job_state":
            return "SETTING_UP"
        case "tail":
            return tail(say)
        case "reach":
            time.sleep(600)
    return True


def serve(asked: dict[str, Any]) -> None:
    """One question."""

    def tell(**fields: Any) -> None:
        sys.stdout.write(json.dumps({"id": asked["id"], **fields}) + "\n")
        sys.stdout.flush()

    tell(data=answer(asked["verb"], lambda text: tell(said=text)))


for question in sys.stdin:
    found = json.loads(question)
    if "verb" in found:
        threading.Thread(target=serve, args=(found,), daemon=True).start()
