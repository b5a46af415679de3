"""Whether a text speaks of checkpoints."""

from __future__ import annotations

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


def saves(text: str | bytes) -> bool:
    """Whether one of SIGNS is in it."""
    plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return any(sign in plain.lower() for sign in SIGNS)
