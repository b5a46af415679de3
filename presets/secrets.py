"""Which variables hold secrets, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping

MASK = "***"
"""Stands in place of a secret value."""

WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
"""A variable whose name contains one of these holds a secret."""

HARMLESS = frozenset({"TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY"})
"""Well-known names that contain such a word and hold no secret."""


def is_secret(name: str) -> bool:
    """Whether the variable `name` holds a secret, judged by its name alone."""
    upper = name.upper()
    return upper not in HARMLESS and any(word in upper for word in WORDS)


def mask(name: str, value: str) -> str:
    """`value` as it may be shown: `***` when `name` is that of a secret; an empty value stays empty."""
    return MASK if value and is_secret(name) else value


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """A copy of `env` that may be shown."""
    return {name: mask(name, value) for name, value in env.items()}
