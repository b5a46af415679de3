"""Modules of presets/ that the runner shares: they need only Python 3.9 and its standard library.

The runner executes this package without `distui` around it, so it finds them by their path.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any


def presets_module(name: str) -> Any:
    """Import a module of presets/."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    package = types.ModuleType("distui_presets")
    package.__path__ = [os.path.join(root, "presets")]
    sys.modules.setdefault(package.__name__, package)
    return importlib.import_module("%s.%s" % (package.__name__, name))
