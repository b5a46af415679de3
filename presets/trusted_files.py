"""Decide which files may configure distui: ownership checks, and `distui trust`.

A configuration file that was found, not named by the user, is read only if no other user can have written it. The file
and every folder of its path must belong to the user or to root, and no other user may have write permission. A sticky
folder such as /tmp is accepted if the entry in it belongs to the user or to root. Folders above the user's home
directory are not checked for files below it (as in sshd). Group write permission is accepted if the group is private:
it has the user's name, no other member, and no access list (as in Debian's ssh). The path is walked name by name. Each
folder and link stays open while it is checked, so that it cannot be replaced between the check and the read.

Files that the user trusts despite such permissions are listed in `trusted.json`, next to the presets, with a digest of
their content. A file whose content changes is ignored again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import json
import os
import pwd
import shlex
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .base_dirs import alone, config_dir
from .finding import PresetError

MOST_BYTES = 1 << 20
"""Size limit of a configuration file. Files that people write are smaller."""

MOST_LINKS = 40
_PATH: int | None = getattr(os, "O_PATH", None)
"""None if the system has no O_PATH (macOS).

Files and folders are then opened for reading, and links are read by name.
"""
_HELD = (
    (os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY if _PATH is None else _PATH) | os.O_NOFOLLOW | os.O_CLOEXEC
)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class PassedOver(Exception):
    """A file is ignored. The text is one sentence with path, owner, reason and remedy."""


class NoFile(Exception):
    """The path is not a regular file. The text ends a sentence about the path: "it is a folder, …"."""


class TooLarge(NoFile):
    """The file is larger than MOST_BYTES. The text ends a sentence that begins with the path."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why another user may have written a file."""

    why: str
    loose: str = ""
    """The path of the user that is writable for others, if `chmod` fixes the problem."""


@dataclass(slots=True)
class _Way:
    """The state of a walk along a path."""

    names: list[str]
    """Names still to walk, the next one last."""
    at: str = "/"
    held: int = -1
    """Descriptor of `at`."""
    status: os.stat_result = field(default_factory=lambda: os.stat("/"))
    links: int = 0
    fixed: Doubt | None = None
    """A doubt about a link. Reaching the home directory does not clear it."""
    doubt: Doubt | None = None
    error: OSError | None = None
    """The error that ended the walk."""


