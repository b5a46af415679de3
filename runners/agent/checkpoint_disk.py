"""Check the free space for this node's checkpoints, if they are on a different disk than the run directory."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from ...presets.finding import Finding
from ..run.formatting import size_text
from ..run.machine import disk_space
from .run_disk import FULL_BYTES, LOW_SHARE
from .runner_process import ServedRun

LOW, FULL = "disk-checkpoints-low", "disk-checkpoints-full"


def place_of(folder: str | Path, cwd: str) -> Path | None:
    """Return the checkpoint folder, or its nearest existing parent, or None for a URL."""
    if "://" in str(folder):
        return None
    path = Path(os.path.abspath(Path(cwd, folder)))
    return next((each for each in (path, *path.parents) if each.is_dir()), None)


def finding_of(place: Path, run_dir: Path, node: int, size: int | None) -> Finding | None:
    """Return a finding on the free space at `place`, or None. The disk of the run directory is skipped. Raises OSError.

    `size`: bytes of the newest checkpoint, or None if unknown.
    """
    if os.stat(place).st_dev == os.stat(run_dir).st_dev:
        return None  # the sampler checks that disk
    free, total = disk_space(place)
    if free is None or not total:
        return None  # no free space information
    name, severity, text = LOW, "warning", f"only {size_text(free)} are free where the checkpoints go"
    if free < FULL_BYTES:
        name, severity, text = FULL, "error", "the disk of the checkpoints is full"
    elif size is not None and free < size:
        text += f", and the newest takes {size_text(size)}"
    elif free >= LOW_SHARE * total:
        return None
    return Finding(
        name,
        severity,
        text,
        remedy=f"free space on the file system of {place}, before the next checkpoint",
        node=node,
        evidence=(f"{size_text(free)} of {size_text(total)} are free there",),
        where=shared_name(place),
    )


def shared_name(place: Path) -> str:
    """Return the name that all nodes use for the file system of a path ("nas:/ckpt"), or "" for a local disk."""
    mounts = {each.mountpoint: each.device for each in psutil.disk_partitions(all=True)}
    path = place.resolve()
    device = next((mounts[str(each)] for each in (path, *path.parents) if str(each) in mounts), "")
    return device if ":" in device or device.startswith("//") else ""


def check(run: ServedRun, folder: Path | None) -> Finding | None:
    """Return the current finding. `folder`: the one in the script's arguments. Never fails, but may take long on NFS."""
    saved, cwd = run.state.checkpoint, run.plan.cwd
    place = None
    if saved is not None:
        place = place_of(Path(saved.path).parent if "://" not in saved.path else saved.path, cwd)
    if place is None and folder is not None:
        place = place_of(folder, cwd)
    if place is None:
        return None
    try:
        return finding_of(place, run.run_dir, run.node, saved.size if saved else None)
    except OSError:
        return None  # the folder or its server is unavailable: unknown is no finding


def report(run: ServedRun, finding: Finding | None) -> None:
    """Raise the finding, and clear those that no longer apply."""
    for name in (LOW, FULL):
        if finding is None or finding.id != name:
            run.findings.clear(name, node=run.node)
    if finding is not None:
        run.findings.raise_once(finding)
