"""Every test of a hub gets a user of its own, and leaves no process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from .rehearsal import Rehearsed
from .site import Site


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A fresh user."""
    made = Site(monkeypatch)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def run(site: Site) -> AsyncIterator[Rehearsed]:
    """Two nodes that are not started yet, without processes."""
    made = Rehearsed(site)
    yield made
    await made.close()
