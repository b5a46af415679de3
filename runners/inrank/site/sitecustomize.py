"""Runs at the start of every Python below a distui run: chains to the user's own sitecustomize, then the hook.

Stdlib only, silent, and off with `--no-hook`. Only a rank itself gets the hook: its children inherit the
environment, but their parent is not the runner. A command of the user's is a rank where it is Python with a script of
its own that imports torch, as in `distui exec -- python train.py`; launchers and other programs of Python's are none.
What a launcher in a command starts may become a rank: see joining.py.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOMS = os.path.dirname(_HERE)
_HOMES = {
    "distui": [os.path.join(_ROOMS, "no-such-folder")],
    "distui.runners": [os.path.join(_ROOMS, "no-such-folder")],
    "distui.runners.inrank": [_ROOMS],
    "distui_inrank": [_ROOMS],
}


_LAUNCHERS = ("torch/distributed/", "accelerate/commands/", "deepspeed/launcher/", "horovod/", "torchrun")
"""In the paths of scripts that start ranks and are none."""


class _Fallback:
    """Finds `distui.runners.inrank` for an interpreter that has no distui installed; asked last."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in _HOMES:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = _HOMES[name]
        return spec


def _chain() -> None:
    """Execute the sitecustomize that this one hides, if there is one, under its own name."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _runs_a_script() -> bool:
    """Whether this interpreter executes a file of Python's that starts no ranks itself; not a module, a text, a tool."""
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-"):
        if words[0] in ("-m", "-c", "-"):
            return False
        words = words[2:] if words[0] in ("-W", "-X") else words[1:]
    return bool(words) and words[0].endswith(".py") and not any(part in words[0] for part in _LAUNCHERS)


def _attach() -> None:
    sys.meta_path.append(_Fallback)
    parent = str(os.getppid())
    runner, _, path = os.environ.get("DISTUI_COMMAND_HOOK", "").partition(" ")
    try:
        if "DISTUI_RUNNER_PID" in os.environ:
            if os.environ.get("DISTUI_HOOK") and os.environ["DISTUI_RUNNER_PID"] == parent:
                _hook()
        elif runner and "DISTUI_NESTED" not in os.environ:
            if runner == parent and _runs_a_script():
                os.environ["DISTUI_HOOK"] = path
                importlib.import_module("distui_inrank.import_watch").when_imported("torch", _hook)
            if "DISTUI_JOINED" not in os.environ:  # else a rank's child
                importlib.import_module("distui_inrank.joining").watch(below=runner != parent)
    except (OSError, ImportError, AttributeError, ValueError, RuntimeError, LookupError, TypeError):
        pass  # a rank never fails because of its hook


def _hook(*_: Any) -> None:
    importlib.import_module("distui_inrank.hook").attach()


try:
    _chain()
finally:  # the interpreter reports what the user's raises, as it does without us
    if os.environ.get("DISTUI_RUN_ID"):
        _attach()
