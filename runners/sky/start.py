"""The entry: `PYTHON start.py`, a plain file for the interpreter that has SkyPilot and need not have distui."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def load() -> None:
    """Make this folder importable as `distui_sky`; nothing of distui's or of the user's may shadow SkyPilot."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "distui_sky", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"distui: {here} is not whole: install distui again")
    package = importlib.util.module_from_spec(spec)
    sys.modules["distui_sky"] = package
    spec.loader.exec_module(package)
    sys.path[:] = [path for path in sys.path if path and os.path.abspath(path) != here]


if __name__ == "__main__":
    load()
    sys.exit(importlib.import_module("distui_sky.__main__").main())
