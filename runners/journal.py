"""journal.jsonl: every event of a run in order; and the chronicle that writes and folds it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..presets.sanitize import clean_text
from ..presets.secrets import mask_value
from . import file_io
from .formatting import plural
from .inrank.control import FULL
from .model import (
    TELEMETRY,
    AttemptEnded,
    AttemptStarted,
    Event,
    PlanSummary,
    RunCreated,
    RunEnded,
    Stamped,
)
from .state import RunState

if TYPE_CHECKING:
    from ..presets.plan import Plan

# -----------------------------------------------------------------------------------------------------------
# journal.jsonl: every event of a run, one JSON object a line, in the order the agent saw them.


NAME = "journal.jsonl"
END_FILE = "end.json"
"""How the run ended, in a second place: a power cut may take the journal's last pages, or all of them."""
RESERVE_BYTES = 1 << 16
SYNCED = (AttemptStarted, AttemptEnded, RunEnded)
"""Events that are on the disk itself before anything goes on."""
_decoder = msgspec.json.Decoder(Stamped)


def read(run_dir: Path, after: int = 0, problems: list[str] | None = None) -> Iterator[Stamped]:
    """Events with seq greater than `after`, as far as the journal can be read; why not further is in `problems`."""
    problems, strange = [] if problems is None else problems, 0
    try:
        for _, line in file_io.lines(run_dir / NAME):
            stamped = file_io.decoded(_decoder, line)
            if stamped is None:
                strange += 1
            elif stamped.seq > after:
                yield stamped
    except file_io.FileError as error:
        problems.append(f"{error.name} {error.why}")
    if strange:
        problems.append(
            f"{NAME} has {plural(strange, 'line')} that cannot be read: damaged, or of another version"
        )


class Journal:
    """The agent's writing end. What a full disk refuses waits in memory, in order, until there is room."""

    def __init__(self, run_dir: Path) -> None:
        """Raises OSError where something else is in the journal's place."""
        self._path = run_dir / NAME
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        self._fd = os.open(self._path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise OSError(22, "is no regular file", str(self._path))
        self._mend_torn_end()
        self._waiting = b""
        self._reserve = self._path.with_name(NAME + ".reserve")
        """Given back to a full file system that keeps no room behind a file's end."""
        self._lay_by()
        self.lines: list[tuple[int, bytes]] = []
        """(seq, line) of everything written by this process or read at its start."""

    def _mend_torn_end(self) -> None:
        """A line cut off by a crash or a full disk would swallow the next one."""
        size = end = os.fstat(self._fd).st_size
        while end:
            begin = max(0, end - (1 << 16))
            at = os.pread(self._fd, end - begin, begin).rfind(b"\n")
            if at >= 0:
                end = begin + at + 1
                break
            end = begin
        if end < size:
            os.ftruncate(self._fd, end)

    def _lay_by(self) -> None:
        """Keep room for events on a full disk, which must not be lost with this process; ranks may not take it."""
        now = os.fstat(self._fd)
        kept = max(now.st_size, now.st_blocks * 512)
        if kept - now.st_size > RESERVE_BYTES // 2:
            return
        try:  # only what is new: tmpfs gives up all of what it cannot give the rest of
            file_io.keep_room(self._fd, kept, now.st_size + RESERVE_BYTES - kept)
        except OSError as error:
            if error.errno not in FULL and not self._reserve.exists():
                with contextlib.suppress(OSError):
                    self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def replay(self) -> Iterator[Stamped]:
        """What an earlier agent wrote."""
        for stamped in read(self._path.parent):
            self.lines.append((stamped.seq, msgspec.json.encode(stamped) + b"\n"))
            yield stamped

    @property
    def seq(self) -> int:
        return self.lines[-1][0] if self.lines else 0

    @property
    def blocked(self) -> bool:
        """True while lines wait for room on the disk."""
        return bool(self._waiting)

    def append(self, stamped: Stamped) -> None:
        """Keep one event whose seq is already set."""
        line = msgspec.json.encode(stamped) + b"\n"
        self.lines.append((stamped.seq, line))
        self._waiting += line
        self.flush()
        if isinstance(stamped.event, SYNCED):
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)

    def flush(self) -> None:
        """Write what waits; OSError (no room) leaves it waiting."""
        while self._waiting:
            try:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
            except OSError as error:
                if error.errno not in FULL or not self._make_room():
                    return
        self._lay_by()

    def _make_room(self) -> bool:
        """Give the reserve back; False when that was done before."""
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def keep_end(self, stamped: Stamped) -> None:
        """Of the run as a whole: write its end to the second place, and take that away where the run goes on."""
        path = self._path.with_name(END_FILE)
        with contextlib.suppress(OSError):
            if isinstance(stamped.event, RunEnded):
                file_io.write_synced(path, msgspec.json.encode(stamped))
            elif isinstance(stamped.event, RunCreated):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self.flush()
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)
            os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # what was kept behind it
        os.close(self._fd)


