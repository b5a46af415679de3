"""Names of a run's log files."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from msgspec import Struct

# A file ID is the path relative to the run directory: `node-0/attempt-001/rank-3.err`, NCCL's own log after live
# toggles `rank-3.1.nccl`, `rank-3.2.nccl`, a managed command's `command.out`, and `runner.log` and `agent.log`.
# In a run on several nodes a node's agent log is `node-2/agent.log`; `agent.log` and `launch.log` are the hub's.


STREAMS = ("out", "err", "nccl")
"""Streams of a rank: its stdout, its stderr, and NCCL's own file."""

_IN_ATTEMPT = re.compile(
    r"node-(?P<node>[0-9]{1,9})/attempt-(?P<attempt>[0-9]{3,9})/"
    r"(?:rank-(?P<rank>[0-9]{1,9})(?:\.(?P<part>[0-9]{1,9})(?=\.nccl))?\.(?P<stream>out|err|nccl)|command\.(?P<of_command>out|err))"
)
_OF_SERVICE = re.compile(r"(?:node-(?P<node>[0-9]{1,9})/)?(?P<service>runner|agent|launch)\.log")


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


def file_id(node: int, attempt: int, rank: int, stream: str) -> str:
    """Return the ID of one of a rank's STREAMS."""
    return f"{attempt_dir(node, attempt)}/rank-{rank}.{stream}"


def command_id(attempt: int, stream: str, node: int = 0) -> str:
    """Return the ID of a managed command's stdout ("out") or stderr ("err")."""
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
    if folder.is_symlink() and folder.name.startswith(("node-", "attempt-")):
        return []
    try:
        return list(folder.iterdir())
    except OSError:
        return []
