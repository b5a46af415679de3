"""Make Accelerate use gloo with DeepSpeed on CPU. On PYTHONPATH only if the plan has both gloo and DeepSpeed.

With DeepSpeed on CPU, Accelerate (1.10 to 1.15) chooses no backend and gives each rank a world size of 1, so every rank
would see the same samples. This patch adds the backend. It changes nothing if PartialState lacks the private method
`_prepare_backend`, or if that method returns a backend.
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
    """Finds Accelerate's state module once, as the interpreter would, and patches it after its execution."""

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
    """Execute the next sitecustomize on sys.path after this one, if any, as the module `sitecustomize`."""
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
