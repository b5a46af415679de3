"""Whose files count: XDG base directories, ownership of files found on the way, and `distui trust`.

A configuration file that was found, not named, counts only where nobody else can have written it: when the file, and
every folder on the way to it, belong to the user or to root, and nobody else may write them. A folder in which others
may write counts where it is sticky and what was reached in it is the user's or root's. Nothing above the user's home
directory is required of a file below it (as sshd does). A group may write where it is the user's own: of the same name,
nobody else in it, no further access list (as Debian's ssh does). The way is walked a name at a time, each folder and
each link held open while it is judged, so that nothing can be exchanged between the judgement and the reading.

Files that the user trusts although somebody else can write them stand in `trusted.json` beside the presets, as a content
at a path: a file that changes is passed over again, whoever changed it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import grp
import json
import os
import pwd
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .finding import PresetError

HOMES = {"XDG_STATE_HOME": "~/.local/state", "XDG_CONFIG_HOME": "~/.config", "XDG_CACHE_HOME": "~/.cache"}
"""The base directories, and where each is when its variable says nothing."""


def base(variable: str, env: Mapping[str, str]) -> Path:
    """One of HOMES. A relative path is ignored, as the specification says: it would be another in each folder."""
    given = Path(env.get(variable, "")).expanduser()
    return given if given.is_absolute() else Path(HOMES[variable]).expanduser()


def ignored(env: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is ignored."""
    return [
        f"{name}={env[name]} is no absolute path, so {HOMES[name]} is used"
        for name in HOMES
        if env.get(name) and not Path(env[name]).expanduser().is_absolute()
    ]


MOST_BYTES = 1 << 20
"""More than anybody writes by hand: a larger file is something else."""

MOST_LINKS = 40
_PATH: int | None = getattr(os, "O_PATH", None)
"""None where the system has none (macOS): files and folders are opened for reading there, links are read by name."""
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
    """A file does not count; the text is one sentence with path, owner, reason and remedy."""


class NoFile(Exception):
    """What has the name is no regular file; the text is the end of a sentence about it: "it is a folder, …"."""


class TooLarge(NoFile):
    """A file is larger than any that a person writes; the text ends a sentence that begins with the path."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a file may be somebody else's."""

    why: str
    loose: str = ""
    """What of the user's own others may write: `chmod` mends it."""


@dataclass(slots=True)
class _Way:
    """How far a path was walked."""

    names: list[str]
    """What is still to be walked, the next one last."""
    at: str = "/"
    held: int = -1
    """Descriptor of what `at` names."""
    status: os.stat_result = field(default_factory=lambda: os.stat("/"))
    links: int = 0
    fixed: Doubt | None = None
    """What no home directory further on takes back: it concerns a link."""
    doubt: Doubt | None = None
    error: OSError | None = None
    """Why it goes no further."""


def name_of(path: str | Path) -> str:
    """By what name a file is trusted: absolute, its folder resolved, itself not."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def digest(data: bytes) -> str:
    """What a trusted content is recognised by."""
    import hashlib  # slow to import, and few have trusted a file

    return hashlib.sha256(data).hexdigest()


def read(path: Path, trusted: Mapping[str, str]) -> bytes:
    """The content of a file that was found. `trusted`: `name_of` a file → `digest` of the content that the user trusts.

    A file that does not count is not opened. Raises FileNotFoundError, PassedOver, NoFile, and OSError for a file of
    the user's own that cannot be read.
    """
    expected = trusted.get(name_of(path)) if trusted else None
    way = walk(path, through=expected is not None)
    try:
        if way.error is not None and way.fixed is None and way.error.errno == errno.ENOENT:
            raise way.error
        doubt = way.fixed or way.doubt
        if doubt is not None and expected is None:
            raise PassedOver(_sentence(path, doubt))
        try:
            data = _content(way)
        except (OSError, NoFile) as error:
            if doubt is None:
                raise
            why = error.strerror if isinstance(error, OSError) else error
            raise PassedOver(
                f"{path} is passed over: {doubt.why}, and it cannot be read ({why})."
            ) from None
    finally:
        os.close(way.held)
    if doubt is not None and digest(data) != expected:
        raise PassedOver(_sentence(path, Doubt(f"it has changed since you trusted it, and {doubt.why}")))
    return data


def content(path: Path) -> bytes:
    """The content of a file that the user named. Raises OSError and NoFile."""
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
    """Walk to a file; `held` is the caller's to close. `through`: follow also a link of somebody else's."""
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
    """Go on to the next name, and judge the folder in which it stands. Raises OSError."""
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
    """What a folder has under a name; held is the folder itself where nothing else can be. Raises OSError."""
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
    """Put what a link says before what is still to be walked. Raises OSError."""
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
    """What is wrong with the folder that was reached, for something in it, which is judged by itself."""
    if way.status.st_uid not in _ours():
        return Doubt(f"its folder {way.at} belongs to {user(way.status.st_uid)}")
    who = _writers(way)
    if not who:
        return None
    if way.status.st_mode & stat.S_ISVTX:
        second = stat.S_ISREG(entry.st_mode) and entry.st_nlink > 1  # which anybody may have made
        return Doubt(f"it is a second name of a file, and {who} may write to {way.at}") if second else None
    own = (
        way.at if way.status.st_uid == os.geteuid() != 0 else ""
    )  # a folder of root's is no person's alone
    return Doubt(f"{who} may write to its folder {way.at}", own)


def _of_file(way: _Way) -> Doubt | None:
    """Why the file that was reached may be somebody else's."""
    if way.names:
        return None
    if way.status.st_uid not in _ours():
        return Doubt(f"it belongs to {user(way.status.st_uid)}")
    who = _writers(way) if stat.S_ISREG(way.status.st_mode) else ""
    own = way.at if way.status.st_uid == os.geteuid() else ""
    return Doubt(f"{who} may write to it", own) if who else None


