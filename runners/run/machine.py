"""This machine: its GPUs, cores and free ports, and the Python that trains on it."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from .errors import NoTorchError, RunError
from .packages import install_command, same_environment
from .proc import SYSTEM


def gpus_here() -> int:
    """Return the number of GPUs that the NVIDIA kernel driver lists; 0 without one."""
    listed = len(glob.glob("/proc/driver/nvidia/gpus/*"))
    return listed or len(
        [path for path in glob.glob("/dev/nvidia*") if re.fullmatch(r"/dev/nvidia\d+", path)]
    )


def cores_here() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def disk_space(path: str | os.PathLike[str]) -> tuple[int | None, int | None]:
    """Return the free and total bytes of a path's file system; None if they are unknown."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None, None
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def disk_reserve(total: int) -> int:
    """Return the bytes to keep free on a disk of `total` bytes: 5 %, and at least 2 GiB."""
    return max(total // 20, 2 << 30)


def check_system() -> None:
    """Raise RunError on a system other than Linux, because runs need it."""
    if SYSTEM != "linux":
        raise RunError(
            f"runs need Linux, and this is {platform.system()}: launch on a Linux host by `ssh HOST distui launch …`, "
            "and `distui attach --host HOST` opens the run here"
        )


def free_port() -> int:
    """Return a currently free TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def default_python() -> str:
    """Return the training interpreter: the active environment's, distui's if it has torch, else PATH's."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        candidate = Path(os.environ.get(variable, "/nonexistent")) / "bin" / "python"
        if candidate.exists():
            return str(candidate)
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    return shutil.which("python3") or sys.executable


def check_python(python: str) -> str:
    """Absolute path of an interpreter with a usable torch. Raises RunError."""
    path = shutil.which(python)
    if path is None:
        raise RunError(
            f"{python} is not an executable Python: give that of the training environment with --python"
        )
    path = os.path.abspath(path)
    version = torch_version(path)
    if version is None:
        raise NoTorchError(path, f"`{install_command(path, 'torch')}`")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < (2, 7):
        raise RunError(f"torch {version} in {path} is too old: distui needs 2.7 or newer there")
    return path


def torch_version(python: str) -> str | None:
    """Version of an interpreter's torch, without importing it. Raises RunError."""
    if same_environment(python, sys.executable):
        from importlib import metadata  # slow to import, and most verbs do not ask

        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version("torch")
    # Without the working directory, because other users may have modules there; -P needs Python 3.11.
    path = "import sys; sys.path[:] = [part for part in sys.path if part]"
    code = f"{path}; import importlib.metadata as m; print('torch', m.version('torch'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(
            f"{python} cannot be executed ({error}): give an interpreter with --python"
        ) from None
    words = done.stdout.split()
    if done.returncode and "PackageNotFoundError" not in done.stderr:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"{python} is not a working Python ({last}): give another with --python")
    return words[1] if len(words) == 2 and words[0] == "torch" else None
