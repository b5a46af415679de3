"""Request to SkyPilot for a launch (launch.json), and its progress on disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...presets import skypilot
from ..node import package
from ..run import file_io
from ..run.errors import RunError
from .merged_run import LAUNCH_FILE

PROGRESS_FILE = "launch.progress.json"
CARGO = "cargo"
"""Folder in the run directory that SkyPilot copies to ~/.distui of every node; removed after the submission."""


class SkyRequest(Struct, frozen=True, omit_defaults=True):
    """Request to SkyPilot. Secrets in `task` are placeholders; their values are in the hub's environment."""

    kind: str
    """Always "skypilot" for this module; other kinds belong to other modules."""
    cluster: str = ""
    """Name of the cluster, or of the managed job."""
    task: dict[str, Any] = {}
    bundle: str = ""
    """Path on the nodes: "~/.distui/bundle-…"."""
    managed: bool = False
    retry_until_up: bool = False
    fast: bool = False
    """Use a running cluster as it is: SkyPilot neither checks it nor runs `setup:` again."""
    python: str = ""
    """SkyPilot's interpreter, so that a hub from another shell finds it, too."""
    reuse: bool = False
    """The user named the cluster: use an existing one of that name."""


class LaunchProgress(Struct, frozen=True, omit_defaults=True):
    """Progress of a launch."""

    request: str = ""
    """Id of the launch at SkyPilot's API server."""
    job: int | None = None
    """SkyPilot's job number; None before the submission."""


def read(run_dir: Path) -> SkyRequest | None:
    """Read the request of a run; None without one for SkyPilot."""
    order = file_io.document_or_none(run_dir / LAUNCH_FILE, SkyRequest)
    return order if order is not None and order.kind == "skypilot" else None


def write(run_dir: Path, order: SkyRequest) -> None:
    """Write the request. Raises OSError."""
    file_io.write_atomically(
        run_dir / LAUNCH_FILE, msgspec.json.format(msgspec.json.encode(order), indent=1)
    )


def progress(run_dir: Path) -> LaunchProgress:
    """Read the progress of the launch; empty if no file exists."""
    return file_io.document_or_none(run_dir / PROGRESS_FILE, LaunchProgress) or LaunchProgress()


def keep(run_dir: Path, now: LaunchProgress) -> None:
    """Write the progress. Raises OSError."""
    file_io.write_atomically(run_dir / PROGRESS_FILE, msgspec.json.encode(now))


def task(order: SkyRequest) -> dict[str, Any]:
    """Return the task with its secrets from this process's environment; raise RunError if one is missing."""
    made, missing = skypilot.revealed(order.task, os.environ)
    if missing:
        raise RunError(
            f"the value of {', '.join(sorted(missing))} is no longer known here: export it and launch again"
        )
    return made


def load_cargo(order: SkyRequest, run_dir: Path) -> None:
    """Add the bundle to the launch's files. Raises RunError."""
    if order.bundle:
        package.lay(order.bundle.rpartition("/")[2], run_dir / CARGO)
        (run_dir / CARGO).chmod(0o700)  # rsync gives ~/.distui this mode, too


def unload_cargo(run_dir: Path) -> None:
    """Remove the cargo after the submission, because the nodes then have it."""
    if progress(run_dir).job is not None:
        shutil.rmtree(run_dir / CARGO, ignore_errors=True)
