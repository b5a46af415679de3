"""demo: the cockpit on a simulated run, or a real training. Imports either only after it printed what it starts."""

from __future__ import annotations

import argparse
import sys

from ...presets.plurals import plural
from ..command_words import WrongUsage
from ..terminal import interactive

STEPS, RANKS = 2000, "2"
"""Defaults of a real training."""


def demo(options: argparse.Namespace) -> int:
    """Simulate 16 GPUs in this terminal, or train the shipped example and open it. Raises RunError or WrongUsage."""
    if not interactive() or _wants_training(options):
        if options.hang_after is not None:
            raise WrongUsage(
                "--hang-after is for the simulation, which needs a terminal and no other option: use --hang"
            )
        return _train(options)
    _say("Starting the demo on 16 simulated GPUs: the cockpit opens in a moment, q leaves it.")
    from ...runners.watch.simulated_link import RUN
    from ...runners.watch.simulated_training import Faults
    from ..simulated_source import SimulatedSource
    from . import cockpit

    faults = Faults()
    if options.hang_after is not None:
        faults = Faults(options.hang_after, hot_gpu=False, tcp=False)
    source = SimulatedSource(faults, options.readonly)
    return cockpit.show(RUN, options.readonly, options.ascii, source=source)


def _wants_training(options: argparse.Namespace) -> bool:
    """Return True if an option is given that only a real training has."""
    given = (options.python, options.name, options.steps, options.nproc_per_node)
    flags = (options.real, options.hang, options.detach, options.json, options.quiet)
    return any(flags) or any(value is not None for value in given)


def _train(options: argparse.Namespace) -> int:
    ranks = options.nproc_per_node = options.nproc_per_node or RANKS
    options.steps = options.steps or STEPS
    if interactive() and not (options.detach or options.json):
        where = f" on {plural(int(ranks), 'rank')}" if ranks.isdecimal() else ""
        _say(f"Starting the demo{where}: the cockpit opens in a moment, q leaves it.")
    from .demo_launch import start_demo

    return start_demo(options)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
