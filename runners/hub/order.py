"""launch.json: how a run is launched, decided before the hub starts; and how far that came, so that it can go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...presets.launchers import skypilot
from .. import identity
from ..errors import RunError
from ..node import bundle
from .seam import LAUNCH_FILE

PROGRESS_FILE = "launch.progress.json"
CARGO = "cargo"
"""Folder in the run directory: what SkyPilot copies to ~/.distui of every node, until the job is submitted."""


class Order(Struct, frozen=True, omit_defaults=True):
    """What is asked of SkyPilot. Secrets are hidden in `task`; their values are in the hub's environment."""

    kind: str
    """"skypilot": this file's reader; other kinds belong to others."""
    cluster: str = ""
    """Its name; of a managed job the job's."""
    task: dict[str, Any] = {}
    bundle: str = ""
    """On the nodes: "~/.distui/bundle-…"."""
    managed: bool = False
    retry_until_up: bool = False
    fast: bool = False
    """A cluster that is up is used as it is: SkyPilot does neither check it nor run `setup:` again."""
    python: str = ""
    """The interpreter that has SkyPilot: a hub that is started from another shell still finds it."""
    reuse: bool = False
    """The user named the cluster: one of that name that is there is taken."""


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a launch came."""

    request: str = ""
    """Id of the launch at SkyPilot's API server."""
    job: int | None = None
    """SkyPilot's number of the job, once it was submitted."""


def read(run_dir: Path) -> Order | None:
    """The order of a run; None where it has none that SkyPilot fulfils."""
    try:
        found = msgspec.json.decode((run_dir / LAUNCH_FILE).read_bytes(), type=Order)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.kind == "skypilot" else None


def write(run_dir: Path, order: Order) -> None:
    """Raises OSError."""
    identity.write_atomically(
        run_dir / LAUNCH_FILE, msgspec.json.format(msgspec.json.encode(order), indent=1)
    )


def progress(run_dir: Path) -> Progress:
    """How far the launch came; nothing yet where nothing is written."""
    try:
        return msgspec.json.decode((run_dir / PROGRESS_FILE).read_bytes(), type=Progress)
    except (OSError, msgspec.MsgspecError):
        return Progress()


def keep(run_dir: Path, now: Progress) -> None:
    """Raises OSError."""
    identity.write_atomically(run_dir / PROGRESS_FILE, msgspec.json.encode(now))


def task(order: Order) -> dict[str, Any]:
    """The task with its secrets, from this process's environment. Raises RunError when one is not there."""
    made, missing = skypilot.revealed(order.task, os.environ)
    if missing:
        raise RunError(
            f"the value of {', '.join(sorted(missing))} is not known here any more: export it and launch anew"
        )
    return made


def load_cargo(order: Order, run_dir: Path) -> None:
    """Put the bundle beside what the launch wrote there. Raises RunError."""
    if order.bundle:
        bundle.lay(order.bundle.rpartition("/")[2], run_dir / CARGO)
        (run_dir / CARGO).chmod(0o700)  # rsync gives ~/.distui the same mode


def unload_cargo(run_dir: Path) -> None:
    """The nodes have it, once there is a job."""
    if progress(run_dir).job is not None:
        shutil.rmtree(run_dir / CARGO, ignore_errors=True)