# -----------------------------------------------------------------------------------------------------------
# A journal with its fold: what is told is written, folded, passed on to viewers, and wakes who waits for it.


T = TypeVar("T")

MOST_MASKED = 1 << 16
"""Bytes of an event that is searched for secrets: more are stacks or a flight record."""


def summarise(plan: Plan) -> PlanSummary:
    """The part of a plan that every screen needs."""
    return PlanSummary(
        preset=plan.preset,
        strategy=plan.strategy,
        launcher=plan.launcher,
        command=clean_text(" ".join(plan.command)),
        nnodes=plan.nnodes,
        nnodes_min=plan.nnodes_min,
        nproc_per_node=plan.nproc_per_node,
        backend=plan.backend,
        obeys=plan.obeys,
        restart_limit=plan.restart.limit,
        grace_s=plan.grace_s,
        notes=plan.notes,
        mesh=dict(plan.mesh),
        zero_stage=_field(plan, "DISTUI_STRATEGY_OPTIONS", "stage", int)
        if plan.strategy == "deepspeed"
        else None,
        precision=_field(plan, "DISTUI_PRECISION", "param", str),
    )


def _field(plan: Plan, variable: str, key: str, kind: type[T]) -> T | None:
    """A field of what `parallelize()` reads; None where there is none."""
    try:
        value = json.loads(plan.env.get(variable, "{}")).get(key)
    except (ValueError, AttributeError):
        return None
    return value if type(value) is kind else None


def withheld(event: Event) -> Event:
    """An event without the secrets in its texts (what ranks died of names URLs and headers); a long dump is left."""
    if len(msgspec.json.encode(event)) > MOST_MASKED:
        return event
    values = msgspec.to_builtins(event)
    shown = mask_value(values)
    return event if shown == values else msgspec.convert(shown, type(event))


class Chronicle:
    """What a daemon knows of its run; `publish` is called with each event after it was folded."""

    def __init__(self, run_dir: Path) -> None:
        self.state = RunState()
        self.journal = Journal(run_dir)
        self.publish: Callable[[Stamped], None] = lambda stamped: None
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def replay(self, heard: Callable[[Stamped], None] = lambda stamped: None) -> bool:
        """Fold what an earlier daemon wrote, each event told to `heard`; whether there was anything."""
        for stamped in self.journal.replay():
            self.state.apply(stamped)
            heard(stamped)
        return self.state.seq > 0

    def emit(self, event: Event, *, node: int = 0, source: int = 0, at: float | None = None) -> None:
        """Journal an event (telemetry excepted), fold it, tell the viewers, wake who waits for it."""
        durable = not isinstance(event, TELEMETRY)
        event = withheld(event) if durable else event
        seq = max(self.journal.seq, self.state.seq) + 1 if durable else 0
        stamped = Stamped(time.time() if at is None else at, event, seq, node, source)
        if durable:
            self.journal.append(stamped)
            if not self.state.of_part(stamped):
                self.journal.keep_end(stamped)
        self.state.apply(stamped)
        self.publish(stamped)
        for wanted, future in self._waiting:
            if not future.done() and wanted():
                future.set_result(None)

    async def until(self, wanted: Callable[[], bool], seconds: float | None) -> bool:
        """Wait for something to become true of the state; False after `seconds` (None: never)."""
        if wanted():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (wanted, future)
        self._waiting.append(item)
        try:
            async with asyncio.timeout(seconds):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(item)
