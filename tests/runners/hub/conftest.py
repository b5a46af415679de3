"""Every test of a real hub gets a user of its own, and leaves no process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .site import Site


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A fresh user."""
    made = Site(monkeypatch)
    try:
        yield made
    finally:
        made.close()
