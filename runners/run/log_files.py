"""Log files of a run: names and paths, and notifications of growth by inotify(7)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

# -----------------------------------------------------------------------------------------------------------
# Notifications of writes in a folder by inotify(7). Each folder reports once and then stays silent until the next
# call of `listen`, so a rank that writes a flood costs no more than a rank that writes a line. inotify reports only
# writes of this machine, not of other nodes on a shared file system.


MODIFIED, MOVED_HERE, CREATED, ONE_SHOT = 0x2, 0x80, 0x100, 0x80000000
"""IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_ONESHOT of linux/inotify.h."""
_WRITTEN = MODIFIED | MOVED_HERE | CREATED
_READ = 64 << 10
_HEAD = struct.Struct("iIII")
"""struct inotify_event: watch, mask, cookie, length of the name that follows."""


class Notifier:
    """An inotify instance."""

    def __init__(self) -> None:
        """Open an inotify instance; raise OSError if the kernel refuses: there is a limit per user."""
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._add, create = libc.inotify_add_watch, libc.inotify_init1
        except AttributeError:
            raise OSError("no inotify in this C library") from None
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self.fd: int = create(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable after a write in a watched folder."""
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def listen(self, folders: Iterable[str]) -> None:
        """Watch each of these folders for its next write. Missing folders are skipped."""
        for folder in folders:
            self._add(self.fd, os.fsencode(folder), _WRITTEN | ONE_SHOT)

    def heard(self) -> bool:
        """Return whether a write was reported since the last call. The end of a watch does not count."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return False
        at, masks = 0, 0
        while at < len(data):
            _, mask, _, length = _HEAD.unpack_from(data, at)
            masks |= mask
            at += _HEAD.size + length
        return bool(masks & _WRITTEN)

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)


# -----------------------------------------------------------------------------------------------------------
# Names of a run's log files, and the only function that opens one.
# A file ID is the path relative to the run directory: `node-0/attempt-001/rank-3.err`, NCCL's own log after live
# toggles `rank-3.1.nccl`, `rank-3.2.nccl`, a managed command's `command.out`, and `runner.log` and `agent.log`.
# In a run on several nodes a node's agent log is `node-2/agent.log`; `agent.log` and `launch.log` are the hub's.


STREAMS = ("out", "err", "nccl")
"""Streams of a rank: its stdout, its stderr, and NCCL's own file."""

_IN_ATTEMPT = re.compile(
    r"node-(?P<node>\d+)/attempt-(?P<attempt>\d{3,})/"
    r"(?:rank-(?P<rank>\d+)(?:\.(?P<part>\d+)(?=\.nccl))?\.(?P<stream>out|err|nccl)|command\.(?P<of_command>out|err))"
)
_OF_SERVICE = re.compile(r"(?:node-(?P<node>\d+)/)?(?P<service>runner|agent|launch)\.log")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class LogError(Exception):
    """A log cannot be read. The text is one sentence with the reason and the remedy."""


class LogFile(Struct, frozen=True):
    """A parsed file ID."""

    id: str
    """Path relative to the run directory."""
    source: str
    """The writer: "rank", "command", "runner", "agent" or "launch"."""
    stream: str
    """"out", "err", "nccl"; "log" for runner and agent."""
    node: int = 0
    attempt: int | None = None
    """Number from 1; None for runner, agent and launch, which outlive attempts."""
    rank: int | None = None
    part: int = 0
    """Number of live toggles of NCCL_DEBUG before it; 0 for every other stream."""

    @property
    def label(self) -> str:
        """The writer for display: "rank 3", "command", "runner", "agent"."""
        return self.source if self.rank is None else f"rank {self.rank}"

    @property
    def order(self) -> tuple[int, int, str, int, int, int]:
        """Sorts by attempt, node, source, rank, stream and part; runner and agent come first."""
        rank = -1 if self.rank is None else self.rank
        stream = STREAMS.index(self.stream) if self.stream in STREAMS else -1
        return (self.attempt or 0, self.node, self.source, rank, stream, self.part)


def attempt_dir(node: int, attempt: int) -> str:
    """Return the directory of one attempt on one node, relative to the run directory."""
    return f"node-{node}/attempt-{attempt:03d}"


def silence(run_dir: Path, node: int, attempt: int, rank: int, now: float) -> int | None:
    """Return the seconds since a rank wrote to stdout or stderr; None if it has written nothing."""
    newest = None
    for stream in ("out", "err"):
        try:
            status = os.stat(run_dir / file_id(node, attempt, rank, stream), follow_symlinks=False)
        except OSError:
            continue
        if status.st_size:
            newest = max(newest or 0.0, status.st_mtime)
    return None if newest is None else max(0, int(now - newest))


