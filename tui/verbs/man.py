"""man: the man page of distui or of a verb; or all pages into a folder."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from ... import __version__
from ...runners.run import file_io
from ...runners.run.errors import RunError
from ..cli import parser
from ..command_words import verb_refusal
from ..manual import pages


def man(options: argparse.Namespace) -> int:
    """Show a page by man(1) on a terminal, else print its source. Raises RunError."""
    top = parser()
    made = pages(top.verbs, top, __version__)
    if options.dir is not None:
        if options.name is not None:
            raise RunError("--dir writes all pages: leave VERB out")
        return _write(Path(options.dir).expanduser(), made)
    page = made.get("distui.1" if options.name is None else f"distui-{options.name}.1")
    if page is None:
        raise RunError(verb_refusal(options.name, top.verbs))
    if sys.stdout.isatty() and (program := shutil.which("man")):
        return subprocess.run([program, "-l", "-"], input=page.encode(), check=False).returncode
    sys.stdout.write(page)
    return 0


def _write(folder: Path, made: dict[str, str]) -> int:
    """Write the pages, replacing those of earlier versions. Raises RunError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in made.items():
            file_io.write_atomically(folder / name, page.encode())
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}") from None
    sys.stdout.write(f"{len(made)} pages written in {folder}\n")
    return 0
