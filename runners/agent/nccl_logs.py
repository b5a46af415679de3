"""Read the logs of the ranks as they grow, and reset a debug level before it fills the disk."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import Raw, structs

from ...presets.finding import Finding
from ...presets.nccl import FLOOD_BYTES, disk_reserve
from ..diagnosis import nccl_facts
from ..diagnosis.file_names import Whose
from ..diagnosis.first_cause import LogFinding, finding_of, fired
from ..diagnosis.log_text import LONGEST, decoded
from ..diagnosis.nccl_facts import NcclFacts
from ..diagnosis.reading import Reading
from ..diagnosis.rules import book
from ..logs import gaps
from ..run import clock
from ..run.formatting import size_text
from ..run.log_files import LogError, LogFile, attempt_dir, opened, parse_file_id
from ..run.model import FindingCleared, FindingRaised, NcclTick
from .runner_process import ServedRun

# A level of NCCL_DEBUG that writes too much is reset before it fills the disk. Only a level that was set while the run
# was active is reset. If the launch requests the level, or this NCCL has no live switch, a finding reports the flood.


FLOOD_ID = "nccl-flood"
RATE_EVERY_S = 1.0
WINDOW_S = 3.0
"""Length of the measurement of a rate, in seconds."""
LEAST_S = 1.8
"""Shortest time for a rate, in seconds."""
GROWS = 1_000_000.0
"""Bytes per second below which the logs do not fill a disk."""
QUIET_S = 10.0
"""Seconds between two actions: a lower level needs time to take effect."""
Heard = Callable[[LogFile, bytes], None]
"""Receives a file and the end of its new bytes. Bytes of an attempt may follow the start of the next attempt."""
Lower = Callable[[str], Awaitable[tuple[bool, str]]]
"""Lowers a level for a reason (half a sentence). Returns True if it was lowered, and a sentence."""


@dataclass(frozen=True, slots=True)
class Flood:
    """The logs grow too fast."""

    rate: float
    """Bytes per second."""
    free: int | None = None
    """Free bytes of the disk, if they are the reason."""

    @property
    def text(self) -> str:
        """Return half a sentence."""
        rate = f"NCCL's logs on this node grow by {self.rate / 1e6:.3g} MB/s"
        return rate if self.free is None else f"{rate}, and {size_text(self.free)} are free"


class Flow:
    """The common growth rate of some files."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._seen: deque[tuple[float, int]] = deque()

    def check(self, now: float, size: int, free: int | None, total: int | None) -> Flood | None:
        """Add the size of all files at a monotonic time, with the disk's free and total bytes.

        Return a Flood if there is one.
        """
        if self._seen and size < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, size))
        while now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        then, before = self._seen[0]
        if now - then < LEAST_S:
            return None
        rate = (size - before) / (now - then)
        if rate > self._most:
            return Flood(rate)
        if free is not None and total and rate > GROWS and free < disk_reserve(total):
            return Flood(rate, free)
        return None


class Guard:
    """Checks the log files of this node's ranks once per second."""

    def __init__(self, run: ServedRun, lower: Lower) -> None:
        self._run, self._lower = run, lower
        self._most = FLOOD_BYTES
        self._flow, self._attempt = Flow(self._most), 0
        self._quiet_until = float("-inf")

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(RATE_EVERY_S)
            flood = self.check(clock.monotonic())
            if flood is not None:
                self._quiet_until = clock.monotonic() + QUIET_S
                await self._act(flood)

    def check(self, now: float) -> Flood | None:
        """Check once. Returns None also for QUIET_S after an action."""
        state = self._run.state
        if state.attempt != self._attempt:
            self._flow, self._attempt = Flow(self._most), state.attempt
        size = written(self._run.run_dir / attempt_dir(self._run.node, self._attempt))
        if not size:
            return None
        flood = self._flow.check(now, size, *_disk(self._run.run_dir))
        return None if now < self._quiet_until else flood

    async def _act(self, flood: Flood) -> None:
        """Lower the level and report it, or report why that is impossible."""
        done, text = await self._lower(flood.text)
        limits = f"at most {self._most / 1e6:g} MB/s, and 5 % and 2 GiB of the disk are to stay free"
        remedy = (
            "take the level for some seconds (--for 10), on one rank (--rank 0), or with fewer subsystems"
            if done
            else "restart with NCCL_DEBUG=WARN, or with fewer subsystems in NCCL_DEBUG_SUBSYS"
        )
        role = "fact" if done else "cause"
        evidence = (f"{flood.text}: {limits}",)
        node = self._run.node
        finding = Finding(
            FLOOD_ID,
            "warning",
            text,
            role=role,
            node=node,
            remedy=remedy,
            evidence=evidence,
            since=clock.now(),
        )
        raised = self._run.state.findings.get((FLOOD_ID, None, node))
        if raised is None or raised.text != text:
            self._run.findings.raise_finding(finding)


