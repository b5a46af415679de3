"""A CUDA build of torch on this rig: where one is, and the environment in which its ranks call this NCCL.

DISTUI_CUDA_TORCH names its interpreter; without it, that is the one of `make test-matrix`: its torch 2.14.1 is from PyPI
and built for CUDA. NVIDIA's wheels of NCCL and of the CUDA runtime may be beside it: they are not loaded.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from .build import Built, MissingError, cache

CUDA = "13."
"""The stand-ins have the names of this one."""
ASK = """
import importlib.util, runpy
found = importlib.util.find_spec("torch")
print(found and runpy.run_path(found.submodule_search_locations[0] + "/version.py")["cuda"])
"""


def interpreter() -> Path:
    """The Python of a CUDA build of torch. Raises MissingError."""
    named = os.environ.get("DISTUI_CUDA_TORCH")
    python = (
        Path(named) if named else cache().with_name("distui-matrix") / "torch-2.14.1" / "bin" / "python"
    )
    how = "set DISTUI_CUDA_TORCH to the Python of one, such as that of `pip install torch==2.14.1`"
    if not python.exists():
        raise MissingError(f"there is no CUDA build of torch at {python}: {how}")
    done = subprocess.run([python, "-c", ASK], stdout=subprocess.PIPE, text=True, check=True)
    if not done.stdout.startswith(CUDA):
        raise MissingError(
            f"{python} has torch for CUDA {done.stdout.strip()}, and the rig has {CUDA}x: {how}"
        )
    return python


def fitting(python: Path, env: dict[str, str]) -> None:
    """Load torch on this NCCL. Raises MissingError where that is too old: torch 2.14 needs ncclCommResume."""
    done = subprocess.run(
        [python, "-c", "import torch"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    missing = re.search(r"undefined symbol: (nccl\w+)", done.stderr)
    if missing is not None:
        raise MissingError(f"the torch of {python} needs {missing[1]}, which this NCCL does not have")


def environment(built: Built, folder: Path, gpus: int) -> dict[str, str]:
    """What ranks on one machine with so many GPUs are started with; `folder`: where their kernels meet."""
    runtime = built.runtime / "libcudart.so.13"
    return {
        "LD_LIBRARY_PATH": str(built.runtime),  # the driver and NVML
        "LD_PRELOAD": f"{runtime} {built.library}",
        "PYTHONPATH": str(built.packages),
        "NCCL_SOCKET_IFNAME": "lo",
        "RIG_GPUS": str(gpus),
        "RIG_MEET": str(folder / "kernels"),
    }
