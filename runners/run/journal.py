"""journal.jsonl has every event of a run in order. The chronicle writes and folds it; the history reads it back.

The journal is the primary source. If it is torn, empty or missing, the record says which run it was and the runner's
report how its attempts ended. end.json, written and synced separately, says how the run ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json
import os
import stat
import zlib
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field, structs

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...presets.secrets import mask_value
from ..inrank.control import FULL
from . import clock, file_io, snapshot
from .commands import Hello
from .launch_record import GitState
from .model import (
    HUB,
    TELEMETRY,
    AttemptEnded,
    AttemptStarted,
    Event,
    Folded,
    PlanSummary,
    RankTick,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from .state import RunState

if TYPE_CHECKING:
    from ...presets.plan import Plan

NAME = "journal.jsonl"
END_FILE = "end.json"
"""Second copy of the run's end: a power cut may take the journal's last pages, or all of them."""
RESERVE_BYTES = 1 << 16
SYNCED = (AttemptStarted, AttemptEnded, RunEnded)
"""Events that are synced to disk before the run continues."""
_decoder = msgspec.json.Decoder(Stamped)


def read(
    run_dir: Path, after: int = 0, problems: list[str] | None = None, offset: int = 0
) -> Iterator[Stamped]:
    """Yield the events with seq greater than `after`, until the first unreadable place; append reasons to `problems`.

    `offset` is the byte to begin at, the start of a line.
    """
    problems, strange = [] if problems is None else problems, 0
    try:
        for _, line in file_io.lines(run_dir / NAME, offset):
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


def is_of_run(stamped: Stamped) -> bool:
    """Whether an event happened to the run: others only mark the extent of a bundle (see `bundle_reader.opened`)."""
    event = stamped.event
    if isinstance(event, RankTick):
        return False
    return not isinstance(event, RunEnded) or event.phase is not RunPhase.EXPORTED


class Lines:
    """The lines of a journal for viewers, compressed to a tenth except for the newest."""

    BLOCK = 512

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._open: list[bytes] = []
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def seq(self) -> int:
        """Seq of the last line; 0 without lines."""
        return self._numbers[-1] if self._numbers else 0

    @property
    def last(self) -> bytes:
        """The last line; b"" without lines."""
        return self.from_(len(self) - 1)[-1] if self._numbers else b""

    def append(self, seq: int, line: bytes) -> None:
        """Append a line, with its newline."""
        self._numbers.append(seq)
        self._open.append(line)
        if len(self._open) == self.BLOCK:
            self._packed.append(zlib.compress(b"".join(self._open), 1))
            self._open = []

    def after(self, seq: int) -> int:
        """Index of the first line with a greater seq; the number of lines if there is none."""
        return next((at for at, number in enumerate(self._numbers) if number > seq), len(self))

    def from_(self, index: int) -> list[bytes]:
        """Return lines from this index on, at least one if there is one."""
        block, first = divmod(index, self.BLOCK)
        if block >= len(self._packed):
            return self._open[first:]
        return zlib.decompress(self._packed[block]).splitlines(keepends=True)[first:]


class Journal:
    """The agent's writing end. Lines that a full disk refuses wait in memory, in order, until there is room."""

    def __init__(self, run_dir: Path) -> None:
        """Open the journal of a run; raise OSError if the path is not a regular file."""
        self._path = run_dir / NAME
        self._fd = os.open(self._path, os.O_RDWR | file_io.APPENDED, 0o600)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise OSError(22, "is no regular file", str(self._path))
        self._mend_torn_end()
        self._waiting = b""
        self._reserve = self._path.with_name(NAME + ".reserve")
        """Reserve file that is deleted on a full disk, for file systems without fallocate(2)."""
        self._lay_by()
        self.lines = Lines()
        """All lines that this process wrote, or read at its start."""
        self.sound = True
        """Whether every event of earlier processes was readable and in order."""

    def _mend_torn_end(self) -> None:
        """Cut an incomplete last line (crash, full disk) off, because it would merge with the next one."""
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
        """Reserve disk blocks for later events, so that ranks cannot fill the disk and events survive this process."""
        now = os.fstat(self._fd)
        kept = max(now.st_size, now.st_blocks * 512)
        if kept - now.st_size > RESERVE_BYTES // 2:
            return
        try:  # only the missing blocks: tmpfs releases all of a reservation that it cannot complete
            file_io.keep_room(self._fd, kept, now.st_size + RESERVE_BYTES - kept)
        except OSError as error:
            if error.errno not in FULL and not self._reserve.exists():
                with contextlib.suppress(OSError):
                    self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def replay(self) -> Iterator[Stamped]:
        """Yield the events of an earlier agent."""
        problems: list[str] = []
        for stamped in read(self._path.parent, problems=problems):
            self.sound = self.sound and stamped.seq > self.seq
            self.lines.append(stamped.seq, msgspec.json.encode(stamped) + b"\n")
            yield stamped
        self.sound = self.sound and not problems

    @property
    def seq(self) -> int:
        return self.lines.seq

    def sum(self, before: tuple[int, int] = (0, 0)) -> tuple[int, int] | None:
        """Size of the file and its CRC-32; None while lines wait, or if the file cannot be read.

        `before` is an earlier result; the file has only grown since.
        """
        if self._waiting:
            return None
        try:
            size = os.fstat(self._fd).st_size
            last = self.lines.last
            if os.pread(self._fd, len(last), max(0, size - len(last))) != last:
                return None  # another program wrote to it
            crc = snapshot.crc_of(self._fd, size, *before)
        except OSError:
            return None
        return None if crc is None else (size, crc)

    @property
    def blocked(self) -> bool:
        """True while lines wait for room on the disk."""
        return bool(self._waiting)

    def append(self, stamped: Stamped) -> None:
        """Append an event with its seq already set, and flush."""
        line = msgspec.json.encode(stamped) + b"\n"
        self.lines.append(stamped.seq, line)
        self._waiting += line
        self.flush()
        if isinstance(stamped.event, SYNCED):
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)

    def flush(self) -> None:
        """Write the waiting lines. On OSError (no room) they stay."""
        while self._waiting:
            try:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
            except OSError as error:
                if error.errno not in FULL or not self._make_room():
                    return
        self._lay_by()

    def _make_room(self) -> bool:
        """Delete the reserve file; False if it does not exist."""
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def keep_end(self, stamped: Stamped) -> None:
        """Write the run's end to end.json, or delete that file if the run continues."""
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
            os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # releases the reserved blocks
        os.close(self._fd)


