"""Runs at the start of every Python below a distui run: chains to the user's own sitecustomize, then the hook.

Stdlib only, silent, and off with `--no-hook`. Only a rank itself gets the hook: its children inherit the
environment, but their parent is not the runner.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Execute the sitecustomize that this one hides, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def _attach():
    from importlib.util import module_from_spec, spec_from_file_location

    rooms = os.path.dirname(_HERE)
    spec = spec_from_file_location(
        "distui_inrank", os.path.join(rooms, "__init__.py"), submodule_search_locations=[rooms]
    )
    package = module_from_spec(spec)
    sys.modules["distui_inrank"] = package
    spec.loader.exec_module(package)
    from distui_inrank import hook

    hook.attach()


_chain()
if os.environ.get("DISTUI_RUN_ID"):
    from importlib.machinery import ModuleSpec

    class _Fallback:
        """Finds `distui.runners.inrank` for an interpreter that has no distui installed; asked last."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            rooms = os.path.dirname(_HERE)
            homes = {
                "distui": [os.path.join(rooms, "no-such-folder")],
                "distui.runners": [os.path.join(rooms, "no-such-folder")],
                "distui.runners.inrank": [rooms],
            }
            if name not in homes:
                return None
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = homes[name]
            return spec

    sys.meta_path.append(_Fallback)
    if os.environ.get("DISTUI_HOOK") and os.environ.get("DISTUI_RUNNER_PID") == str(os.getppid()):
        try:
            _attach()
        except (OSError, ImportError, AttributeError, ValueError, RuntimeError):
            pass  # a rank never fails because of its hook
