"""What the hook's callback costs, called as torch calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys, time
sys.path.insert(0, {inrank!r})
import importlib.util
spec = importlib.util.spec_from_file_location(
    "distui_inrank", {inrank!r} + "/__init__.py", submodule_search_locations=[{inrank!r}])
package = importlib.util.module_from_spec(spec)
sys.modules["distui_inrank"] = package
spec.loader.exec_module(package)
from distui_inrank.optimizer_steps import Steps
class Optimizer: pass
steps, optimizer, rounds = Steps(), Optimizer(), 200_000
call = steps._stepped
def empty(optimizer, args, kwargs): pass
def run(function):
    began = time.perf_counter_ns()
    for _ in range(rounds):
        function(optimizer, (), {{}})
    return (time.perf_counter_ns() - began) / rounds
run(call)
print(min(run(call) for _ in range(3)) - min(run(empty) for _ in range(3)))
"""


def hook_ns() -> float:
    """Nanoseconds a call, less an empty call."""
    inrank = Path(__file__).parents[2] / "runners" / "inrank"
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(inrank=str(inrank))], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    return float(done.stdout)
