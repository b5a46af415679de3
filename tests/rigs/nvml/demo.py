"""`make demo`: the demo, with simulated GPUs beside the real ranks where this machine has no NVIDIA driver.

distui itself never loads the simulated driver unless DISTUI_NVML_LIBRARY tells it to; here it does.
"""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path

from build import build, compiler
from scenario import busy_gpu, idle, write

GPUS = 8
RANKS = 2
NAME = "simulated GPU"


def simulated() -> dict[str, str]:
    """Environment under which the sampler reads simulated GPUs; {} where real ones are, or no compiler."""
    if glob.glob("/proc/driver/nvidia/gpus/*") or compiler() is None:
        return {}
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "distui" / "simulated-gpus"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    scenario = folder / "scenario.txt"
    write(scenario, idle(GPUS, NAME) + "".join(busy_gpu(gpu) for gpu in range(RANKS)))
    return {"DISTUI_NVML_LIBRARY": str(build(folder)), "DISTUI_FAKE_NVML_SCENARIO": str(scenario)}


if __name__ == "__main__":
    distui = str(Path(sys.executable).with_name("distui"))
    # --python: not that of another environment, which may be active in this shell.
    words = [distui, "demo", "--python", sys.executable, *sys.argv[1:]]
    os.execve(distui, words, {**os.environ, **simulated()})
