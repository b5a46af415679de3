"""The terminal: shells on nodes, copied lines, other programs, and whether it is still there."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from textual.app import App, SuspendNotSupported

from ..presets import trusted_files
from ..presets.trusted_files import private_folder
from ..runners.errors import RunError
from ..runners.formatting import agreeing, plural
from ..runners.hub import routes

# -----------------------------------------------------------------------------------------------------------
# A shell on a node of a run on several nodes: the way by which the hub reaches it.


@dataclass(frozen=True, slots=True)
class Shell:
    """What opens a shell; `argv` () where nothing does."""

    argv: tuple[str, ...]
    text: str = ""
    """What the user should know of it, a sentence."""


def shell_on(run_dir: Path, node: int, environ: Mapping[str, str] = os.environ) -> Shell:
    """The shell on one node of the run that this hub's directory belongs to. Raises RunError."""
    route = next((route for route in routes.read(run_dir) if route.node == node), None)
    if route is None:
        raise RunError(f"node {node} is not reachable yet; wait until its link is up")
    if route.kind == "ssh":
        return Shell(("ssh", "-t", *route.options, "--", route.target))
    if route.kind == "unix":
        return Shell((environ.get("SHELL") or "/bin/sh",), f"{route.host} is this machine")
    why = "is reached through the agent of the head node, which carries no shell"
    return Shell((), f"{route.host} {why}: ssh {route.host}")


# -----------------------------------------------------------------------------------------------------------
# What leaves the screen: copied lines, and programs that the terminal is lent to.


class LendingApp(App[None]):
    """Lends the terminal, and gives text away."""

    def keep(self, text: str) -> None:
        """Copy to the terminal's clipboard, and to a file for terminals that do not let us."""
        if not text:
            self.notify("no line to copy")
            return
        self.copy_to_clipboard(text)
        try:
            path = keep_copy(text)
        except OSError as error:
            self.notify(f"copied to the clipboard only: {error}", severity="warning", markup=False)
            return
        self.notify(f"{plural(text.count(chr(10)) + 1, 'line')} copied, also to {path}", markup=False)

    def page(self, text: str) -> None:
        """The user's pager on this text."""
        path = spill(text)
        self.lend(pager_argv(path))
        path.unlink(missing_ok=True)

    def lend(self, argv: list[str]) -> None:
        """Let a program have the terminal until it ends."""
        try:
            with self.suspend():
                subprocess.run(argv, check=False)
        except SuspendNotSupported:
            self.notify("this terminal cannot be lent to another program", severity="warning")
        except OSError as error:
            self.notify(
                f"{argv[0]} did not start: {error.strerror or error}", severity="error", markup=False
            )


# -----------------------------------------------------------------------------------------------------------
# The terminal around the cockpit: is there one, did it go away, what runs in it meanwhile.


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
        verb = agreeing(missing, "is", "are")
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
    return trusted_files.base("XDG_STATE_HOME", environ) / "distui"


def keep_copy(text: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Write copied lines to `copied.txt`, readable by this user only. Raises OSError."""
    folder = state_dir(environ)
    private_folder(folder)
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
