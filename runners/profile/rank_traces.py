"""The traces of a profile: their names, the transfer from the nodes to the user, and a title."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ...presets.base_dirs import private_folder
from ..run import file_io
from ..run.command_executor import CommandRefused, Reply
from ..run.commands import Profile
from ..run.formatting import spans_text
from ..run.model import Clause, CommandDone
from ..run.wire.client import new_id
from .trace_summary import TraceSummary

PIECE = 2 << 20
"""Bytes of a trace in one answer."""
MOST_FETCHED = 1 << 30
"""Maximum bytes of one compressed trace that is fetched from a node."""
FOLDER = "profiles"
TRACE_FILE = re.compile(r"node-\d{1,6}/profiles/[0-9A-Za-z-]{1,64}/rank-\d{1,6}\.json\.gz")
"""File ids that "read" may name."""


class RankTrace(Struct, frozen=True, omit_defaults=True):
    file: str
    """File id of the trace in the run directory of its node."""
    size: int
    """Bytes."""
    summary: TraceSummary | None = None
    problem: str = ""
    """Reason for a missing summary."""


def piece(run_dir: Path, file: str, offset: int) -> bytes:
    """Return a piece of a trace; b"" at its end. Raises CommandRefused."""
    if not TRACE_FILE.fullmatch(file) or offset < 0:
        raise CommandRefused(f"{file!r} is not a trace of a profile")
    try:
        with file_io.opened(run_dir / file) as trace:
            trace.seek(offset)
            return trace.read(PIECE)
    except (file_io.FileError, OSError) as error:
        raise CommandRefused(str(error)) from None


def traces(done: CommandDone) -> dict[int, RankTrace]:
    """Traces in a profile's answer by rank, without unreadable ones."""
    answered: dict[int, RankTrace] = {}
    for rank, text in done.data.items():
        try:
            answered[int(rank)] = msgspec.json.decode(text, type=RankTrace)
        except (msgspec.MsgspecError, ValueError):
            continue
    return dict(sorted(answered.items()))


class Fetched(Struct, frozen=True):
    folder: str
    """Folder on this machine; "" if no trace was fetched."""
    missing: tuple[tuple[int, str], ...] = ()
    """Ranks without a fetched trace, and the reasons."""


Send = Callable[[Profile], Awaitable[CommandDone]]
"""Send a command to the run and return its answer. Raises LinkError."""


def folder_of(run_dir: Path, answered: Mapping[int, RankTrace]) -> Path:
    """Folder in a run directory for the traces of several nodes."""
    names = [trace.file.split("/")[2] for trace in answered.values() if TRACE_FILE.fullmatch(trace.file)]
    return run_dir / FOLDER / (names[0] if names else "none")


def here(run_dir: Path, answered: Mapping[int, RankTrace]) -> Fetched:
    """Traces of a run on one node, which are already on this machine."""
    paths = [run_dir / trace.file for trace in answered.values() if TRACE_FILE.fullmatch(trace.file)]
    return Fetched(str(paths[0].parent) if paths else "")


async def fetched(send: Send, answered: Mapping[int, RankTrace], folder: Path) -> Fetched:
    """Copy the traces of a profile into a folder on this machine. Raises LinkError."""
    missing: list[tuple[int, str]] = []
    for rank, trace in answered.items():
        try:
            if not TRACE_FILE.fullmatch(trace.file):
                raise CommandRefused(f"{trace.file!r} is not a trace of a profile")
            private_folder(folder)
            await _fetch(send, rank, trace.file, folder / f"rank-{rank}.json.gz")
        except CommandRefused as error:
            missing.append((rank, str(error)))
        except OSError as error:
            missing.append((rank, f"{folder} cannot be written: {error.strerror}"))
    return Fetched(str(folder) if len(missing) < len(answered) else "", tuple(missing))


async def _fetch(send: Send, rank: int, file: str, path: Path) -> None:
    """Fetch one trace atomically. Raises LinkError, CommandRefused and OSError."""
    coming, offset = path.with_name(path.name + ".tmp"), 0
    try:
        with _created(coming) as out:
            while True:
                done = await send(Profile(new_id(), (rank,), part="read", folder=file, offset=offset))
                if not done.ok:
                    raise CommandRefused(done.text)
                data = _unpacked(done.data.get(str(rank), ""))
                out.write(data)
                offset += len(data)
                if not data:
                    break
                if offset > MOST_FETCHED:
                    raise CommandRefused(f"its trace has more than {MOST_FETCHED >> 20} MiB")
        os.replace(coming, path)
    finally:
        coming.unlink(missing_ok=True)


def _created(path: Path) -> BinaryIO:
    return open(path, "wb", opener=file_io.opener)


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CommandRefused("its trace did not come as it should") from None


def read_reply(run_dir: Path, command: Profile) -> Reply:
    """Answer the part "read". Raises CommandRefused."""
    if len(command.ranks) != 1:
        raise CommandRefused("a piece of a trace is of one rank")
    data = base64.b64encode(piece(run_dir, command.folder, command.offset)).decode()
    return Reply([Clause("a piece of a trace of {ranks}", command.ranks)], {str(command.ranks[0]): data})


def problems(answered: Mapping[int, RankTrace], got: Fetched) -> dict[int, str]:
    """Rank → why its trace has no summary, or is not on this machine."""
    unread = {rank: its.problem for rank, its in answered.items() if its.summary is None}
    return unread | {rank: f"its trace was not fetched: {why}" for rank, why in got.missing}


def title(answered: Mapping[int, RankTrace]) -> str:
    """Title of a profile: "Steps 120 to 122 of ranks 0, 1"."""
    steps = steps_text(answered)
    who = spans_text("rank", answered)
    return f"{steps.capitalize()} of {who}" if steps else f"Profile of {who}"


def steps_text(answered: Mapping[int, RankTrace]) -> str:
    """Return the recorded steps: "steps 120 to 122"; "" if unknown."""
    summaries = [trace.summary for trace in answered.values() if trace.summary is not None]
    firsts = {summary.first for summary in summaries if summary.first is not None}
    counts = {len(summary.steps) for summary in summaries}
    if len(firsts) != 1 or len(counts) != 1:
        return ""
    first, count = firsts.pop(), counts.pop()
    return f"step {first}" if count == 1 else f"steps {first} to {first + count - 1}"
