"""The runner's entry: `PYTHON launch.py RUN_DIR`, executed as a plain file by the training environment's Python."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys


def _load_rooms() -> None:
    """Make this folder importable as `distui_inrank` without putting anything on `sys.path`."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "distui_inrank", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise SystemExit("distui: %s is not whole: install distui again" % here)
    package = importlib.util.module_from_spec(spec)
    sys.modules["distui_inrank"] = package
    spec.loader.exec_module(package)
    if sys.path and os.path.abspath(sys.path[0]) == here:
        del sys.path[0]  # a module of ours must not shadow one of the user's


if __name__ == "__main__":
    if (
        "DISTUI_NESTED" not in os.environ
    ):  # until the runner handles them: see worker_group.handle_stop_signals
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    _load_rooms()
    runner = importlib.import_module("distui_inrank.runner")
    sys.exit(runner.main(sys.argv[1:]))
