"""The first start of the cockpit: a file in the state directory remembers that the orientation was shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..presets.base_dirs import private_folder
from .lending import state_dir

VARIABLE = "DISTUI_ORIENTATION"
"""Variable that turns the orientation off."""


def _mark(environ: Mapping[str, str]) -> Path:
    return state_dir(environ) / "oriented"


def is_due(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the orientation was not shown yet, and is not turned off."""
    return environ.get(VARIABLE) != "off" and not os.path.lexists(_mark(environ))


def remember(environ: Mapping[str, str] = os.environ) -> None:
    """Record that it was shown; if that fails, the next start shows it again."""
    with suppress(OSError):
        private_folder(_mark(environ).parent)
        _mark(environ).touch(mode=0o600)
