"""demo, example: the shipped scripts. `demo` imports the launch modules, which takes most of a second, after a word."""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from pathlib import Path

from ...presets.plurals import plural
from ..terminal import interactive


def demo(options: argparse.Namespace) -> int:
    """Train the shipped example and open it. Raises RunError."""
    if interactive() and not (options.detach or options.json):
        ranks = options.nproc_per_node
        where = f" on {plural(int(ranks), 'rank')}" if ranks.isdecimal() else ""
        sys.stderr.write(f"Starting the demo{where}: the cockpit opens in a moment, q leaves it.\n")
        sys.stderr.flush()
    from .demo_launch import start_demo

    return start_demo(options)


def example(options: argparse.Namespace) -> int:
    """Print the script that the demo trains."""
    sys.stdout.write(example_path("chargpt.py").read_text(encoding="utf-8"))
    return 0


def example_path(name: str) -> Path:
    """Return the path of a shipped script."""
    return Path(str(resources.files("distui.presets"))) / "examples" / name
