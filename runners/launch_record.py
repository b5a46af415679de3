"""What is recorded of a launch beside its plan: the state of the code in git, and fingerprints of secrets.

Neither can fail a launch: what cannot be read in time is unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from . import clock

GIT_SECONDS = 2.0
"""For all questions to git together; on a slow disk the rest is unknown."""
MOST_DIFF = 16 << 20
"""Bytes of changes of which a digest is taken."""
DIGITS = 16
KEY = "fingerprint.key"
"""In the state directory: what fingerprints of secrets are made with. It is in no bundle and on no other machine."""
KEY_BYTES = 32
_QUIET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
"""Reading writes no index, asks for nothing, fetches nothing."""
_PLACED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_TRACE")
_SAFE = (
    "-c",
    "core.fsmonitor=false",
    "-c",
    "safe.bareRepository=explicit",
    "-c",
    "core.hooksPath=/dev/null",
)
"""Nothing that a repository's own configuration names is executed, but for its filters."""


class GitState(Struct, frozen=True, omit_defaults=True):
    """The repository that the launch was started in. What is unknown has its default."""

    commit: str = ""
    branch: str = ""
    """"" where no branch is checked out."""
    dirty: bool | None = None
    """Whether files that git tracks differ from the commit; None where git was too slow."""
    changes: str = ""
    """Digest of these differences: equal ones have an equal digest."""


def git_state(folder: str, seconds: float = GIT_SECONDS) -> GitState | None:
    """Of the repository around a folder; None without one, without git, or where git refuses."""
    deadline = clock.monotonic() + seconds
    head = git_output(folder, ("rev-parse", "HEAD"), deadline)
    if head is None:
        return None
    commit = head.decode("ascii", "replace").strip()
    branch = git_output(folder, ("symbolic-ref", "--quiet", "--short", "HEAD"), deadline) or b""
    words = (
        "diff",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--ignore-submodules=dirty",
        "HEAD",
        "--",
    )
    changes = git_output(folder, words, deadline, top=True)
    name = branch.decode("utf-8", "replace").strip()
    if changes is None:
        return GitState(commit, name)
    digest = hashlib.sha256(changes[:MOST_DIFF]).hexdigest()[:DIGITS] if changes else ""
    return GitState(commit, name, bool(changes), digest)


def git_output(folder: str, words: Sequence[str], deadline: float, top: bool = False) -> bytes | None:
    """What git prints; None where it fails or is too slow. `top`: of the whole repository, not of the folder."""
    env = {name: value for name, value in os.environ.items() if name not in _PLACED} | _QUIET
    try:
        process = subprocess.Popen(
            ["git", "-C", folder, *_SAFE, *words, *([":/"] if top else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    try:
        out, _ = process.communicate(timeout=max(0.01, deadline - clock.monotonic()))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    return None if process.returncode else out


# --- fingerprints: whether two secrets differ, without either of them ---


def fingerprints(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Variable → fingerprint; empty where the key of `folder` can be neither read nor made."""
    secret = key(folder, make=True) if values else None
    if secret is None:
        return {}
    of_key = hashlib.sha256(secret).hexdigest()[:8]
    return {name: f"{of_key}-{_tag(secret, name, value)}" for name, value in values.items()}


def _tag(key: bytes, name: str, value: str) -> str:
    """So short that it identifies no value, and by a key that no reader of the run has."""
    text = os.fsencode(name) + b"\0" + os.fsencode(value)
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:6]


def same_secret(a: str, b: str) -> bool | None:
    """Whether two fingerprints are of equal values; None where they cannot be compared."""
    (key, dash, _), (other_key, _, _) = a.partition("-"), b.partition("-")
    return a == b if dash and key == other_key else None


def key(folder: Path, make: bool = False) -> bytes | None:
    """The key of a state directory, made where there is none if that is wanted; None where it cannot be used."""
    path = folder / KEY
    if make and not os.path.lexists(path):
        _make_key(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            own = stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
            content = file.read(KEY_BYTES + 1)
    except OSError:
        return None
    return content if own and len(content) == KEY_BYTES else None


def _make_key(path: Path) -> None:
    """Whole or not at all; where two launches make it at once, the first remains."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        os.link(temporary, path)
    with contextlib.suppress(OSError):
        temporary.unlink()
