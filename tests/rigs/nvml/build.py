"""Compile the fake driver library: `build(directory)`, or as a script `build.py DIRECTORY`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"
"""What the real library calls itself; nvidia-ml-py asks the loader for this name."""


def compiler() -> str | None:
    """Path of a C compiler, None when there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(directory: str | Path, absent: Iterable[str] = ()) -> Path:
    """Build into `directory`; the library's path. Symbols in `absent` are missing, as in old drivers.

    Raises RuntimeError with the compiler's words when it fails or there is none.
    """
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler (cc, gcc or clang) on PATH: install one to build the fake driver")
    target = Path(directory) / SONAME
    target.parent.mkdir(parents=True, exist_ok=True)
    script = target.with_suffix(".map")
    local = " ".join(f"{name};" for name in absent)
    script.write_text(f"{{ global: nvml*; local: {local} *; }};\n")
    options = [
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        f"-Wl,-soname,{SONAME}",
        f"-Wl,--version-script={script}",
    ]
    command = [found, *options, "-o", str(target), str(SOURCE), "-lm", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"the fake driver does not compile: {done.stderr.strip()}")
    return target


if __name__ == "__main__":
    print(build(sys.argv[1]))
