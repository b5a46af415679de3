"""A profile of several ranks at the same steps: agree on the steps, wait, read, and fetch the traces to the user.

The server of the viewer coordinates: the agent of a run on one node, or the hub, which asks each node's agent.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct, structs

from ...presets.trusted_files import private_folder
from ..run import file_io
from ..run.command_executor import CommandRefused, Reply
from ..run.formatting import spans_text
from ..run.model import Clause, CommandDone, Profile
from ..run.wire.client import new_id
from .traces import TraceSummary

MOST_STEPS = 100
"""Equal to the limit in inrank/rank_profile.py, which runs in another Python."""
MOST_RANKS = 64
"""Maximum ranks of one profile: each writes megabytes."""
LEAD_S = 0.5
"""Minimum seconds between the foremost rank and the first recorded step: every rank must get the request before."""
LEAD_STEPS = 4
"""Minimum lead in steps; torch's profiler warms up during the last of them."""
MOST_LEAD = 100_000
TRIES = 3
LEAST_WAIT_S = 120.0
PIECE = 2 << 20
"""Bytes of a trace in one answer."""
MOST_FETCHED = 1 << 30
"""Maximum bytes of one compressed trace that is fetched from a node."""
FOLDER = "profiles"
TRACE_FILE = re.compile(r"node-\d{1,6}/profiles/[0-9A-Za-z-]{1,64}/rank-\d{1,6}\.json\.gz")
"""File ids that "read" may name."""
UNDER_WAY = "a profile of this run is under way: profile again once it is over"
FASTER = "the ranks make steps faster than they can be asked for a profile of the same steps: profile fewer ranks"


class RankTrace(Struct, frozen=True, omit_defaults=True):
    file: str
    """File id of the trace in the run directory of its node."""
    size: int
    """Bytes."""
    summary: TraceSummary | None = None
    problem: str = ""
    """Reason for a missing summary."""


class _Armed(Struct):
    count: int = 0
    step_s: float | None = None
    late: int | None = None


Ask = Callable[[Profile], Awaitable[Reply]]
"""Request one part of a profile from all its ranks. Raises CommandRefused."""


class Turn:
    """Allows only one profile of a run at a time."""

    def __init__(self) -> None:
        self._taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take the turn. Raises CommandRefused if another profile has it."""
        if self._taken:
            raise CommandRefused(UNDER_WAY)
        self._taken = True
        try:
            yield
        finally:
            self._taken = False


def refusal(command: Profile, ranks: int) -> str:
    """Why a profile of this number of ranks is refused; "" if it is not."""
    if not 1 <= command.steps <= MOST_STEPS:
        return f"a profile has 1 to {MOST_STEPS} steps, not {command.steps}"
    if ranks > MOST_RANKS:
        return f"a profile of {ranks} ranks is too much: name up to {MOST_RANKS} of them"
    return ""


async def coordinated(command: Profile, ranks: int, ask: Ask) -> Reply:
    """Let `ranks` ranks record the same steps, and wait for their traces. Raises CommandRefused."""
    if why := refusal(command, ranks):
        raise CommandRefused(why)
    # equal on every node, and unique to this profile
    folder = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{new_id()[:6]}"
    ready = _armed((await ask(structs.replace(command, part="ready"))).data)
    pace = max((each.step_s or 0.0 for each in ready), default=0.0)
    foremost, lead_s = max((each.count for each in ready), default=0), LEAD_S
    for _ in range(TRIES):
        ahead = _lead_steps(lead_s, pace)
        part = structs.replace(command, part="arm", first=foremost + ahead, folder=folder)
        armed = await _arm(part, ask)
        if all(each.late is None for each in armed):
            seconds = command.seconds
            if seconds is None:
                seconds = max(LEAST_WAIT_S, 10.0 * pace * (ahead + command.steps))
            return await ask(structs.replace(part, part="wait", seconds=seconds))
        await _cancelled(part, ask)
        foremost, lead_s = max(max(each.count, each.late or 0) for each in armed), lead_s * 4
    raise CommandRefused(FASTER)


def _lead_steps(lead_s: float, pace: float) -> int:
    """Return the steps between the foremost rank and the first recorded one. `pace`: seconds per step; 0: unknown."""
    return LEAD_STEPS if pace <= 0 else LEAD_STEPS + min(MOST_LEAD, math.ceil(lead_s / pace))


async def _arm(part: Profile, ask: Ask) -> list[_Armed]:
    """Ask the ranks to record. Raises CommandRefused if one refuses; then none records."""
    try:
        return _armed((await ask(part)).data)
    except CommandRefused:
        await _cancelled(part, ask)
        raise


async def _cancelled(part: Profile, ask: Ask) -> None:
    try:
        await ask(structs.replace(part, part="cancel"))
    except CommandRefused:
        pass  # a rank that has ended records nothing


def _armed(data: Mapping[str, str]) -> list[_Armed]:
    """Decode the ranks' answers. Raises CommandRefused."""
    try:
        return [msgspec.json.decode(text, type=_Armed) for text in data.values()]
    except msgspec.MsgspecError as error:
        raise CommandRefused(f"what a rank answered cannot be read: {error}") from None


def piece(run_dir: Path, file: str, offset: int) -> bytes:
    """Return a piece of a trace; b"" at its end. Raises CommandRefused."""
    if not TRACE_FILE.fullmatch(file) or offset < 0:
        raise CommandRefused(f"{file!r} is no trace of a profile")
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
                raise CommandRefused(f"{trace.file!r} is no trace of a profile")
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
