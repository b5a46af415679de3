"""Every test here that asks for one gets a user of its own."""

from __future__ import annotations

from e2e.conftest import world

__all__ = ["world"]
