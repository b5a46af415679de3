"""demo: prints what it starts, and only then imports the launch modules, which takes most of a second."""

from __future__ import annotations

import argparse
import sys

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