def name_of(path: str | Path) -> str:
    """Return the name of a trusted file: its absolute path with only the folder resolved."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def digest(data: bytes) -> str:
    """Return the hash that identifies a trusted content."""
    import hashlib  # slow to import, and few users trust a file

    return hashlib.sha256(data).hexdigest()


def read(path: Path, trusted: Mapping[str, str]) -> bytes:
    """Return the content of a file that was found.

    `trusted` maps `name_of` a file to the `digest` of its trusted content. An untrusted file is not opened. Raises
    FileNotFoundError, PassedOver, NoFile, and OSError if a file of the user cannot be read.
    """
    expected = trusted.get(name_of(path)) if trusted else None
    way = walk(path, through=expected is not None)
    try:
        if isinstance(way.error, FileNotFoundError) and way.fixed is None:
            raise way.error
        doubt = way.fixed or way.doubt
        if doubt is not None and expected is None:
            raise PassedOver(_sentence(path, doubt))
        data = _content(way) if doubt is None else _doubtful_content(way, doubt, path)
    finally:
        os.close(way.held)
    if doubt is not None and digest(data) != expected:
        raise PassedOver(_sentence(path, Doubt(f"it has changed since you trusted it, and {doubt.why}")))
    return data


def _doubtful_content(way: _Way, doubt: Doubt, path: Path) -> bytes:
    try:
        return _content(way)
    except (OSError, NoFile) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PassedOver(f"{path} is passed over: {doubt.why}, and it cannot be read ({why}).") from None


def content(path: Path) -> bytes:
    """Return the content of a file that the user named. Raises OSError and NoFile."""
    way = walk(path, through=True)
    try:
        return _content(way)
    finally:
        os.close(way.held)


def _sentence(path: Path, doubt: Doubt) -> str:
    trust = f"`distui trust {shlex.quote(str(path))}`"
    how = f"`chmod go-w {shlex.quote(doubt.loose)}`, or {trust}" if doubt.loose else trust
    return f"{path} is passed over: {doubt.why}. To use it as it is now: {how}."


def walk(path: Path, through: bool) -> _Way:
    """Walk to a file. The caller closes `held`. `through`: also follow links that belong to other users."""
    way = _Way(_parts(os.path.abspath(path)), held=os.open("/", _HELD))
    way.status = os.fstat(way.held)
    try:
        while way.names and (through or way.fixed is None):
            _step(way)
        way.doubt = way.doubt or _of_file(way)
    except OSError as error:
        way.error = error
    return way


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part]


def _step(way: _Way) -> None:
    """Walk to the next name, and check the folder that contains it. Raises OSError."""
    name = way.names.pop()
    held, status = _entry(way.held, name)
    way.doubt = way.doubt or _of_folder(way, status)
    if stat.S_ISLNK(status.st_mode):
        _follow(way, name, held, status)
        return
    os.close(way.held)
    way.at, way.held, way.status = os.path.join(way.at, name), held, status
    if status.st_uid == os.geteuid() and (status.st_dev, status.st_ino) == _home():
        way.doubt = None


def _entry(folder: int, name: str) -> tuple[int, os.stat_result]:
    """Open an entry of a folder, and return its descriptor and status. Raises OSError.

    Without O_PATH, the descriptor of a link or special file is a duplicate of the folder's.
    """
    if _PATH is not None:
        held = os.open(name, _HELD, dir_fd=folder)
        return held, os.fstat(held)
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return os.dup(folder), status
    held = os.open(name, _HELD, dir_fd=folder)
    opened = os.fstat(held)
    if not os.path.samestat(status, opened):
        os.close(held)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return held, opened


def _follow(way: _Way, name: str, held: int, status: os.stat_result) -> None:
    """Put the names of a link's target before the names still to walk. Raises OSError."""
    try:
        target = os.readlink(name, dir_fd=way.held) if _PATH is None else os.readlink("", dir_fd=held)
    finally:
        os.close(held)
    way.links += 1
    if way.links > MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if status.st_uid not in _ours():
        way.doubt = way.doubt or Doubt(
            f"the link {os.path.join(way.at, name)} belongs to {user(status.st_uid)}"
        )
    way.fixed, way.doubt = way.fixed or way.doubt, None
    way.names += _parts(target)
    if target.startswith("/"):
        os.close(way.held)
        way.at, way.held = "/", os.open("/", _HELD)
        way.status = os.fstat(way.held)


def _ours() -> tuple[int, int]:
    return 0, os.geteuid()


def _of_folder(way: _Way, entry: os.stat_result) -> Doubt | None:
    """Return the problem with the current folder as the parent of `entry`, which `walk` checks separately."""
    if way.status.st_uid not in _ours():
        return Doubt(f"its folder {way.at} belongs to {user(way.status.st_uid)}")
    who = _writers(way)
    if not who:
        return None
    if way.status.st_mode & stat.S_ISVTX:
        # Any user may have made a hard link.
        second = stat.S_ISREG(entry.st_mode) and entry.st_nlink > 1
        return Doubt(f"it is a second name of a file, and {who} may write to {way.at}") if second else None
    own = way.at if way.status.st_uid == os.geteuid() != 0 else ""  # the user cannot chmod a folder of root
    return Doubt(f"{who} may write to its folder {way.at}", own)


def _of_file(way: _Way) -> Doubt | None:
    """Return why another user may have written the file at the end of the walk."""
    if way.names:
        return None
    if way.status.st_uid not in _ours():
        return Doubt(f"it belongs to {user(way.status.st_uid)}")
    who = _writers(way) if stat.S_ISREG(way.status.st_mode) else ""
    own = way.at if way.status.st_uid == os.geteuid() else ""
    return Doubt(f"{who} may write to it", own) if who else None


def _writers(way: _Way) -> str:
    """Return who else may write to the current file or folder, or "" for no other user."""
    if way.status.st_mode & stat.S_IWOTH:
        return "everybody"
    if not way.status.st_mode & stat.S_IWGRP or (_private(way.status.st_gid) and not _listed(way.held)):
        return ""
    return f"group {group(way.status.st_gid)}"


