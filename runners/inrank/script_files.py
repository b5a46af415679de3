"""Digests of an attempt's script and of the imported files in its folder."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
from typing import Any

from .presets_modules import presets_module

_imports = presets_module("script_imports")
MOST_FILES = 50
MOST_BYTES = 4 << 20
"""Largest file in bytes that gets a digest."""
DIGITS = 16
"""Length of a digest: the first hex digits of SHA-256."""
ENDS = (".py", ".sh", ".bash", ".pyz")


def digests(plan: dict[str, Any]) -> dict[str, str]:
    """Return path (as in the plan) → digest of the script and of the files in its folder; {} if unreadable."""
    try:
        name = script_of([str(word) for word in plan["command"]], str(plan["cwd"]))
        cwd = str(plan["cwd"])
    except (KeyError, TypeError):
        return {}
    source = read(os.path.join(cwd, name)) if name else None
    if source is None:
        return {}
    taken = {name: digest(source)}
    folder = os.path.dirname(name)
    for beside in imported(source) if name.endswith(".py") else ():
        if len(taken) == MOST_FILES:
            break
        path = os.path.join(folder, beside)
        text = read(os.path.join(cwd, path))
        if text is not None:
            taken[path] = digest(text)
    return taken


def script_of(command: list[str], cwd: str) -> str:
    """Return the path of the script in a command, relative to `cwd`; "" if there is none."""
    if command[:1] == ["-m"]:
        path = command[1].replace(".", "/") if len(command) > 1 else ""
        return next((each for each in (path + ".py", path + "/__main__.py") if _is_file(cwd, each)), "")
    scripts = [word for word in command if word.endswith(ENDS) and _is_file(cwd, word)]
    return scripts[0] if scripts else ""


def _is_file(cwd: str, name: str) -> bool:
    return os.path.isfile(os.path.join(cwd, name))


def digest(source: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(source).hexdigest()[:DIGITS]


def read(path: str) -> bytes | None:
    """Return the content of a regular file; None if it cannot be read or is longer than MOST_BYTES."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
    return None if len(content) > MOST_BYTES else content


def imported(source: bytes) -> list[str]:
    """Return the paths, relative to the script's folder, of files that it imports if they exist; [] if it is invalid."""
    try:
        tree = _imports.syntax_tree(source)
    except (SyntaxError, SystemError, ValueError, RecursionError, MemoryError):
        return []
    return list(_imports.imported_files(ast.walk(tree)))
