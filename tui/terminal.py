"""The terminal around the cockpit: is there one, did it go away, what runs in it meanwhile."""

from __future__ import annotations

import os
import select
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def complaint() -> str | None:
    """Why the cockpit cannot be shown here, one sentence; None when it can.

    All three must be the terminal: the screen is drawn on stderr, and keys come from stdin.
    """
    missing = [
        name
        for name, stream in (
            ("stdin", sys.__stdin__),
            ("stdout", sys.__stdout__),
            ("stderr", sys.__stderr__),
        )
        if stream is None or not stream.isatty()
    ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        names = " and ".join(missing)
        return f"{names} {verb} no terminal: run distui in one, or use `distui status`"
    if os.environ.get("TERM", "") in ("", "dumb"):
        return "TERM says that this terminal cannot draw (dumb): set TERM, or use `distui status`"
    return None


def hung_up(descriptor: int) -> bool:
    """Whether the other end of the terminal has gone."""
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except OSError:
        return True


def end_if_hung_up(status: int) -> None:
    """End this process at once where its terminal has gone.

    There is no screen to restore, and an orderly end would write to it: Textual's writer dies on that and the
    end waits for the writer. The viewer holds nothing that could be lost.
    """
    if sys.__stdin__ is not None and hung_up(sys.__stdin__.fileno()):
        os._exit(status)


def shell_argv(host: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """A shell on a node: the user's own here, ssh elsewhere."""
    if host in ("", "localhost", socket.gethostname()):
        return [environ.get("SHELL") or "/bin/sh"]
    return ["ssh", "-t", host]


def pager_argv(path: Path, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The user's pager on a file; `less` opens at the end."""
    pager = environ.get("PAGER", "").split() or ["less"]
    return [*pager, *(["+G"] if Path(pager[0]).name == "less" else []), str(path)]


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """distui's directory for what it keeps: `${XDG_STATE_HOME:-~/.local/state}/distui`."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "distui"


def keep_copy(text: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Write copied lines to `copied.txt`, readable by this user only. Raises OSError."""
    folder = state_dir(environ)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "copied.txt"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    return path


def spill(text: str) -> Path:
    """The text in a temporary file, for a pager; the caller removes it."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="distui-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return Path(file.name)
