"""Every test here that asks for one gets a user of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.runs import World


@pytest.fixture
def world() -> Iterator[World]:
    """A fresh user; closed, and checked for what is left, after the test."""
    world = World()
    try:
        yield world
    finally:
        world.close()
