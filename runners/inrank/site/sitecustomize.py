"""Start-up of every Python process below a distui run: execute the user's sitecustomize, then attach the hook to ranks.

Standard library only, and silent. `--no-hook` leaves it out, except for DeepSpeed over gloo: see deepspeed_cpu.py. A
rank's children do not get the hook: they inherit the environment, but their parent is not the runner. A user's command
is a rank if it is Python with a script that imports torch, as in `distui exec -- python train.py`, but not if the script
is a launcher. A process that a launcher in the command starts may become a rank: see joining.py.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import Any, List

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOMS = os.path.dirname(_HERE)
_HOMES = {
    "distui": [os.path.join(_ROOMS, "no-such-folder")],
    "distui.runners": [os.path.join(_ROOMS, "no-such-folder")],
    "distui.runners.inrank": [_ROOMS],
    "distui_inrank": [_ROOMS],
}


_LAUNCHERS = ("torch/distributed/", "accelerate/commands/", "deepspeed/launcher/", "horovod/", "torchrun")
"""Parts of the paths of launchers: scripts that start ranks and are not ranks."""


class _Fallback:
    """The last finder: finds `distui.runners.inrank` if distui is not installed, and `distui_inrank`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in _HOMES:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = _HOMES[name]
        return spec


def _chain() -> None:
    """Execute the sitecustomize that this one shadows, if any, as the module `sitecustomize`."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _runs_a_script() -> bool:
    """Return whether this interpreter executes a .py file (not -m, -c, or a tool) that is no launcher."""
    words = _command_line()[1:]
    while words and words[0].startswith("-"):
        if words[0] in ("-m", "-c", "-"):
            return False
        words = words[2:] if words[0] in ("-W", "-X") else words[1:]
    return bool(words) and words[0].endswith(".py") and not any(part in words[0] for part in _LAUNCHERS)


def _command_line() -> List[str]:
    """Return the words that started this interpreter; Python before 3.10 has no sys.orig_argv."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def _attach() -> None:
    sys.meta_path.append(_Fallback)
    try:
        if "ACCELERATE_USE_DEEPSPEED" in os.environ and "LOCAL_RANK" in os.environ:
            importlib.import_module("distui_inrank.deepspeed_cpu").arm()
        if "DISTUI_RUNNER_PID" in os.environ:
            if os.environ.get("DISTUI_HOOK") and os.environ["DISTUI_RUNNER_PID"] == str(os.getppid()):
                _hook()
        elif "DISTUI_NESTED" not in os.environ:
            _attach_below_command(*os.environ.get("DISTUI_COMMAND_HOOK", "").partition(" ")[::2])
    except (OSError, ImportError, AttributeError, ValueError, RuntimeError, LookupError, TypeError):
        pass  # a rank never fails because of its hook


def _attach_below_command(runner: str, path: str) -> None:
    """Attach the hook once this process acts as a rank. `runner`: pid of the command's runner, "" if there is none."""
    if not runner:
        return
    is_command = runner == str(os.getppid())
    if is_command and _runs_a_script():
        os.environ["DISTUI_HOOK"] = path
        importlib.import_module("distui_inrank.import_watch").when_imported("torch", _hook)
    if "DISTUI_JOINED" not in os.environ:  # else this is a rank's child
        importlib.import_module("distui_inrank.joining").watch(below=not is_command)


def _hook(*_: Any) -> None:
    importlib.import_module("distui_inrank.hook").attach()


try:
    _chain()
finally:  # the interpreter reports exceptions of the user's sitecustomize as usual
    if os.environ.get("DISTUI_RUN_ID"):
        _attach()