def _writers(way: _Way) -> str:
    """Who else may write to what was reached; "" for nobody."""
    if way.status.st_mode & stat.S_IWOTH:
        return "everybody"
    if not way.status.st_mode & stat.S_IWGRP or (_private(way.status.st_gid) and not _listed(way.held)):
        return ""
    return f"group {group(way.status.st_gid)}"


def _listed(held: int) -> bool:
    """Whether an access list gives somebody else more than the mode says, or cannot be read on this system."""
    if not hasattr(os, "getxattr"):
        return True
    with contextlib.suppress(OSError):
        return bool(os.getxattr(f"/proc/self/fd/{held}", "system.posix_acl_access"))
    return False


def _private(gid: int) -> bool:
    """Whether a group is the user's own: of the same name, and nobody else in it. root's never is."""
    with contextlib.suppress(KeyError):
        me, them = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        alone = set(them.gr_mem) <= {me.pw_name}
        return bool(me.pw_uid and me.pw_gid == gid and them.gr_name == me.pw_name and alone)
    return False


@functools.cache
def _home() -> tuple[int, int] | None:
    """Device and inode of the home directory that the system has for this user."""
    with contextlib.suppress(KeyError, OSError):
        status = os.stat(pwd.getpwuid(os.geteuid()).pw_dir)
        return status.st_dev, status.st_ino
    return None


def user(uid: int) -> str:
    """ "mallory", or "user 1234" for one that this machine has no name for."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"


def group(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def _content(way: _Way) -> bytes:
    """What stands in the regular file that was reached. Raises OSError and NoFile."""
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
    """A descriptor from which a regular file that is held can be read. Raises OSError."""
    if _PATH is None:
        return os.dup(held)
    # Nothing waits here: also what looks like a file may have no end or no beginning (/proc, /sys).
    return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone whatever the umask. Raises OSError."""
    if path.is_dir():
        return
    private_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


@dataclass(frozen=True, slots=True)
class Trusted:
    path: str
    sha256: str
    since: float
    """Unix time."""


def config_dir(env: Mapping[str, str]) -> Path:
    """Where the user's own configuration lies, by XDG_CONFIG_HOME and HOME of `env`."""
    config = env.get("XDG_CONFIG_HOME", "")
    home = Path(config) if config.startswith("/") else Path(env.get("HOME") or Path.home()) / ".config"
    return home / "distui"


def file_of(env: Mapping[str, str]) -> Path:
    """Where the list is kept."""
    return config_dir(env) / "trusted.json"


def entries(env: Mapping[str, str]) -> tuple[Trusted, ...]:
    """Every file that is trusted. Raises PresetError when the list cannot be read, or is not the user's own."""
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
        raise PresetError(
            f"{file} cannot be read ({why}): remove it, and trust anew what you want"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PresetError(
            f"{file} is no list that distui wrote: remove it, and trust anew what you want"
        ) from None


def add(env: Mapping[str, str], path: Path, data: bytes) -> Trusted:
    """Trust `data` at `path` from now on. Raises PresetError and OSError."""
    added = Trusted(name_of(path), digest(data), time.time())
    with alone(config_dir(env), "trusted.lock"):
        _write(env, [*(entry for entry in entries(env) if entry.path != added.path), added])
    return added


def remove(env: Mapping[str, str], path: Path) -> bool:
    """Trust it no longer; whether it was trusted. Raises PresetError and OSError."""
    name = name_of(path)
    with alone(config_dir(env), "trusted.lock"):
        before = entries(env)
        left = [entry for entry in before if entry.path != name]
        if len(left) == len(before):
            return False
        _write(env, left)
    return True


@contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock `name` of a private folder, made when missing: changes are made one after the other.

    Raises OSError.
    """
    private_folder(folder)
    # A file that nobody else can open: whoever may read a folder may hold a lock on it for ever.
    held = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _write(env: Mapping[str, str], files: list[Trusted]) -> None:
    """Write the list, whole or not at all, readable by its owner alone."""
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
