"""The interface between the hub and a cluster launcher, and the order for a launch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ...presets import skypilot
from .. import file_io
from ..errors import RunError
from ..node import package
from .routes import Route

# -----------------------------------------------------------------------------------------------------------
# Where the hub meets what launches a cluster: what each may ask of the other.
# `cluster_launch.py` has `async def launch(run, set_routes)` and `def cloud_of(run) -> Cloud | None`. The hub
# calls `launch` when the run directory has a launch.json and the journal holds no `StageChanged(Stage.START,
# "done")` of node HUB; so a hub that died in mid-launch calls it again, and `launch` has to find out how far
# it was. `launch` emits its own stages, the last of them being that one; gives the routes as soon as it knows
# them (also before the nodes answer: links try on with back-off); and calls `fail` when nothing comes of it.


LAUNCH_FILE = "launch.json"
"""In the hub's run directory: how to launch, in the words of its launch alone."""
LOG_FILE = "launch.log"
"""What SkyPilot printed meanwhile."""
CANCEL_SECONDS = 60.0
"""How long a launch has to give up."""


class CloudError(RunError):
    """What was asked of the cloud cannot be done; the text is one sentence that says why and what to do."""

    code = 1


SetRoutes = Callable[[list[Route]], None]
"""Write nodes.json and connect by these and no others; routes that changed are connected anew.

Raises RunError, OSError.
"""


class Cloud(Protocol):
    """A cluster that somebody can be asked about, as long as the hub lives."""

    async def watch(self) -> None:
        """Emit ClusterChanged whenever something changes (autostop, price, down), for ever; cancelled at the end."""
        ...

    async def cancel(self) -> str:
        """End the run's job where its nodes cannot be asked to; a sentence. Raises CloudError."""
        ...

    def check_down(self, cluster: str) -> None:
        """Whether `down` may be tried. Raises CloudError where not, also for another name than the cluster's."""
        ...

    async def down(self, cluster: str) -> str:
        """Take the cluster of that name down; a sentence. Raises CloudError, also for another name."""
        ...

    async def set_autostop(self, minutes: int | None) -> str:
        """Minutes without a job until the cluster goes; None: never. A sentence. Raises CloudError."""
        ...


# -----------------------------------------------------------------------------------------------------------
# launch.json: how a run is launched, decided before the hub starts; and how far that came, so that it can go on.


PROGRESS_FILE = "launch.progress.json"
CARGO = "cargo"
"""Folder in the run directory: what SkyPilot copies to ~/.distui of every node, until the job is submitted."""


class SkyRequest(Struct, frozen=True, omit_defaults=True):
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


class LaunchProgress(Struct, frozen=True, omit_defaults=True):
    """How far a launch came."""

    request: str = ""
    """Id of the launch at SkyPilot's API server."""
    job: int | None = None
    """SkyPilot's number of the job, once it was submitted."""


def read(run_dir: Path) -> SkyRequest | None:
    """The order of a run; None where it has none that SkyPilot fulfils."""
    order = file_io.document_or_none(run_dir / LAUNCH_FILE, SkyRequest)
    return order if order is not None and order.kind == "skypilot" else None


def write(run_dir: Path, order: SkyRequest) -> None:
    """Raises OSError."""
    file_io.write_atomically(
        run_dir / LAUNCH_FILE, msgspec.json.format(msgspec.json.encode(order), indent=1)
    )


def progress(run_dir: Path) -> LaunchProgress:
    """How far the launch came; nothing yet where nothing is written."""
    return file_io.document_or_none(run_dir / PROGRESS_FILE, LaunchProgress) or LaunchProgress()


def keep(run_dir: Path, now: LaunchProgress) -> None:
    """Raises OSError."""
    file_io.write_atomically(run_dir / PROGRESS_FILE, msgspec.json.encode(now))


def task(order: SkyRequest) -> dict[str, Any]:
    """The task with its secrets, from this process's environment. Raises RunError when one is not there."""
    made, missing = skypilot.revealed(order.task, os.environ)
    if missing:
        raise RunError(
            f"the value of {', '.join(sorted(missing))} is not known here any more: export it and launch anew"
        )
    return made


def load_cargo(order: SkyRequest, run_dir: Path) -> None:
    """Put the bundle beside what the launch wrote there. Raises RunError."""
    if order.bundle:
        package.lay(order.bundle.rpartition("/")[2], run_dir / CARGO)
        (run_dir / CARGO).chmod(0o700)  # rsync gives ~/.distui the same mode


def unload_cargo(run_dir: Path) -> None:
    """The nodes have it, once there is a job."""
    if progress(run_dir).job is not None:
        shutil.rmtree(run_dir / CARGO, ignore_errors=True)
