"""Run a training script and write down when its optimizer stepped: `stamped.py SCRIPT ARGS…`.

Into the directory BENCH_STAMPS: `first-<rank>-<pid>`, the monotonic time of the first step in ns, and, with
BENCH_STEPS=1, at the end `steps-<rank>-<pid>`, those of all steps. BENCH_CORE pins the rank to one core.
"""

from __future__ import annotations

import array
import atexit
import os
import runpy
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

STEMS = f"{os.environ.get('RANK', '0')}-{os.getpid()}"
FOLDER = Path(os.environ["BENCH_STAMPS"])
steps = array.array("q")
wanted = 1 if "BENCH_STEPS" not in os.environ else 10_000_000


def stepped(*_: object) -> None:
    """Called by torch after every optimizer step."""
    if len(steps) >= wanted:
        return
    steps.append(time.monotonic_ns())
    if len(steps) == 1:
        new = FOLDER / f".{STEMS}"
        new.write_text(str(steps[0]))
        new.rename(FOLDER / f"first-{STEMS}")


def keep() -> None:
    """All steps, at the end."""
    (FOLDER / f"steps-{STEMS}").write_bytes(steps.tobytes())


register_optimizer_step_post_hook(stepped)
if wanted > 1:
    atexit.register(keep)
if "BENCH_CORE" in os.environ:
    os.sched_setaffinity(0, {int(os.environ["BENCH_CORE"])})
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
