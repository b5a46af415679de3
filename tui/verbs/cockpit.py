"""The cockpit on a run, or on the list of runs."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from ...runners import registry
from ...runners.errors import RunError


def open_cockpit(options: argparse.Namespace) -> int:
    """`distui` alone: the only live run, or the list."""
    live = [entry for entry in registry.entries() if not registry.ended(entry)]
    return show(live[0].record.run if len(live) == 1 else None, options.readonly, options.ascii)


def attach(options: argparse.Namespace) -> int:
    """Open one run."""
    if options.host is not None:
        from .elsewhere import attach as attach_elsewhere

        return attach_elsewhere(options)
    return show(registry.resolve(options.run).record.run, options.readonly, options.ascii)


def replay(options: argparse.Namespace) -> int:
    """Open the record of a run that has ended, or a bundle that another person exported."""
    if options.run is not None and os.path.isfile(options.run):
        check_terminal()
        from ...runners.export.opening import opened

        with opened(Path(options.run)) as manifest:
            return show(manifest.run, True, options.ascii)
    entry = registry.resolve(options.run)
    if not registry.ended(entry):
        raise RunError(f"{entry.record.name} is live: `distui attach {entry.record.name}` opens it")
    return show(entry.record.run, True, options.ascii)


def check_terminal() -> None:
    """Raises RunError where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise RunError("the cockpit needs a terminal: `distui status` and `distui logs` print text")


def show(run: str | None, readonly: bool, ascii_only: bool) -> int:
    """Run the cockpit and return its exit status."""
    check_terminal()
    gc.disable()  # nothing of what a start makes is garbage; the app turns it on again
    from ..app import run_cockpit
    from ..source import LocalSource

    return run_cockpit(LocalSource(readonly), run, readonly, ascii_only)