def written(folder: Path) -> int:
    """Return the bytes of NCCL's files in the folder of an attempt, or 0 if there are none."""
    size = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".nccl"):
                    size += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return size
    return size


def _disk(path: Path) -> tuple[int | None, int | None]:
    """Return the free and total bytes of the run directory's disk, or None if unknown."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None, None
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


RECENT = 64 << 10
"""Bytes at the end of a file to keep for readers of training signals."""
BLOCK = 64 << 10
"""Bytes per block, which take a few milliseconds."""
TURN, WHOLE = 4 << 20, 16 << 20
"""Most bytes per turn: of one file among many, and of a few files together."""
BEHIND = 64 << 20
"""Unread bytes above which only the newest part is read completely."""
LAST = 16 << 20
"""Limit at the end of an attempt, which users wait for."""
NEWEST = 1 << 20
"""Bytes of the newest part, per file."""
SKIPPED = 256 << 20
"""Most bytes to skip per turn."""
LOUD = b" WARN "
"""Text of lines that are read even in skipped parts."""
LOUD_LINES = 64
"""Most such lines per block."""


class Tail:
    """One file. Bytes after the last complete line are kept until the line is complete."""

    def __init__(self, run_dir: Path, file: LogFile, reading: Reading) -> None:
        self.file, self.offset, self.size = file, 0, 0
        self._run_dir, self._reading, self._on_disk = run_dir, reading, 0
        self._rest, self._dropping = b"", False
        self._again = False
        self._newest = b""
        """The end of the complete lines since the last call of `recent`."""

    def recent(self) -> bytes:
        """Return the end of the bytes read since the last call, with an unfinished progress bar, or b""."""
        newest, self._newest = self._newest, b""
        bar = b"" if self._dropping or b"\r" not in self._rest else self._rest[-RECENT:]
        return newest + bar

    @property
    def left(self) -> int:
        """Return the unread bytes. A sparse file counts at most its bytes on disk."""
        return max(0, min(self.size - self.offset, self._on_disk + NEWEST))

    def saw(self, size: int, on_disk: int) -> None:
        """Record the current size. A file that shrank is read from its start."""
        if size < self.offset:
            self.offset, self._rest, self._dropping, self._again = 0, b"", False, True
        self.size, self._on_disk = size, on_disk

    def read(self, limit: int) -> Iterator[int]:
        """Read and feed at most `limit` bytes, block by block. Yields the bytes of each block."""
        try:
            with opened(self._run_dir, self.file.id) as descriptor:
                while limit > 0 and self.offset < self.size:
                    block = self._block(descriptor, min(BLOCK, limit, self.left), self._take)
                    if not block:
                        break
                    self.offset += len(block)
                    limit -= len(block)
                    self._take(block)
                    yield len(block)
        except (LogError, OSError):
            self.offset = self.size  # deleted or unreadable: no more to read

    def skip(self, limit: int) -> Iterator[int]:
        """Skip at most `limit` bytes before the newest part.

        Lines are counted, and warnings are read. Yields bytes per block.
        """
        try:
            with opened(self._run_dir, self.file.id) as descriptor:
                while limit > 0 and self.offset < self.size - NEWEST:
                    room = self.size - NEWEST - self.offset
                    block = self._block(descriptor, min(16 * BLOCK, limit, room), self._pass)
                    cut = block.rfind(b"\n") + 1 or len(block)
                    if not block:
                        break
                    self.offset += cut
                    limit -= cut
                    self._pass(self._rest + block[:cut])
                    self._rest = b""
                    yield cut
        except (LogError, OSError):
            self.offset = self.size

    def _block(self, descriptor: int, size: int, feed: Callable[[bytes], None]) -> bytes:
        """Return at most `size` bytes, after any holes. If the log cap removed lines here, feed as many empty lines."""
        gap = gaps.read(self._run_dir / self.file.id)
        begin, end = next(gaps.stretches(descriptor, self.offset, gap), (self.size, self.size))
        if gap is not None and self.offset < gap.end <= begin:
            left = gap.lines
            while left > 0:
                feed(b"\n" * min(left, 1 << 20))
                left -= 1 << 20
        self.offset = begin
        return os.pread(descriptor, min(size, end - begin), begin)

    def end(self) -> None:
        """Feed the last line without a line end, after the last write."""
        if self._rest and not self._dropping:
            self._feed(self._rest)
        self._rest, self._dropping = b"", False

    def _take(self, block: bytes) -> None:
        if self._dropping:  # the rest of a line whose beginning is in `_rest`
            if (at := block.find(b"\n")) < 0:
                return
            block, self._dropping = block[at:], False
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            self._feed(self._rest + whole)
            self._rest = tail
        else:
            self._rest += tail
        if len(self._rest) > LONGEST:
            bar = self._rest.rfind(b"\r")  # an unfinished progress bar
            self._rest = self._rest[bar + 1 :] if bar >= 0 else self._rest
            if len(self._rest) > LONGEST:
                self._rest, self._dropping = self._rest[:LONGEST], True

    def _pass(self, data: bytes) -> None:
        """Count lines, and read only the loud ones."""
        self._dropping = False
        self._turn()
        done, at = 0, data.find(LOUD)
        for _ in range(LOUD_LINES):
            if at < 0:
                break
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            self._reading.skip(data.count(b"\n", done, begin))
            self._reading.feed(decoded(data[begin:end]))
            done = end + 1
            at = data.find(LOUD, end)
        self._reading.skip(data.count(b"\n", done))

    def _feed(self, data: bytes) -> None:
        if self.file.stream != "nccl":
            self._newest = (self._newest + data[-RECENT:] + b"\n")[-RECENT:]
        self._turn()
        self._reading.feed(decoded(data))

    def _turn(self) -> None:
        if self._again:
            self._again = False
            self._reading.leave()
            self._reading.open(self.file.id, Whose(self.file.rank))
        else:
            self._reading.turn_to(self.file.id, self.file.rank)


class Tails:
    """All files of one attempt. Only one thread at a time may use it."""

    def __init__(self, run_dir: Path, node: int, attempt: int) -> None:
        self.attempt, self.reading = attempt, Reading()
        self.sampled = False
        """True if parts were skipped."""
        self._run_dir, self._prefix = run_dir, attempt_dir(node, attempt)
        self._tails: dict[str, Tail] = {}
        self._hurried = threading.Event()

    @property
    def left(self) -> int:
        """Return the unread bytes, as of the last `scan`."""
        return sum(tail.left for tail in self._tails.values())

    def scan(self) -> int:
        """Find the files and their sizes. Return the unread bytes."""
        self._hurried.clear()
        try:
            with os.scandir(self._run_dir / self._prefix) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            return 0
        for entry in entries:
            name = f"{self._prefix}/{entry.name}"
            tail = self._tails.get(name)
            if tail is None:
                file = parse_file_id(name)
                if file is None or file.source not in ("rank", "command"):
                    continue
                tail = self._tails[name] = Tail(self._run_dir, file, self.reading)
            try:
                about = entry.stat(follow_symlinks=False)
                tail.saw(about.st_size, about.st_blocks * 512)
            except OSError:
                continue
        return self.left

    def turn(self, behind: int = BEHIND) -> Iterator[int]:
        """Read a part of each file. Yields after every block. `behind`: unread bytes above which parts are skipped."""
        left = self.left
        if left > behind:
            self.sampled = True
            share = SKIPPED // len(self._tails)
            for tail in self._tails.values():
                if tail.left > 2 * NEWEST:
                    yield from tail.skip(share)
        grown = [tail for tail in self._tails.values() if tail.left]
        for tail in grown:
            yield from tail.read(max(TURN, WHOLE // len(grown)))

    def drain(self, behind: int = BEHIND) -> None:
        """Read a whole turn in a thread. `hurry` ends it early."""
        for _ in self.turn(behind):
            if self._hurried.is_set():
                return

    def recent(self) -> Iterator[tuple[LogFile, bytes]]:
        """Yield the ends of the files of ranks, or of a command, with new bytes since the last call."""
        for tail in self._tails.values():
            if tail.file.stream != "nccl" and (newest := tail.recent()):
                yield tail.file, newest

    def hurry(self) -> None:
        """End a `drain` after its current block. Thread-safe."""
        self._hurried.set()

    def end(self) -> None:
        """Read all remaining bytes, or only the newest part of large files, and last lines without a line end."""
        self.scan()
        while self.left:  # files do not grow here, because `scan` is not called
            self.drain(LAST)
        for tail in self._tails.values():
            tail.end()


EVERY_S = 2.0
BUSY_S, BEHIND_S = 0.2, 0.02
"""Seconds between two turns while the logs grow fast, and while unread bytes remain."""
IN_LOOP = 256 << 10
"""Most bytes to read in the event loop. More are read in a thread."""
RETRIED_S = 20.0
"""Seconds of retries that a late starter may need."""
RETRIED = ("sock-refused-retry", "tcpx-timeout")
"""Rules for lines that are normal while other ranks start."""
MILD = ("ras-no-listen",)
"""Rules without harm to the job."""
ELSEWHERE = ("net-socket-fallback", "version-mismatch")
"""Derived from all nodes: see diagnosis/expectations.py."""
BEHIND_ID = "logs-behind"


class RaisedFindings:
    """The raised findings of one attempt's logs. Each is raised once, with the facts at that time."""

    def __init__(self, node: int, raised: dict[str, Finding] | None = None) -> None:
        self._node = node
        self.raised: dict[str, Finding] = dict(raised or {})
        self._since: dict[str, tuple[float, int]] = {}
        """Findings that are not raised yet: time of the first occurrence, and number of lines."""

    def news(self, reading: Reading, now: float) -> list[FindingRaised | FindingCleared]:
        """Return the new events after a read. A symptom is raised until a cause is known, and then cleared."""
        fresh = [finding for finding in self._fired(reading) if finding.id not in self.raised]
        events: list[FindingRaised | FindingCleared] = []
        for role in ("cause", "hint", "symptom"):
            if role == "symptom" and self._cause():
                events += [self._clear(name) for name in self._of("symptom")]
                break
            for finding in fresh:
                if finding.role == role and (severity := self._severity(finding, now)):
                    events.append(self._raise(self._finding(finding, severity, now)))
        return events

    def behind(self, left: int, now: float) -> list[FindingRaised | FindingCleared]:
        """Report skipped parts once, with the number of unread bytes."""
        if BEHIND_ID in self.raised:
            return []
        text = (
            "the logs grow faster than they can be read: distui reads only the warnings of the skipped part"
        )
        seen = f"{left / 1e6:.0f} MB were not read yet when parts were first left out; the files are whole"
        remedy = "`distui nccl RUN WARN` ends a flood of NCCL's; `distui diagnose` reads the files whole"
        finding = Finding(
            BEHIND_ID,
            "note",
            text,
            role="fact",
            node=self._node,
            remedy=remedy,
            evidence=(seen,),
            since=now,
        )
        return [self._raise(finding)]

    def _fired(self, reading: Reading) -> Iterator[LogFinding]:
        for entry, seen in fired(reading):
            if entry.count or entry.rule.id not in ELSEWHERE:
                yield finding_of(entry, seen, reading)

    def _cause(self) -> bool:
        return any(entry.role == "cause" and entry.severity == "error" for entry in self.raised.values())

    def _of(self, role: str) -> list[str]:
        return [name for name, finding in self.raised.items() if finding.role == role]

    def _severity(self, finding: LogFinding, now: float) -> str | None:
        """Return the severity, or None if it is too early."""
        if finding.id in RETRIED:
            since, count = self._since.setdefault(finding.id, (now, finding.count))
            if now - since < RETRIED_S or finding.count == count:
                return None
        return "note" if finding.role == "symptom" or finding.id in MILD else finding.severity

    def _finding(self, finding: LogFinding, severity: str, now: float) -> Finding:
        lines = (f"{its.file}:{its.line}: {its.text}" for its in finding.lines)
        return Finding(
            id=finding.id,
            severity=severity,
            text=finding.text,
            role=finding.role,
            rank=finding.rank,
            node=self._node,
            remedy=finding.remedy,
            evidence=tuple(([finding.seen] if finding.seen else []) + list(lines)),
            ranks=finding.ranks if len(finding.ranks) > 1 else (),
            since=now,
        )

    def _raise(self, finding: Finding) -> FindingRaised:
        self.raised[finding.id] = finding
        return FindingRaised(finding)

    def _clear(self, name: str) -> FindingCleared:
        finding = self.raised.pop(name)
        return FindingCleared(finding.id, finding.rank, finding.node)


