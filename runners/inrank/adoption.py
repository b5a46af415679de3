"""`--adopt` inside a rank: has the script's own DistributedDataParallel call apply the preset.

Nothing of torch is changed unless the environment asks for it. What acts on torch is in adopted_ddp; it is loaded right
after torch, before the script goes on. Where the preset cannot be applied, the run stops with a sentence: at the call,
or at the first optimizer step where no such call came before.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType

from .adopted import AdoptionError
from .import_watch import MISTAKES, when_imported
from .rank_changes import version_of

VARIABLE = "DISTUI_ADOPT"
"""Set to 1 by the plan of a launch with --adopt; see presets/adopt.py."""
OLDEST = (2, 9)
"""The release of torch from which on what is used here is public and the same."""


def arm() -> None:
    """Apply the preset in this process from now on, where that was asked for."""
    if os.environ.get(VARIABLE) == "1":
        when_imported("torch", _prepare)


def _prepare(torch: ModuleType) -> None:
    """Raises AdoptionError, out of the script's import of torch."""
    check_release(str(torch.__version__))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
            from . import adopted_ddp  # needs torch, which is there only now
        adopted_ddp.arm()
    except MISTAKES as error:
        raise AdoptionError(
            f"--adopt does not know torch {torch.__version__} ({type(error).__name__}: {error}): leave it out"
        ) from error


def check_release(version: str) -> None:
    """Raises AdoptionError for a torch that is too old."""
    try:
        release = version_of(version)
    except ValueError:
        return
    if release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise AdoptionError(
            f"--adopt needs torch {oldest} or newer, and this is {version}: leave it out, or update torch"
        )
