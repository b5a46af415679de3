"""Start couriers, which report on runs that no process serves (runners/node/courier.py)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..run import file_io
from ..run.settings_file import Lookup
from . import channels
from .sending import DESKTOP, NETWORK, given
from .unreported import unattended


def start(run_dirs: Sequence[Path], lookup: Lookup) -> None:
    """Start a courier for these runs. `lookup`: variables of the launch."""
    env = {**os.environ, **given((*NETWORK, *DESKTOP, *channels.secret_names()), lookup)}
    with contextlib.suppress(OSError), file_io.appending(run_dirs[0] / "agent.log") as log:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "distui.runners.node.courier", *map(str, run_dirs)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=env,
        )


async def start_for_others(lookup: Lookup) -> None:
    """Start a courier for all runs of this user that need one."""
    if left := await asyncio.to_thread(unattended):
        start(left, lookup)
