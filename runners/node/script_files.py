"""Read the script of a launch on this machine, and the files next to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..run import file_io
from ..run.errors import RunError

if TYPE_CHECKING:
    from ...presets.request import Request


def script_source(request: Request) -> tuple[bool, bytes | None]:
    """Return whether the script exists, and its text if readable. Raises RunError for a directory."""
    if request.script is None:
        return True, None
    if request.no_python:
        return True, None  # its executability depends on the plan's environment: see `refusal`
    path = Path(request.script)
    if path.is_dir() and not request.module:
        raise RunError(f"{request.script} is a directory: give the path of a script in it")
    if request.module:
        path = Path(*request.script.split("."))
        path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        if not path.exists():
            return True, None  # maybe installed in the training environment
    source = read_source(path)
    return source is not None or path.is_file(), source


def read_source(path: Path) -> bytes | None:
    """Text of a script, at most one byte over the limit; None if it cannot be opened."""
    from ...presets.script_tree import MOST_BYTES

    try:
        return file_io.head(path, MOST_BYTES + 1)
    except file_io.FileError:
        return None


def read_around(
    path: Path, source: bytes | None, folder: Path = Path(), args: Sequence[str] = ()
) -> tuple[dict[str, bytes | None], bytes | None]:
    """Texts of the files that a script imports from its folder, and its own DeepSpeed configuration.

    A text is None if it exceeds the limit for the script with its imports. `path` is the script; `folder` is the working
    directory of the ranks.
    """
    from ...presets.script_support import own_config  # needed only to examine a script
    from ...presets.script_tree import local_imports, within_limits

    names = local_imports(source) if source else []
    there = (name for name in names if os.path.isfile(path.parent / name))
    texts = ((name, text) for name in there if (text := read_source(path.parent / name)) is not None)
    config = own_config(source, args)
    return within_limits(source or b"", texts), read_source(folder / config) if config else None
