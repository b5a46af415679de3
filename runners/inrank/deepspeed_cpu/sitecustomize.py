"""Lets a script on Accelerate train under DeepSpeed on CPU, over gloo; on PYTHONPATH only where a plan says both.

Accelerate (1.10 to 1.15) names no backend for ranks on CPU when DeepSpeed is wanted, and then takes each for a world of
its own: every rank would see the same samples. The backend is all that it lacks. `_prepare_backend` is a private name of
its PartialState; where it is gone, or answers otherwise, nothing is changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_STATE = "accelerate.state"


class _AccelerateFinder:
    """Finds Accelerate's module of states as the interpreter would, once, and names the backend in it."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != _STATE:
            return None
        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            _name_backend(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _name_backend(module: Any) -> None:
    state: Any = getattr(module, "PartialState", None)
    theirs = getattr(state, "_prepare_backend", None)
    if theirs is None:
        return

    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend = theirs(self, *args, **kwargs)
        if isinstance(backend, tuple) and len(backend) == 2 and backend[0] is None:
            return "gloo", module.DistributedType.MULTI_CPU
        return backend

    state._prepare_backend = prepared


def _chain() -> None:
    """Execute the sitecustomize that this one hides, if there is one behind it, under its own name."""
    folders = [os.path.abspath(entry or ".") for entry in sys.path]
    rest = sys.path[folders.index(_HERE) + 1 :] if _HERE in folders else []
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("LOCAL_RANK"):
    sys.meta_path.insert(0, _AccelerateFinder)
_chain()