class NcclLogs:
    """Follows the logs of this node's ranks during the run."""

    def __init__(self, run: ServedRun, lower: Lower, heard: Heard = lambda file, tail: None) -> None:
        """`heard` receives the end of each rank's new output."""
        self._run, self._heard = run, heard
        self.guard = Guard(run, lower)
        self._tails: Tails | None = None
        self._findings = RaisedFindings(run.node)
        self._turns = asyncio.Lock()
        self._working: asyncio.Future[None] | None = None
        self._last: NcclFacts | None = None
        self._ticked, self._dirty = float("-inf"), False
        self._seen: dict[str, float] = {}
        self._own = ((), None) if run.plan.backend == "gloo" else rdma()

    async def run(self) -> None:
        """Emit an NcclTick for new facts. After cancellation, read the rest."""
        self._tails = None  # after a failure the logs are read again
        try:
            while True:
                async with self._turns:
                    pause = await self._turn()
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            await self.finish()
            raise

    async def finish(self) -> None:
        """Read the rest, before the end of the run is emitted."""
        if self._tails is not None:
            self._tails.hurry()
        async with self._turns:
            await self._end()

    async def _turn(self) -> float:
        """Read once. Return the seconds until the next turn."""
        attempt = self._run.state.attempt
        if not attempt:
            return EVERY_S
        if self._tails is None or self._tails.attempt != attempt:
            await self._end()
            self._begin(attempt)
        tails = self._tails
        assert tails is not None
        left = tails.scan()
        if left > IN_LOOP:
            await self._in_thread(tails.drain)
        else:
            for _ in tails.turn():
                await asyncio.sleep(0)
        if left or self._dirty:
            self._report(left)
        if tails.left:
            return BEHIND_S
        return BUSY_S if left > IN_LOOP else EVERY_S

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Read in a thread. If this task is cancelled, the next reader waits for the thread."""
        await self._rest()
        self._working = asyncio.get_running_loop().run_in_executor(None, work)
        await asyncio.shield(self._working)

    async def _rest(self) -> None:
        """Wait for a thread that a cancelled task left running."""
        if self._working is not None and not self._working.done():
            await asyncio.wait({self._working})

    async def _end(self) -> None:
        """Read the rest of the current attempt."""
        if self._tails is not None:
            await self._in_thread(self._tails.end)
            self._ticked = float("-inf")
            self._report(0)

    def _begin(self, attempt: int) -> None:
        """Follow an attempt's logs from their start. After an adoption, its findings stay raised."""
        self._tails = Tails(self._run.run_dir, self._run.node, attempt)
        self._last, self._seen = None, {}
        node = self._run.state.nodes.get(self._run.node)
        if node is not None and node.nccl is not None:  # of the previous attempt
            self._run.emit(NcclTick(attempt, Raw(nccl_facts.encode(NcclFacts()))))
        here = attempt_dir(self._run.node, attempt) + "/"
        names = {rule.id for rule in book().rules} | {BEHIND_ID}
        raised: dict[str, Finding] = {}
        for finding in list(self._run.state.findings.values()):
            if finding.id not in names or finding.node != self._run.node:
                continue
            if any(here in line for line in finding.evidence):
                raised[finding.id] = finding
            else:
                self._run.emit(FindingCleared(finding.id, finding.rank, finding.node))
        self._findings = RaisedFindings(self._run.node, raised)

    def _report(self, left: int) -> None:
        assert self._tails is not None
        now, tails = clock.now(), self._tails
        for file, newest in tails.recent():
            self._heard(file, newest)
        events = self._findings.news(tails.reading, now)
        if tails.sampled:
            events += self._findings.behind(left, now)
        for event in events:
            self._run.emit(event)
        self._dirty = tails.reading.nccl_lines > 0
        if self._dirty and clock.monotonic() - self._ticked >= EVERY_S:
            self._dirty = False
            self._tick(tails, now)

    def _tick(self, tails: Tails, now: float) -> None:
        """Emit the facts if they have changed."""
        facts = nccl_facts.placed(tails.reading.facts(), self._run.node, *self._own)
        for comm in facts.communicators:
            self._seen.setdefault(comm.id, now)
        facts = structs.replace(
            facts,
            communicators=tuple(
                structs.replace(comm, seen=self._seen[comm.id]) for comm in facts.communicators
            ),
            behind=tails.left,
            sampled=tails.sampled,
        )
        same = structs.replace(facts, lines=0)
        if self._last != same:
            self._last, self._ticked = same, clock.monotonic()
            self._run.emit(NcclTick(tails.attempt, Raw(nccl_facts.encode(facts))))


def rdma(root: Path = Path("/")) -> tuple[tuple[str, ...], bool | None]:
    """Return the active ports of RDMA devices ("mlx5_0:1"), and True if nvidia_peermem is loaded, else None."""
    ports = []
    for state in sorted((root / "sys/class/infiniband").glob("*/ports/*/state")):
        try:
            active = "ACTIVE" in state.read_text("ascii", "replace")
        except OSError:
            continue
        if active:
            ports.append(f"{state.parts[-4]}:{state.parts[-2]}")
    peermem = (root / "sys/module/nvidia_peermem").is_dir() or (root / "sys/module/nv_peer_mem").is_dir()
    return tuple(ports), True if peermem else None
