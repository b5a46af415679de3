"""Runners' parts for the tests of the folder, below a short path: a unix socket's path holds 108 bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from distui.runners.inrank import coordinator, relay
from distui.runners.run import clock

from .carrier import KEY
from .relay_rig import Carriers, ProcessCarriers


@pytest.fixture(scope="session")
def store() -> int:
    """Port of a rendezvous store in this process, which all tests share as the runs of a node share a machine."""
    return coordinator.start("127.0.0.1", 0, KEY, (1, 2, 1.0))


@pytest.fixture
async def carriers(store: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Carriers]:
    """Both runners' parts, driven by the loop of the test."""
    monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=clock.monotonic))
    async with Carriers(directory, store) as made:
        yield made


@pytest.fixture
def processes(directory: Path) -> Iterator[ProcessCarriers]:
    """Both runners' parts as runners have them: in processes and threads of their own."""
    made = ProcessCarriers(directory)
    yield made
    made.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dt-"))
    yield path
    shutil.rmtree(path)