def file_id(node: int, attempt: int, rank: int, stream: str, part: int = 0) -> str:
    """Return the ID of one stream of one rank. Raises ValueError for an unknown stream and for parts outside nccl."""
    if stream not in STREAMS or (part and stream != "nccl") or part < 0:
        raise ValueError(
            f"no log stream {stream!r} part {part}: streams are out, err, nccl; only nccl has parts"
        )
    middle = f".{part}" if part else ""
    return f"{attempt_dir(node, attempt)}/rank-{rank}{middle}.{stream}"


def command_id(attempt: int, stream: str, node: int = 0) -> str:
    """Return the ID of a managed command's stdout ("out") or stderr ("err"). Raises ValueError for another stream."""
    if stream not in ("out", "err"):
        raise ValueError(f"a command has no stream {stream!r}: out or err")
    return f"{attempt_dir(node, attempt)}/command.{stream}"


def parse_file_id(text: str) -> LogFile | None:
    """Parse a file ID; None if it is not a log file of a run."""
    if match := _OF_SERVICE.fullmatch(text):
        return LogFile(text, match["service"], "log", int(match["node"] or 0))
    if not (match := _IN_ATTEMPT.fullmatch(text)):
        return None
    node, attempt = int(match["node"]), int(match["attempt"])
    if match["of_command"]:
        return LogFile(text, "command", match["of_command"], node, attempt)
    return LogFile(
        text, "rank", match["stream"], node, attempt, int(match["rank"]), int(match["part"] or 0)
    )


def whole_id(file: str, node: int) -> str:
    """Convert an ID in one node's part into the ID in the run: `agent.log` of node 2 is `node-2/agent.log`."""
    return f"node-{node}/{file}" if "/" not in file else file


def part_of(file: str) -> tuple[int, str] | None:
    """Convert an ID in a run into the node and the ID in its part; None for a log of the hub or an invalid ID."""
    log = parse_file_id(file)
    if log is None or "/" not in file:
        return None
    return log.node, file.rpartition("/")[2] if log.stream == "log" else file


def list_files(run_dir: str | Path) -> list[LogFile]:
    """Return every existing log file, sorted by attempt, node and rank; [] if the run directory does not exist."""
    root = Path(run_dir)
    names = [path.name for path in _entries(root)]
    for node in _folders(root, "node-"):
        names += [f"{node.name}/{path.name}" for path in _entries(node)]
        for attempt in _folders(node, "attempt-"):
            names += [f"{node.name}/{attempt.name}/{path.name}" for path in _entries(attempt)]
    files = (parse_file_id(name) for name in names)
    return sorted((file for file in files if file), key=lambda file: file.order)


def _folders(folder: Path, prefix: str) -> list[Path]:
    return [path for path in _entries(folder) if path.name.startswith(prefix)]


def file_sizes(run_dir: str | Path) -> dict[str, int]:
    """Return the bytes of every existing log file, by file ID. Only regular files count."""
    sizes = {}
    for file in list_files(run_dir):
        with contextlib.suppress(OSError):
            about = (Path(run_dir) / file.id).lstat()
            if stat.S_ISREG(about.st_mode):
                sizes[file.id] = about.st_size
    return sizes


def _entries(folder: Path) -> list[Path]:
    """Return a folder's entries; [] if it is missing, unreadable, or a link."""
    try:
        return (
            []
            if folder.is_symlink() and folder.name.startswith(("node-", "attempt-"))
            else list(folder.iterdir())
        )
    except OSError:
        return []


