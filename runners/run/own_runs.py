"""Whether distui of this account created a run directory. Other accounts' directories and copies are only data.

A directory contains the commands, variables and addresses of its agent and hub, so distui starts nothing from foreign
ones. The mark is an HMAC of the directory's name with a key that no other account can read and no copy contains.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from . import file_io, launch_record
from .errors import RunError

MARK = "made-here"


def write_mark(run_dir: Path) -> None:
    """Mark a new directory as this account's. Raises OSError, and RunError without a key."""
    signature = _signature(run_dir, make=True)
    if signature is None:
        key = run_dir.parent.parent / launch_record.KEY
        raise RunError(f"{key} cannot be read, or can be changed by other users: remove it")
    file_io.write_atomically(run_dir / MARK, signature)


def is_own(run_dir: Path) -> bool:
    """Whether the directory has this account's mark for its name."""
    signature = _signature(run_dir)
    try:
        return signature is not None and hmac.compare_digest(file_io.content(run_dir / MARK), signature)
    except file_io.FileError:
        return False


def check(run_dir: Path) -> None:
    """Raise RunError for a directory that nothing may be started from."""
    if not is_own(run_dir):
        raise RunError(
            f"{run_dir} belongs to another user, or is a copy: distui only reads it, and starts nothing from it"
        )


def _signature(run_dir: Path, make: bool = False) -> bytes | None:
    key = launch_record.key(run_dir.parent.parent, make)
    if key is None:
        return None
    return hmac.new(key, os.fsencode(run_dir.name), hashlib.sha256).hexdigest().encode()
