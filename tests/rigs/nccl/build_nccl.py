"""Compile the fake NCCL: `build_nccl(directory)`, or as a script `build_nccl.py DIRECTORY`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nccl.c")
SONAME = "libnccl.so.2"


def compiler() -> str | None:
    """Path of a C compiler, None when there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_nccl(directory: str | Path, old: bool = False) -> Path:
    """Build into `directory`; the library's path. `old`: without ncclResetDebugInit, as before NCCL 2.24.

    Raises RuntimeError with the compiler's words when it fails or there is none.
    """
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler (cc, gcc or clang) on PATH: install one to build the fake NCCL")
    target = Path(directory) / SONAME
    target.parent.mkdir(parents=True, exist_ok=True)
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-fvisibility=hidden", "-D_GNU_SOURCE"]
    options += ["-DOLD_NCCL"] * old
    command = [found, *options, f"-Wl,-soname,{SONAME}", "-o", str(target), str(SOURCE), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"the fake NCCL does not compile: {done.stderr.strip()}")
    return target


if __name__ == "__main__":
    print(build_nccl(sys.argv[1]))
