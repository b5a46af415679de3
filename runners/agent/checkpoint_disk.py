"""Whether there is room where the checkpoints of this node go, where that is another disk than the run directory's."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from ...presets.finding import Finding
from ..formatting import size_text
from .runner_process import ServedRun
from .sampling import DISK_FULL_BYTES, DISK_LOW

LOW, FULL = "disk-checkpoints-low", "disk-checkpoints-full"


def place_of(folder: str | Path, cwd: str) -> Path | None:
    """What is there of a folder for checkpoints: itself, or the nearest above it; None for one that is no path."""
    if "://" in str(folder):
        return None
    path = Path(os.path.abspath(Path(cwd, folder)))
    return next((each for each in (path, *path.parents) if each.is_dir()), None)


def finding_of(place: Path, run_dir: Path, node: int, size: int | None) -> Finding | None:
    """What is wrong with the room at `place`; None for nothing, and on the disk of the run directory. Raises OSError.

    `size`: bytes of the newest checkpoint, None where unknown.
    """
    if os.stat(place).st_dev == os.stat(run_dir).st_dev:
        return None  # the sampler looks at that one
    about = os.statvfs(place)
    free, total = about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize
    if not total:
        return None  # it keeps no account
    full, tight = free < DISK_FULL_BYTES, size is not None and free < size
    if not (full or tight or free < DISK_LOW * total):
        return None
    text = f"only {size_text(free)} are free where the checkpoints go"
    if full:
        text = "the disk of the checkpoints is full"
    elif tight and size is not None:
        text += f", and the newest takes {size_text(size)}"
    return Finding(
        FULL if full else LOW,
        "error" if full else "warning",
        text,
        remedy=f"free space on the file system of {place}, before the next checkpoint",
        node=node,
        evidence=(f"{size_text(free)} of {size_text(total)} are free there",),
        where=shared_name(place),
    )


def shared_name(place: Path) -> str:
    """What all nodes call the file system of a path ("nas:/ckpt"); "" for a disk of this machine."""
    mounts = {each.mountpoint: each.device for each in psutil.disk_partitions(all=True)}
    path = place.resolve()
    device = next((mounts[str(each)] for each in (path, *path.parents) if str(each) in mounts), "")
    return device if ":" in device or device.startswith("//") else ""


def check(run: ServedRun, folder: Path | None) -> Finding | None:
    """The finding of now. `folder`: the one that the script's arguments name. Never fails; may take long on NFS."""
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
        return None  # the folder is gone, or its server: what is unknown is no finding


def report(run: ServedRun, finding: Finding | None) -> None:
    """Raise it, and clear what holds no longer."""
    for name in (LOW, FULL):
        if finding is None or finding.id != name:
            run.findings.clear(name, node=run.node)
    if finding is not None:
        run.findings.raise_once(finding)
