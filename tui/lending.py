"""Lends the terminal to other programs, such as a shell or a pager, and copies text out of the cockpit."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from textual.app import App, SuspendNotSupported

from ..presets import base_dirs
from ..presets.base_dirs import private_folder
from ..presets.sanitize import clean_text
from ..runners.run import file_io

MOST_QUOTED = 80
"""Columns of a copied line in the notification."""


def lend(app: App[None], argv: Sequence[str]) -> int | None:
    """Run a program in the terminal until it ends; return its exit code, None if it could not start."""
    try:
        with app.suspend():
            return subprocess.run(argv, check=False).returncode
    except SuspendNotSupported:
        app.notify("this terminal cannot be lent to another program", severity="warning")
    except OSError as error:
        app.notify(f"{argv[0]} did not start: {error.strerror or error}", severity="error")
    return None


def page(app: App[None], text: str) -> None:
    """Show a text in the user's pager."""
    with tempfile.NamedTemporaryFile("w", prefix="distui-", suffix=".log", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        lend(app, pager_argv(Path(file.name)))


def copy(app: App[None], text: str) -> None:
    """Copy to the terminal's clipboard, and to a file, since some terminals refuse clipboard access."""
    if not text:
        app.notify("no line to copy")
        return
    app.copy_to_clipboard(text)
    try:
        path = keep_copy(text)
    except OSError as error:
        app.notify(f"copied to the clipboard only: {error}", severity="warning")
        return
    app.notify(f"{_copied_text(text)}, also to {path}")


def _copied_text(text: str) -> str:
    """Return the number of copied lines, and the beginning of a single line."""
    lines = text.count("\n") + 1
    if lines > 1:
        return f"{lines} lines copied"
    quoted = textwrap.shorten(clean_text(text), MOST_QUOTED, placeholder=" …")
    return f'1 line copied ("{quoted}")'


def shell_argv(host: str, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the command of a shell on a node: the user's shell on this machine, ssh for others."""
    if host in ("", "localhost", socket.gethostname()):
        return (environ.get("SHELL") or "/bin/sh",)
    return "ssh", "-t", host


def pager_argv(path: Path, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of the user's pager for a file; `less` opens at the end."""
    pager = environ.get("PAGER", "").split() or ["less"]
    at_end = ["+G"] if Path(pager[0]).name == "less" else []
    return [*pager, *at_end, str(path)]


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return distui's state directory: `${XDG_STATE_HOME:-~/.local/state}/distui`."""
    return base_dirs.base("XDG_STATE_HOME", environ) / "distui"


def keep_copy(text: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Write copied lines to `copied.txt`, readable by this user only. Raises OSError."""
    path = state_dir(environ) / "copied.txt"
    private_folder(path.parent)
    file_io.write_atomically(path, f"{text}\n".encode())
    return path
