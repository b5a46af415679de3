"""Every test here gets a user of its own, and fails when a process of that user is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .runs import World


@pytest.fixture
def world() -> Iterator[World]:
    """A fresh user; closed, and checked for what is left, after the test."""
    world = World()
    try:
        yield world
    finally:
        world.close()