@contextlib.contextmanager
def opened(run_dir: str | Path, file: str) -> Iterator[int]:
    """Yield a read-only descriptor of the regular file `file` under `run_dir`, and close it at the end.

    Each path component is opened relative to the one before with O_NOFOLLOW. So no name leads out of the run
    directory, even if another process changes it at the same time. Raises LogError.
    """
    parts = file.split("/")
    if "\0" in file or any(part in ("", ".", "..") for part in parts):
        raise LogError(
            f"{file!r} is not a log of this run: give a path below the run directory, without '..'"
        )
    try:
        descriptor = _open_below(str(run_dir), parts)
    except OSError as error:
        raise LogError(_why(file, error)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LogError(f"{file} is not a regular file: distui reads only plain log files")
        yield descriptor
    finally:
        os.close(descriptor)


def _open_below(run_dir: str, parts: list[str]) -> int:
    at = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part, last in zip(parts, [False] * (len(parts) - 1) + [True], strict=True):
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer. Regular files ignore it.
            below = os.open(part, _OPEN | (os.O_NONBLOCK if last else os.O_DIRECTORY), dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def _why(file: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"{file} does not exist: nothing has been written there yet, or the run directory was cleaned"
        )
    if isinstance(error, PermissionError):
        return f"{file} cannot be read: it belongs to another user"
    # O_NOFOLLOW fails with ELOOP or ENOTDIR for a link.
    return f"{file} cannot be read: {(error.strerror or str(error)).lower()} (links are not followed)"


# -----------------------------------------------------------------------------------------------------------
# Growth of log files: a stat of the newest attempts' files, and a directory listing only if a file may be new.


SETTLED_S = 2.0
"""Seconds after a change while every poll lists the folder again, because directory timestamps are coarse."""


class _Folder:
    """One folder, listed again only while it changes."""

    def __init__(self, path: str, prefix: str) -> None:
        self.path = path
        self._prefix = prefix
        self._stamp = -1
        self._until = 0.0
        self.folders: list[str] = []
        """Names of its direct subfolders."""
        self._logs: list[tuple[str, str]] = []
        """ID and path of each log file directly in it."""

    def refresh(self, now: float) -> bool:
        """Update the content. Return False if the folder does not exist."""
        try:
            stamp = os.stat(self.path).st_mtime_ns
            if stamp != self._stamp:
                self._stamp, self._until = stamp, now + SETTLED_S
            elif now >= self._until:
                return True
            self._list()
        except OSError:
            self._stamp, self.folders, self._logs = -1, [], []
            return False
        return True

    def _list(self) -> None:
        with os.scandir(self.path) as scan:
            entries = list(scan)
        self.folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        self._logs = [
            (self._prefix + entry.name, entry.path)
            for entry in entries
            if entry.is_file(follow_symlinks=False) and parse_file_id(self._prefix + entry.name)
        ]

    def sizes(self) -> dict[str, tuple[int, float]]:
        """Return bytes and Unix time of the last write of its log files, by ID."""
        sizes = {}
        for name, path in self._logs:
            try:
                about = os.stat(path, follow_symlinks=False)
            except OSError:
                continue
            sizes[name] = (about.st_size, about.st_mtime)
        return sizes


GONE = -1
"""Replaces the size of a log file that was renamed or removed."""


def keep_sizes(sizes: dict[str, int], changed: Mapping[str, int]) -> None:
    """Update the sizes of all files in bytes, by ID. GONE removes a file."""
    sizes.update(changed)
    for name in [name for name, size in changed.items() if size == GONE]:
        del sizes[name]


class GrowthWatch:
    """Sizes of the log files of a run directory, from one `poll` to the next.

    Watches the two newest attempts of each node (the previous attempt still writes while it ends), and
    `runner.log` and `agent.log`. `node` excludes the other nodes of a shared file system.
    """

    def __init__(self, run_dir: str | Path, node: int | None = None) -> None:
        self.run_dir = str(run_dir)
        self.sizes: dict[str, int] = {}
        """Bytes by file ID, of every file seen so far."""
        self.written: dict[str, float] = {}
        """Modification times (Unix, file system's clock) of the files that the last `poll` returned."""
        self._node = None if node is None else f"node-{node}"
        self._folders: dict[str, _Folder] = {}

    @property
    def folders(self) -> tuple[str, ...]:
        """Paths of the folders that the last `poll` listed, where new files may appear."""
        return tuple(folder.path for folder in self._folders.values())

    def poll(self, now: float) -> dict[str, int]:
        """Return the sizes in bytes that changed since the last call, by file ID. `now`: monotonic seconds.

        A smaller size (a truncated file) is also a change. GONE marks a renamed or removed file.
        Return nothing if the run directory does not exist.
        """
        changed: dict[str, int] = {}
        self.written = {}
        scanned = self._scan(now)
        for name, (size, written) in scanned.items():
            if self.sizes.get(name) != size:
                changed[name], self.written[name] = size, written
        if not changed.keys() <= self.sizes.keys():
            changed |= dict.fromkeys(self._vanished(scanned), GONE)
        keep_sizes(self.sizes, changed)
        return changed

    def _vanished(self, scanned: Collection[str]) -> list[str]:
        """Return the files that no longer exist in the folders that were listed."""
        folders = self._folders
        return [
            name for name in self.sizes if name not in scanned and name[: name.rfind("/") + 1] in folders
        ]

    def _scan(self, now: float) -> dict[str, tuple[int, float]]:
        seen = self._refreshed("", now)
        for node in self._below(seen[-1:], "node-"):
            if self._node not in (None, node):
                continue
            below = self._refreshed(f"{node}/", now)
            seen += below
            for attempt in sorted(self._below(below, "attempt-"), key=_number)[-2:]:
                seen += self._refreshed(f"{node}/{attempt}/", now)
        self._folders = {prefix: folder for prefix, folder in self._folders.items() if folder in seen}
        sizes: dict[str, tuple[int, float]] = {}
        for folder in seen:
            sizes |= folder.sizes()
        return sizes

    def _refreshed(self, prefix: str, now: float) -> list[_Folder]:
        """Return the folder of this ID prefix, or nothing if it does not exist."""
        folder = self._folders.get(prefix)
        if folder is None:
            path = f"{self.run_dir}/{prefix}".rstrip("/")
            folder = self._folders[prefix] = _Folder(path, prefix)
        return [folder] if folder.refresh(now) else []

    @staticmethod
    def _below(folders: list[_Folder], start: str) -> list[str]:
        return [name for folder in folders for name in folder.folders if name.startswith(start)]


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1
