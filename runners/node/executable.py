"""Why a command cannot be executed, before it is."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

FIRST_BYTES = 256
"""Bytes of a script's first line; the kernel reads no more."""


def refusal(word: str, cwd: str, env: Mapping[str, str]) -> str | None:
    """Why `word` cannot be executed in `cwd` under `env`, as a sentence; None if it can.

    A word without a slash is searched on the PATH of `env` as by execvp, past files that cannot be executed. Problems
    that only the kernel detects (a binary for another machine) appear at the start.
    """
    if "/" in word:
        path = os.path.join(cwd, word)
        why = _why(path, word, env)
        return None if why is None else f"cannot start {word}: {why}"
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(cwd, folder, word) for folder in folders]
    there = [path for path in paths if os.path.lexists(path) and not os.path.isdir(path)]
    reasons = [_why(path, path, env) for path in there]
    if None in reasons:
        return None
    if there:
        return f"cannot start {there[0]}: {reasons[0]}"
    here = os.path.join(cwd, word)
    hint = f": `./{word}` is the file here" if os.path.isfile(here) else ""
    return f"cannot start {word}: there is no such program on PATH{hint}"


def _why(path: str, word: str, env: Mapping[str, str]) -> str | None:
    """Problem of exactly this file, which the user calls `word`."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"{error.strerror}"
    if stat.S_ISDIR(mode):
        return "it is a directory"
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    if not os.access(path, os.X_OK):
        return f"it is not executable: `chmod +x {shlex.quote(word)}`, or name its interpreter before it"
    try:
        with open(path, "rb") as file:
            head = file.read(FIRST_BYTES)
    except OSError:
        return None  # executable but not readable: the kernel decides
    return _first_line_problem(word, head, env) if not head.startswith(b"\x7fELF") else None


def _first_line_problem(word: str, head: bytes, env: Mapping[str, str]) -> str | None:
    """Problem of the first line of a script."""
    line = head.split(b"\n", 1)[0]
    if not line.startswith(b"#!"):
        if b"\0" in head:
            return None  # another format; the kernel may have an interpreter for it
        return f"it has no #! line: write `bash {shlex.quote(word)}`, or name its interpreter in its first line"
    words = line[2:].decode("utf-8", "surrogateescape").split()
    if not words:
        return "its first line names no interpreter"
    if line.endswith(b"\r"):
        return "its first line ends with a carriage return: save it with the line ends of Linux"
    if not Path(words[0]).is_absolute():
        return None  # relative to the working directory at execution
    if not os.access(words[0], os.X_OK) or os.path.isdir(words[0]):
        return f"its first line names {words[0]}, which cannot be executed"
    named = _found_by_env(words)
    if named and refusal(named, "/", env) is not None:
        return f"its first line names {named}, which is not on PATH"
    return None


def _found_by_env(words: Sequence[str]) -> str:
    """Return the program that `#!/usr/bin/env NAME` searches on PATH; "" for another line."""
    if len(words) != 2 or os.path.basename(words[0]) != "env":
        return ""
    return "" if words[1].startswith("-") or "=" in words[1] else words[1]
