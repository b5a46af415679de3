"""Make Accelerate use gloo with DeepSpeed on CPU.

With DeepSpeed on CPU, Accelerate (1.10 to 1.15) chooses no backend and gives each rank a world size of 1, so every rank
would see the same samples. This patch adds the backend. It changes nothing if PartialState lacks the private method
`_prepare_backend`, or if that method returns a backend.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from .import_watch import wrap_imported


def is_needed(env: Mapping[str, str]) -> bool:
    """Return whether ranks with these variables use DeepSpeed over gloo."""
    return env.get("DISTUI_BACKEND") == "gloo" and env.get("ACCELERATE_USE_DEEPSPEED") == "true"


def arm() -> None:
    """Patch Accelerate once it is imported, if this rank needs it."""
    if is_needed(os.environ):
        wrap_imported("accelerate.state", "PartialState", "_prepare_backend", _named)


def _named(theirs: Any) -> Any:
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend = theirs(self, *args, **kwargs)
        if isinstance(backend, tuple) and len(backend) == 2 and backend[0] is None:
            return "gloo", sys.modules["accelerate.state"].DistributedType.MULTI_CPU
        return backend

    return prepared