def _listed(held: int) -> bool:
    """Return True if an access list may grant more than the mode shows, or if this system cannot read access lists."""
    if not hasattr(os, "getxattr"):
        return True
    with contextlib.suppress(OSError):
        return bool(os.getxattr(f"/proc/self/fd/{held}", "system.posix_acl_access"))
    return False


def _private(gid: int) -> bool:
    """Return True if a group is private: it has the user's name and no other member. root's group never is."""
    with contextlib.suppress(KeyError):
        me, them = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        alone = set(them.gr_mem) <= {me.pw_name}
        return bool(me.pw_uid and me.pw_gid == gid and them.gr_name == me.pw_name and alone)
    return False


@functools.cache
def _home() -> tuple[int, int] | None:
    """Return device and inode of the user's home directory in the password database."""
    with contextlib.suppress(KeyError, OSError):
        status = os.stat(pwd.getpwuid(os.geteuid()).pw_dir)
        return status.st_dev, status.st_ino
    return None


def user(uid: int) -> str:
    """Return the name of a user, or "user 1234" for an ID without a name on this machine."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"


def group(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def _content(way: _Way) -> bytes:
    """Return the content of the regular file at the end of the walk. Raises OSError and NoFile."""
    if way.error is not None:
        raise way.error
    mode = way.status.st_mode
    if not stat.S_ISREG(mode):
        kind = next((text for fits, text in _KINDS if fits(mode)), "no file")
        raise NoFile(f"it is {kind}, and must be a regular file")
    size = way.status.st_size
    if size <= MOST_BYTES:
        with open(_readable(way.held), "rb", buffering=0) as file:
            data = b""
            while len(data) <= MOST_BYTES and (part := os.read(file.fileno(), MOST_BYTES + 1 - len(data))):
                data += part
        size = len(data)
    if size > MOST_BYTES:
        raise TooLarge(f"has {size} bytes, and {MOST_BYTES} are the most")
    return data


def _readable(held: int) -> int:
    """Return a descriptor for reading a regular file that is held open. Raises OSError."""
    if _PATH is None:
        return os.dup(held)
    # Non-blocking, because a file of /proc or /sys that looks regular may never deliver data or never end.
    return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class Trusted:
    path: str
    sha256: str
    since: float
    """Unix time."""


def file_of(env: Mapping[str, str]) -> Path:
    """Return the path of the list of trusted files."""
    return config_dir(env) / "trusted.json"


def entries(env: Mapping[str, str]) -> tuple[Trusted, ...]:
    """Return every trusted file. Raises PresetError if the list cannot be read or another user can write it."""
    file = file_of(env)
    try:
        document = json.loads(read(file, {}))
        return tuple(
            Trusted(str(path), str(entry["sha256"]), float(entry["since"]))
            for path, entry in document["files"].items()
        )
    except FileNotFoundError:
        return ()
    except PassedOver as error:
        raise PresetError(str(error).partition(". To use it")[0]) from None
    except (OSError, NoFile) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PresetError(f"{file} cannot be read ({why}): remove it, and trust your files again") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PresetError(
            f"{file} was not written by distui: remove it, and trust your files again"
        ) from None


def add(env: Mapping[str, str], path: Path, data: bytes) -> Trusted:
    """Trust `data` at `path`. Raises PresetError and OSError."""
    added = Trusted(name_of(path), digest(data), time.time())
    with alone(config_dir(env), "trusted.lock"):
        _write(env, [*(entry for entry in entries(env) if entry.path != added.path), added])
    return added


def remove(env: Mapping[str, str], path: Path) -> bool:
    """Remove `path` from the list. Return True if it was trusted. Raises PresetError and OSError."""
    name = name_of(path)
    with alone(config_dir(env), "trusted.lock"):
        before = entries(env)
        left = [entry for entry in before if entry.path != name]
        if len(left) == len(before):
            return False
        _write(env, left)
    return True


def _write(env: Mapping[str, str], files: list[Trusted]) -> None:
    """Write the list atomically, readable only by its owner."""
    import tempfile

    document = {"files": {entry.path: {"sha256": entry.sha256, "since": entry.since} for entry in files}}
    path = file_of(env)
    number, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)  # 0600
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(json.dumps(document, indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
