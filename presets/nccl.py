"""The catalogue of NCCL variables."""

from __future__ import annotations


def check(name: str, value: str) -> str | None:
    """What is wrong with setting `name` to `value`, as a sentence; None when nothing is."""
    return None