MOST_MASKED = 1 << 16
"""Maximum bytes of an event that is searched for secrets: larger ones are stacks or a flight record."""


def summarise(plan: Plan) -> PlanSummary:
    """Return the part of a plan that every screen needs."""
    same = {name: getattr(plan, name) for name in PlanSummary.__struct_fields__ if hasattr(plan, name)}
    command = clean_text(" ".join(plan.command))
    return PlanSummary(
        **same | {"command": command, "mesh": dict(plan.mesh)}, restart_limit=plan.restart.limit
    )


def withheld(event: Event) -> Event:
    """Mask the secrets in an event's texts (errors of ranks contain URLs and headers); return a long dump unchanged."""
    if len(msgspec.json.encode(event)) > MOST_MASKED:
        return event
    values = msgspec.to_builtins(event)
    shown = mask_value(values)
    return event if shown == values else msgspec.convert(shown, type(event))


class Chronicle:
    """A daemon's state of its run; each of `listeners` is called with each event after the fold."""

    def __init__(self, run_dir: Path) -> None:
        self.state = RunState()
        self.kept = RunState()
        """Fold of the journaled events only, without telemetry."""
        self.journal = Journal(run_dir)
        self._run_dir = run_dir
        self._summed = (0, 0)
        """Bytes and CRC-32 of the journal at the newest snapshot."""
        self._sent: tuple[int, bytes] = (0, b"")
        """Seq and packed state that were last sent to a viewer instead of the history."""
        self._snapped = 0
        """Seq of the newest snapshot."""
        self.listeners: list[Callable[[Stamped], None]] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def replay(self, heard: Callable[[Stamped], None] = lambda stamped: None) -> bool:
        """Fold the events of an earlier daemon, call `heard` with each, and return whether there were any."""
        for stamped in self.journal.replay():
            self.state.apply(stamped)
            heard(stamped)
        self.kept = copy.deepcopy(self.state)
        self._snap()
        return self.state.seq > 0

    def _snap(self) -> None:
        """Write a snapshot of the fold if the journal has grown much or the run has ended.

        Lists then read the snapshot instead of the journal. On a full disk the old snapshot stays.
        """
        kept = self.kept
        is_early = kept.seq - self._snapped < snapshot.EVERY and not kept.phase.ended
        if is_early or not self.journal.sound or not snapshot.fold_id():
            return
        summed = self.journal.sum(self._summed)
        if summed is None or kept.seq != self.journal.seq or not kept.run:
            return
        self._summed, self._snapped = summed, kept.seq
        with contextlib.suppress(OSError, ValueError):
            fold = snapshot.Snapshot(snapshot.fold_id(), kept.run, kept.seq, *summed, snapshot.packed(kept))
            snapshot.write(self._run_dir, fold)

    def folded(self, hello: Hello) -> Folded | None:
        """Return the state, not the history, for a viewer with this folding code that lacks many events; else None."""
        kept = self.kept
        behind = kept.seq - hello.after >= snapshot.EVERY and kept.seq == self.journal.seq
        if not hello.fold or hello.fold != snapshot.fold_id() or not behind:
            return None
        try:
            if self._sent[0] != kept.seq:
                self._sent = kept.seq, snapshot.packed(kept)
        except ValueError:
            return None
        if len(self._sent[1]) > snapshot.MOST_SENT:
            return None
        return Folded(kept.seq, self._sent[1], kept.phase.ended and kept.phase is not RunPhase.LOST)

    def emit(self, event: Event, *, node: int = 0, source: int = 0, at: float | None = None) -> None:
        """Journal an event (unless telemetry), fold it, send it to the viewers, and wake the waiters."""
        durable = not isinstance(event, TELEMETRY)
        event = withheld(event) if durable else event
        seq = max(self.journal.seq, self.state.seq) + 1 if durable else 0
        stamped = Stamped(clock.now() if at is None else at, event, seq, node, source)
        if durable:
            self.journal.append(stamped)
            if not self.state.of_part(stamped):
                self.journal.keep_end(stamped)
            self.kept.apply(stamped)
            self._snap()
        self.state.apply(stamped)
        for listener in self.listeners:
            listener(stamped)
        for wanted, future in self._waiting:
            if not future.done() and wanted():
                future.set_result(None)

    async def until(self, wanted: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until `wanted()` is true; return False after `seconds` (None: no limit)."""
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


REPORT = "runner.jsonl"
PLAN_FILE = "plan.json"


class RunRecord(Struct, frozen=True):
    """Content of run.json: the constants of a run."""

    run: str
    run8: str
    """Eight hex digits, used as the stem of socket names."""
    name: str
    created: float
    host: str
    kind: str = "local"
    """Kind of the run. "local": an agent here has all ranks; "node": one node's part of a run on several nodes; "hub":
    the whole run on several nodes, in its hub."""
    node: int = 0
    nnodes: int = 1
    whole: str = ""
    """For a part: id of the whole run."""
    git: GitState | None = None
    """Git repository of the launch."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the secrets in its environment, by variable: see launch_record.py."""


class History(Struct):
    """Folded content of a run's files, with their problems."""

    node: int = 0
    """Node number of the first event."""
    problems: list[str] = field(default_factory=list)
    """Sentences without a full stop; each names its file."""
    journaled: bool = False
    """Whether the journal itself identifies the run."""
    unread: bool = False
    """Whether an otherwise intact journal lacks an end that the runner reported."""
    state: RunState = field(default_factory=RunState)
    """Fold of all events."""
    _events: list[Stamped] = field(default_factory=list)
    _rest: Callable[[], History] | None = None
    """Reads all events, if `_events` holds only those after a snapshot."""

    @property
    def events(self) -> list[Stamped]:
        """All events in order."""
        if self._rest is not None:
            self._events, self._rest = self._rest().events, None
        return self._events

    def add(self, stamped: Stamped) -> None:
        """Append and fold one event."""
        self._events.append(stamped)
        self.state.apply(stamped)


def read_history(path: Path, record: RunRecord, whole: bool = False) -> History:
    """Read and fold all files of the run directory `path`; `whole`: fold from the first event, without a snapshot."""
    history = None if whole else _from_snapshot(path, record)
    if history is None:
        history = _from_beginning(path, record)
    if not history.state.phase.ended and record.kind != "hub":
        _add_report(path, history)
    if not history.state.phase.ended or history.unread:
        _add_end(path, history)
    return history


def _from_snapshot(path: Path, record: RunRecord) -> History | None:
    """Return the history from the snapshot and the later events; None if the snapshot is not trusted."""
    held = snapshot.load(path, record.run, path / NAME)
    if held is None:
        return None
    history = History(HUB if record.kind == "hub" else record.node, journaled=True, state=held[0])
    history._rest = functools.partial(read_history, path, record, whole=True)
    for stamped in read(path, -1, history.problems, held[1]):
        if stamped.seq <= history.state.seq:
            return None
        history.add(stamped)
    return history


def _from_beginning(path: Path, record: RunRecord) -> History:
    history = History()
    events = _journal(path, history.problems)
    history.journaled = any(isinstance(stamped.event, RunCreated) for stamped in events)
    if not history.journaled:
        if _begun(path):
            _problem(history, f"{NAME} {'is empty' if not events else 'has lost its beginning'}", NAME)
        history.add(_created(path, record))
    for stamped in events:
        history.add(stamped)
    history.node = history.events[0].node
    return history


def _problem(history: History, text: str, name: str) -> None:
    if not any(name in problem for problem in history.problems):
        history.problems.append(text)


def _begun(path: Path) -> bool:
    """Whether the run has already begun: its directory has an attempt, a report, or an end."""
    files = (path / REPORT, path / END_FILE)
    return any(path.glob("node-*/attempt-*")) or any(map(os.path.exists, files))


def _journal(path: Path, problems: list[str]) -> list[Stamped]:
    """Return the events of the journal in order of seq, each once."""
    unread: list[str] = []
    events = list(read(path, -1, unread))
    if os.path.lexists(path / NAME) or _begun(path):
        problems += unread
    if any(after.seq <= before.seq for before, after in pairwise(events)):
        problems.append(f"{NAME} is out of order")
        events = [event for _, event in sorted({event.seq: event for event in reversed(events)}.items())]
    return events


def _created(path: Path, record: RunRecord) -> Stamped:
    """Rebuild the lost first event of the journal."""
    node = HUB if record.kind == "hub" else record.node
    event = RunCreated(record.run, record.name, record.host, _plan(path), merged=record.kind == "hub")
    return Stamped(record.created, event, 0, node)


def _plan(path: Path) -> PlanSummary:
    from ...presets.plan_json import plan_from_json  # slow import that intact journals do not need

    try:
        return summarise(plan_from_json(json.loads(file_io.content(path / PLAN_FILE))))
    except Exception:  # noqa: BLE001 - the file may hold anything, and the other files show the run
        return PlanSummary("", "", "", "")


def _add_report(path: Path, history: History) -> None:
    """Add events that the runner reported and no agent has read."""
    stopping = history.state.phase is RunPhase.STOPPING
    try:
        for offset, line in file_io.lines(path / REPORT, history.state.source):
            stamped = file_io.decoded(_decoder, line)
            if stamped is None:
                continue
            event = stamped.event
            if isinstance(event, RunEnded):
                history.unread = history.journaled
                if stopping and event.phase is not RunPhase.SUCCEEDED:
                    event = RunEnded(RunPhase.STOPPED, event.exit_code, "stopped")
            history.add(structs.replace(stamped, event=event, seq=0, source=offset, node=history.node))
    except file_io.FileError as error:
        if not error.missing:
            history.problems.append(f"{error.name} {error.why}")


def _add_end(path: Path, history: History) -> None:
    """Add the run's end from end.json, unless the run continued after it."""
    try:
        end = file_io.document(path / END_FILE, Stamped)
    except file_io.FileError as error:
        if not error.missing:
            history.problems.append(f"{error.name} {error.why}")
        return
    if isinstance(end.event, RunEnded) and end.seq > history.state.seq:
        history.unread = False
        history.add(structs.replace(end, seq=0))
