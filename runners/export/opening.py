"""A bundle opened into a state directory of its own, in which its run is one that has ended."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import structs

from .. import identity, journal, registry
from ..errors import RunError
from ..model import HUB, RunEnded, RunPhase, Stamped
from .bundle import Manifest, unpack

STATE = "XDG_STATE_HOME"


@contextmanager
def opened(path: Path) -> Iterator[Manifest]:
    """Within it the registry knows the run of the bundle and no other; it leaves nothing behind. Raises RunError."""
    before = os.environ.get(STATE)
    with tempfile.TemporaryDirectory(prefix="distui-replay-") as folder:
        os.environ[STATE] = folder
        try:
            yield _settle(path, unpack(path, registry.runs_dir()))
        finally:
            if before is None:
                del os.environ[STATE]
            else:
                os.environ[STATE] = before


def _settle(path: Path, manifest: Manifest) -> Manifest:
    """Make it a run of this machine that has ended; nobody is asked for it any more."""
    entry = registry.at(registry.runs_dir() / manifest.run)
    if entry is None:
        raise RunError(f"{path} holds no run.json that can be read: have it exported again")
    record = structs.replace(entry.record, kind="local", whole="")
    identity.write_atomically(entry.path / registry.RUN_FILE, msgspec.json.encode(record))
    state = entry.state()
    if not state.phase.ended:
        clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.created))
        ended = RunEnded(RunPhase.LOST, None, f"it had not ended when it was exported, {clock}")
        last = Stamped(
            manifest.created, ended, state.seq + 1, HUB if state.merged else min(state.nodes, default=0)
        )
        with (entry.path / journal.NAME).open("ab") as file:
            file.write(msgspec.json.encode(last) + b"\n")
    return manifest
