"""Bundles in place of a run, for verbs that read."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

from ...runners.run import file_io

Verb = Callable[[argparse.Namespace], int]


def run_or_bundle(verb: Verb) -> Verb:
    """Wrap a verb so that its RUN may be a bundle's file, which then means the bundle's run. Raises RunError."""

    @functools.wraps(verb)
    def of_bundle(options: argparse.Namespace) -> int:
        if options.run is None or not _is_packed(options.run):
            return verb(options)
        from ...runners.reports.bundle_reader import opened  # rarely needed

        with opened(Path(options.run)) as manifest:
            options.run = manifest.run
            return verb(options)

    return of_bundle


def _is_packed(name: str) -> bool:
    """Whether a name is that of a regular file with gzip's magic bytes, with any extension."""
    try:
        return file_io.head(Path(name), 2) == b"\x1f\x8b"
    except (file_io.FileError, ValueError):
        return False
