"""Apply the preset in this process if the environment says so; otherwise leave torch unchanged.

If the preset cannot be applied, the run stops with one sentence: at the script's call, or at its first optimizer step
if it has not called DistributedDataParallel before.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType

from ..import_watch import PATCH_ERRORS, when_imported
from ..rank_changes import version_of
from .report import AdoptionError

VARIABLE = "DISTUI_ADOPT"
"""Set to 1 by the plan of a launch with --adopt; see presets/adopt.py."""
OLDEST = (2, 9)
"""First release of torch with a public API for everything that --adopt uses."""


def arm() -> None:
    """Apply the preset as soon as the script has imported torch, if the environment says so."""
    if os.environ.get(VARIABLE) == "1":
        when_imported("torch", _prepare)


def _prepare(torch: ModuleType) -> None:
    """Change torch. Raises AdoptionError, at the script's import of torch."""
    check_release(str(torch.__version__))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
            from . import call  # needs torch
        call.arm()
    except PATCH_ERRORS as error:
        raise AdoptionError(
            f"--adopt does not know torch {torch.__version__} ({type(error).__name__}: {error}): leave it out"
        ) from error


def check_release(version: str) -> None:
    """Raise AdoptionError if this torch is too old."""
    try:
        release = version_of(version)
    except ValueError:
        return
    if release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise AdoptionError(
            f"--adopt needs torch {oldest} or newer, and this is {version}: leave it out, or update torch"
        )
