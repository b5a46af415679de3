"""status, events and logs, of a run or of a bundle that another person exported."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def status(options: argparse.Namespace) -> int:
    """See runs.status."""
    from . import runs

    with _of_bundle(options):
        return runs.status(options)


def events(options: argparse.Namespace) -> int:
    """See runs.events."""
    from . import runs

    with _of_bundle(options):
        return runs.events(options)


def logs(options: argparse.Namespace) -> int:
    """See logs.logs."""
    from . import logs as printing

    with _of_bundle(options):
        return printing.logs(options)


@contextmanager
def _of_bundle(options: argparse.Namespace) -> Iterator[None]:
    """Where RUN is a bundle's file, its run is the one that is meant. Raises RunError."""
    if options.run is None or not options.run.endswith(".gz") or not os.path.isfile(options.run):
        yield
        return
    from ...runners.export.opening import opened

    with opened(Path(options.run)) as manifest:
        options.run = manifest.run
        yield
