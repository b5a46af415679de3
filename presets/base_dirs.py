"""The user's base directories (XDG), and folders that only the user can read."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HOMES = {"XDG_STATE_HOME": "~/.local/state", "XDG_CONFIG_HOME": "~/.config", "XDG_CACHE_HOME": "~/.cache"}
"""The base directories, and their defaults if the variable is unset."""


def base(variable: str, env: Mapping[str, str]) -> Path:
    """Return one of HOMES.

    A relative path is ignored, as the specification requires, because it would depend on the working directory.
    """
    home = env.get("HOME") or str(Path.home())
    paths = (env.get(variable, ""), HOMES[variable])
    given, usual = (Path(home, path[2:]) if path.startswith("~/") else Path(path) for path in paths)
    return given if given.is_absolute() else usual


def ignored(env: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that is ignored."""
    return [
        f"{name}={env[name]} is not an absolute path, so {HOMES[name]} is used"
        for name in HOMES
        if env.get(name) and not Path(env[name]).expanduser().is_absolute()
    ]


def private_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 0700, whatever the umask. Raises OSError."""
    if path.is_dir():
        return
    private_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


def config_dir(env: Mapping[str, str]) -> Path:
    """Return the user's configuration folder, by XDG_CONFIG_HOME and HOME of `env`."""
    return base("XDG_CONFIG_HOME", env) / "distui"


@contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock `name` of a private folder, so that only one process changes its files. Raises OSError.

    The folder is created if it is missing.
    """
    private_folder(folder)
    # The lock is mode 0600: any user who can open a file may hold a lock on it.
    held = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
