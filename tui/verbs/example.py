"""example: prints a training script to start with."""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from pathlib import Path


def example(options: argparse.Namespace) -> int:
    """Print the script that the demo trains."""
    sys.stdout.write(example_path("chargpt.py").read_text(encoding="utf-8"))
    return 0


def example_path(name: str) -> Path:
    """Return the path of a shipped script."""
    return Path(str(resources.files("distui.presets"))) / "examples" / name
