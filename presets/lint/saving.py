"""Whether a text or a script speaks of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

SIGNS = (
    "checkpoint",
    "ckpt",
    "resume",
    "state_dict",
    "torch.save",
    "save_pretrained",
    "output_dir",
    "save_steps",
)
"""Words of scripts and command lines that save their state."""

NAMES = ("save", "checkpoint", "ckpt", "trainer")
"""The same in the names that a Python script uses."""


def saves(text: str) -> bool:
    """Whether one of SIGNS is in a text."""
    return any(sign in text.lower() for sign in SIGNS)


def names_save(names: Iterable[str]) -> bool:
    """Whether one of NAMES is in a name."""
    return any(sign in name.lower() for name in names for sign in NAMES)
