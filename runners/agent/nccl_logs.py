"""Facts and findings from the logs of the ranks as they grow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Raw, structs

from ...presets.finding import Finding
from ..diagnosis import nccl_facts
from ..diagnosis.derived_rules import fired
from ..diagnosis.log_findings import LogFinding, finding_of
from ..diagnosis.nccl_facts import NcclFacts
from ..diagnosis.reading import Reading
from ..diagnosis.rules import book
from ..run import clock
from ..run.log_files import LogFile, attempt_dir
from ..run.model import FindingCleared, FindingRaised, NcclTick
from .log_tails import Tails
from .runner_process import ServedRun

ReceiveOutput = Callable[[LogFile, bytes], None]
"""Receives a file and the end of its new bytes. Bytes of an attempt may follow the start of the next attempt."""

EVERY_S = 2.0
"""Seconds between two turns over the logs (see log_tails.py), and at least between two NcclTicks."""
BUSY_S, BEHIND_S = 0.2, 0.02
"""Seconds between two turns while the logs grow fast, and while bytes are left for the next turn."""
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
            if role == "symptom" and self._has_cause():
                events += [self._clear(name) for name in self._ids_with_role("symptom")]
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
        remedy = "set NCCL_DEBUG to WARN (`d`, or `distui nccl`) to end a flood; `distui diagnose` reads whole files"
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

    def _has_cause(self) -> bool:
        return any(entry.role == "cause" and entry.severity == "error" for entry in self.raised.values())

    def _ids_with_role(self, role: str) -> list[str]:
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

    def __init__(self, run: ServedRun, receive_output: ReceiveOutput) -> None:
        """`receive_output` receives the end of each rank's new output."""
        self._run, self._receive_output = run, receive_output
        self._tails: Tails | None = None
        """The logs of the current attempt."""
        self._findings = RaisedFindings(run.node)
        self._turns = asyncio.Lock()
        """Held during a turn: only one reader at a time uses the tails."""
        self._thread: asyncio.Future[None] | None = None
        """The newest turn that was done in a thread."""
        self._sent_facts: NcclFacts | None = None
        """The facts of the newest NcclTick, without the count of lines."""
        self._ticked = float("-inf")
        """Monotonic time of the newest NcclTick."""
        self._has_news = False
        """True if NCCL has written lines since then."""
        self._first_seen: dict[str, float] = {}
        """Unix time at which each communicator first appeared, by its id."""
        self._rdma = ((), None) if run.plan.backend == "gloo" else rdma()

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
        if left or self._has_news:
            self._report(left)
        if tails.left:
            return BEHIND_S
        return BUSY_S if left > IN_LOOP else EVERY_S

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Read in a thread. If this task is cancelled, the next reader waits for the thread."""
        await self._wait_for_thread()
        self._thread = asyncio.get_running_loop().run_in_executor(None, work)
        await asyncio.shield(self._thread)

    async def _wait_for_thread(self) -> None:
        """Wait for a thread that a cancelled task left running."""
        if self._thread is not None and not self._thread.done():
            await asyncio.wait({self._thread})

    async def _end(self) -> None:
        """Read the rest of the current attempt."""
        if self._tails is not None:
            await self._in_thread(self._tails.end)
            self._ticked = float("-inf")
            self._report(0)

    def _begin(self, attempt: int) -> None:
        """Follow an attempt's logs from their start. After an adoption, its findings stay raised."""
        self._tails = Tails(self._run.run_dir, self._run.node, attempt)
        self._sent_facts, self._first_seen = None, {}
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
        """Report new output, findings and facts after a turn. `left`: bytes that were unread before it."""
        assert self._tails is not None
        now, tails = clock.now(), self._tails
        for file, newest in tails.recent():
            self._receive_output(file, newest)
        events = self._findings.news(tails.reading, now)
        if tails.sampled:
            events += self._findings.behind(left, now)
        for event in events:
            self._run.emit(event)
        self._has_news = tails.reading.nccl_lines > 0
        if self._has_news and clock.monotonic() - self._ticked >= EVERY_S:
            self._has_news = False
            self._tick(tails, now)

    def _tick(self, tails: Tails, now: float) -> None:
        """Emit the facts if they have changed."""
        facts = nccl_facts.with_node_facts(tails.reading.facts(), self._run.node, *self._rdma)
        for comm in facts.communicators:
            self._first_seen.setdefault(comm.id, now)
        facts = structs.replace(
            facts,
            communicators=tuple(
                structs.replace(comm, seen=self._first_seen[comm.id]) for comm in facts.communicators
            ),
            behind=tails.left,
            sampled=tails.sampled,
        )
        without_count = structs.replace(facts, lines=0)  # a new count is no news
        if self._sent_facts != without_count:
            self._sent_facts, self._ticked = without_count, clock.monotonic()
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
