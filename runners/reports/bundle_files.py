"""What a bundle is: the files that it may hold, and its manifest.

A bundle is a tar file of regular files below one folder, compressed with gzip; the manifest is last.
"""

from __future__ import annotations

import re

from msgspec import Struct

from ..logs import line_times
from ..run import run_directories
from ..run.log_files import parse_file_id

MANIFEST = run_directories.MANIFEST
FORMAT = 1
MOST_FILE = 256 << 20

TOP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FIXED = re.compile(
    r"plan\.json|run\.json|journal\.jsonl|status\.json|findings\.json|diagnose\.json|MANIFEST\.json"
    r"|(?:node-\d{1,6}/)?metrics/(?:1|10|60|600)s\.jsonl(?:\.1)?"
)


class File(Struct, frozen=True, omit_defaults=True):
    """A file of a bundle, as listed in its manifest."""

    name: str
    bytes: int
    sha256: str
    of: int | None = None
    """Size of a cut file on its node, in bytes; None for a whole file."""


class Manifest(Struct, frozen=True):
    """Content of the last file of a bundle."""

    format: int
    distui: str
    """Version of distui that wrote it."""
    created: float
    """Unix time."""
    run: str
    name: str
    state: str
    live: bool
    """Whether the run had not ended yet."""
    files: list[File]
    missing: list[str]
    """Files of the run that are not included: one sentence each."""
    masked: int
    """Number of masked secrets."""


def belongs(name: str) -> bool:
    """Whether a bundle can hold a file of this name."""
    log = name.removeprefix(f"{line_times.FOLDER}/")
    return _FIXED.fullmatch(name) is not None or parse_file_id(log) is not None
