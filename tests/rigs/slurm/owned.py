"""Rigs that live as long as a process: whatever ends it, no process of theirs is left, nor after that a file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from .cluster import Cluster
from .holders import Holder, carried
from .prepare import tell
from .settings import CHECKOUT, PREFIX, Places, Shape


@contextlib.contextmanager
def owned(shape: Shape | None = None) -> Iterator[Cluster]:
    """A rig in a folder of its own, which is up within the block. Raises Trouble."""
    sweep()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        cluster = Cluster(Places(folder=Path(folder, "rig")))
        with guarded(cluster):
            cluster.up(shape)
            yield cluster


@contextlib.contextmanager
def guarded(cluster: Cluster) -> Iterator[None]:
    """Whatever is up in the rig's folder goes down after the block, also where this process is killed within it."""
    own(cluster.places)
    command = [sys.executable, "-m", "tests.rigs.slurm", "guard"]
    env = {**os.environ, "DISTUI_RIG_DIR": str(cluster.places.folder)}
    # Its stdin ends with this process; a session of its own spares it what a terminal or a time limit sends.
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as guard:
        try:
            yield
        finally:
            cluster.down()
            assert guard.stdin is not None
            guard.stdin.close()


def own(places: Places) -> None:
    """Note down that a rig is this process's."""
    places.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    me = Holder(os.getpid(), psutil.Process().create_time())
    (places.folder / "lock").touch()
    places.owner.write_text(json.dumps(me.record()))


def guard(places: Places) -> None:
    """Wait for the end of the process that started this one, and take down what it left."""
    sys.stdin.read()
    take_down(places)


def take_down(places: Places) -> None:
    """A rig whose owner is gone, with the folder that was made for it."""
    Cluster(places).down()
    if places.folder.parent.name.startswith(PREFIX):
        shutil.rmtree(places.folder.parent, ignore_errors=True)


def sweep() -> None:
    """Take down every rig whose owner was killed together with its guard."""
    folders = {Path(folder) for folder in carried().values()}
    folders |= set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/rig"))
    for places in (Places(folder=folder) for folder in sorted(folders)):
        owner = owner_of(places)
        if owner is not None and not owner.alive:
            tell(f"rig: takes down {places.folder}, which process {owner.init} left")
            take_down(places)


def owner_of(places: Places) -> Holder | None:
    """The process that a rig is for; None where it is for whoever wants it."""
    for _ in range(2):
        try:
            return Holder(**json.loads(places.owner.read_text()))
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.1)  # is being written
    return None
