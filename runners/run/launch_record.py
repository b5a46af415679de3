"""Additional records of a launch: the state of the code in git, and fingerprints of secrets.

They never fail a launch: data that cannot be read in time is unknown.
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
"""Maximum seconds of all git commands together; on a slow disk the rest is unknown."""
MOST_DIFF = 16 << 20
"""Maximum bytes of the diff in the digest."""
DIGITS = 16
KEY = "fingerprint.key"
"""Key file for fingerprints of secrets, in the state directory. It is in no bundle and on no other machine."""
KEY_BYTES = 32
_QUIET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
"""Variables that make git only read: it writes no index, asks for nothing, fetches nothing."""
_PLACED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_TRACE")
_SAFE = (
    "-c",
    "core.fsmonitor=false",
    "-c",
    "safe.bareRepository=explicit",
    "-c",
    "core.hooksPath=/dev/null",
)
"""Options against commands from a repository's own configuration; only its filters remain."""


class GitState(Struct, frozen=True, omit_defaults=True):
    """State of the repository at the launch. Unknown values have their defaults."""

    commit: str = ""
    branch: str = ""
    """Name of the branch; "" for a detached HEAD."""
    dirty: bool | None = None
    """Whether tracked files differ from the commit; None if git was too slow."""
    changes: str = ""
    """Digest of the diff against the commit."""


def git_state(folder: str, seconds: float = GIT_SECONDS) -> GitState | None:
    """State of the repository around a folder; None without one, without git, or if git refuses."""
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
    """Output of git; None if it fails or is too slow. `top`: for the whole repository, not only the folder."""
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


# --- fingerprints: they show whether two secrets differ, without the secrets ---


def fingerprints(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Variable → fingerprint; empty if the key of `folder` can be neither read nor created."""
    secret = key(folder, make=True) if values else None
    if secret is None:
        return {}
    of_key = hashlib.sha256(secret).hexdigest()[:8]
    return {name: f"{of_key}-{_tag(secret, name, value)}" for name, value in values.items()}


def _tag(key: bytes, name: str, value: str) -> str:
    """HMAC that is too short to identify a value, and uses a key that no reader of the run has."""
    text = os.fsencode(name) + b"\0" + os.fsencode(value)
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:6]


def same_secret(a: str, b: str) -> bool | None:
    """Whether two fingerprints are of equal values; None if they are not comparable."""
    (key, dash, _), (other_key, _, _) = a.partition("-"), b.partition("-")
    return a == b if dash and key == other_key else None


def key(folder: Path, make: bool = False) -> bytes | None:
    """Read the key of a state directory, created before if missing and `make`; None if it is not usable."""
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
    """Create the key file atomically; of two concurrent launches the first one's key stays."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        os.link(temporary, path)
    with contextlib.suppress(OSError):
        temporary.unlink()
