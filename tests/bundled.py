"""What ssh executes of a bundle on a node, without the rest of the bundle."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from distui import runners

RUNNERS = Path(runners.__path__[0])


@functools.cache
def bridge() -> Path:
    """The bridge with what it finds beside itself, in a folder that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="dt-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copy(RUNNERS / "inrank/own_folders.py", folder)
    return Path(shutil.copy(RUNNERS / "run/wire/bridge.py", folder))
