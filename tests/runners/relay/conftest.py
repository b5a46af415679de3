"""Runners' parts for all tests of the folder, below a short path: a unix socket's path holds 108 bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .relay_rig import Carriers


@pytest.fixture(scope="session")
def carriers() -> Iterator[Carriers]:
    directory = Path(tempfile.mkdtemp(prefix="dt-"))
    made = Carriers(directory)
    yield made
    made.close()
    shutil.rmtree(directory)


@pytest.fixture
def own_carriers() -> Iterator[Carriers]:
    """For tests after which nobody else can use them."""
    directory = Path(tempfile.mkdtemp(prefix="dt-"))
    yield Carriers(directory)
    shutil.rmtree(directory)
