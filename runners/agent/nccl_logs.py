"""Reads what NCCL and torch write into the ranks' logs while they write it: findings, and statements for the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Raw, structs

from ..diagnosis import bugs, live
from ..diagnosis.facts import Facts
from ..diagnosis.reading import Reading
from ..diagnosis.rules import book
from ..diagnosis.verdict import Finding as Said
from ..diagnosis.verdict import finding_of, fired
from ..logs.files import attempt_dir
from ..model import Finding, FindingCleared, FindingRaised, NcclTick
from .flood import Guard
from .tails import Tails

if TYPE_CHECKING:
    from .agent import Agent

EVERY_S = 2.0
BUSY_S, BEHIND_S = 0.2, 0.02
"""Between two turns while much is written, and while there is more to read."""
IN_LOOP = 256 << 10
"""Bytes that are read between other things; more of them in a thread."""
RETRIED_S = 20.0
"""A peer that is tried again for as long as this is no late starter."""
RETRIED = ("sock-refused-retry", "tcpx-timeout")
"""Rules of lines that are usual while other ranks still start."""
MILD = ("ras-no-listen",)
"""Rules of what does no harm to the job."""
ELSEWHERE = ("net-socket-fallback", "version-mismatch")
"""Derived from what all nodes say: see detectors/promises.py."""
BEHIND_ID = "logs-behind"


class Told:
    """The findings of one attempt's logs that were raised: each once, with what was known then."""

    def __init__(self, node: int, known: dict[str, Finding] | None = None) -> None:
        self._node = node
        self.raised: dict[str, Finding] = dict(known or {})
        self._since: dict[str, tuple[float, int]] = {}
        """Of what is only looked at: when it was first seen, and how many lines said so then."""

    def news(self, reading: Reading, now: float) -> list[FindingRaised | FindingCleared]:
        """What is to be told after more was read. A symptom is told where no cause is known, and taken back then."""
        found = [one for one in self._said(reading) if one.id not in self.raised]
        events: list[FindingRaised | FindingCleared] = []
        for role in ("cause", "hint", "symptom"):
            if role == "symptom" and self._cause():
                events += [self._clear(name) for name in self._of("symptom")]
                break
            for one in found:
                if one.role == role and (severity := self._severity(one, now)):
                    events.append(self._raise(self._finding(one, severity, now)))
        return events

    def behind(self, left: int, now: float) -> list[FindingRaised | FindingCleared]:
        """Parts were skipped: told once, with how many bytes were left to read then."""
        if BEHIND_ID in self.raised:
            return []
        text = "the logs grow faster than they can be read: of what is between, only warnings are looked at"
        seen = f"{left / 1e6:.0f} MB were not read yet when parts were first left out; the files are whole"
        remedy = "`distui nccl RUN WARN` ends a flood of NCCL's; `distui diagnose` reads the files whole"
        one = Finding(BEHIND_ID, "info", text, "fact", None, self._node, remedy, (seen,), since=now)
        return [self._raise(one)]

    def _said(self, reading: Reading) -> Iterator[Said]:
        for entry, seen in fired(reading):
            if entry.count or entry.rule.id not in ELSEWHERE:
                yield finding_of(entry, seen, reading)

    def _cause(self) -> bool:
        return any(one.role == "cause" and one.severity == "error" for one in self.raised.values())

    def _of(self, role: str) -> list[str]:
        return [name for name, one in self.raised.items() if one.role == role]

    def _severity(self, one: Said, now: float) -> str | None:
        """None: not yet."""
        if one.id in RETRIED:
            since, count = self._since.setdefault(one.id, (now, one.count))
            if now - since < RETRIED_S or one.count == count:
                return None
        return "info" if one.role == "symptom" or one.id in MILD else one.severity

    def _finding(self, one: Said, severity: str, now: float) -> Finding:
        lines = (f"{its.file}:{its.line}: {its.text}" for its in one.evidence)
        return Finding(
            id=one.id,
            severity=severity,
            text=one.text,
            role=one.role,
            rank=one.rank,
            node=self._node,
            remedy=one.remedy,
            evidence=tuple(([one.seen] if one.seen else []) + list(lines)),
            ranks=one.ranks if len(one.ranks) > 1 else (),
            since=now,
        )

    def _raise(self, one: Finding) -> FindingRaised:
        self.raised[one.id] = one
        return FindingRaised(one)

    def _clear(self, name: str) -> FindingCleared:
        one = self.raised.pop(name)
        return FindingCleared(one.id, one.rank, one.node)


class NcclLogs:
    """Follows the logs of this node's ranks for as long as the run lives."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._guard = Guard(agent)
        self._tails: Tails | None = None
        self._told = Told(agent.node)
        self._turns = asyncio.Lock()
        self._working: asyncio.Future[None] | None = None
        self._last: Facts | None = None
        self._ticked, self._dirty = float("-inf"), False
        self._seen: dict[str, float] = {}
        self._own = ((), None) if agent.plan.backend == "gloo" else rdma()

    async def run(self) -> None:
        """Tell an NcclTick when there is news; cancelled, it reads what is left."""
        guarding = asyncio.create_task(self._guard.run())
        try:
            while True:
                async with self._turns:
                    (pause,) = await asyncio.gather(self._turn(), return_exceptions=True)
                if isinstance(pause, BaseException):
                    self._failed(pause)
                    return
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            await self.finish()
            raise
        finally:
            guarding.cancel()

    async def finish(self) -> None:
        """Read what is left, before the end of the run is told."""
        if self._tails is not None:
            self._tails.hurry()
        async with self._turns:
            (failed,) = await asyncio.gather(self._end(), return_exceptions=True)
        if failed is not None:
            self._failed(failed)

    def _failed(self, error: BaseException) -> None:
        """A bug in reading must not end the agent, and must be seen."""
        self._tails = None
        found = bugs.told(error, "logs-unread", "the logs are read no further", self._agent.node)
        self._agent.emit(FindingRaised(found))

    # ---- turns

    async def _turn(self) -> float:
        """Read some of what is there; seconds until the next time."""
        attempt = self._agent.state.attempt
        if not attempt:
            return EVERY_S
        if self._tails is None or self._tails.attempt != attempt:
            await self._end()
            self._begin(attempt)
        tails = self._tails
        assert tails is not None
        left = tails.look()
        if left > IN_LOOP:
            await self._in_thread(tails.drain)
        else:
            for _ in tails.turn():
                await asyncio.sleep(0)
        if left or self._dirty:
            self._tell(left)
        return BEHIND_S if tails.left else BUSY_S if left > IN_LOOP else EVERY_S

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Let a thread read. It is waited for even where this task is cancelled: by the next who reads."""
        await self._rest()
        self._working = asyncio.get_running_loop().run_in_executor(None, work)
        await asyncio.shield(self._working)

    async def _rest(self) -> None:
        """Wait for a thread that was left alone."""
        if self._working is not None and not self._working.done():
            await asyncio.wait({self._working})

    async def _end(self) -> None:
        """All that is left of the attempt that is read now."""
        if self._tails is not None:
            await self._in_thread(self._tails.end)
            self._ticked = float("-inf")
            self._tell(0)

    def _begin(self, attempt: int) -> None:
        """An attempt's logs from their start; after an adoption what was raised of them already stays so."""
        self._tails = Tails(self._agent.run_dir, self._agent.node, attempt)
        self._last, self._seen = None, {}
        node = self._agent.state.nodes.get(self._agent.node)
        if node is not None and node.nccl is not None:  # of the attempt before
            self._agent.emit(NcclTick(attempt, Raw(live.encode(Facts()))))
        here = attempt_dir(self._agent.node, attempt) + "/"
        names = {rule.id for rule in book().rules} | {BEHIND_ID}
        known: dict[str, Finding] = {}
        for one in list(self._agent.state.findings.values()):
            if one.id not in names or one.node != self._agent.node:
                continue
            if any(here in line for line in one.evidence):
                known[one.id] = one
            else:
                self._agent.emit(FindingCleared(one.id, one.rank, one.node))
        self._told = Told(self._agent.node, known)

    # ---- telling

    def _tell(self, left: int) -> None:
        assert self._tails is not None
        now, tails = time.time(), self._tails
        events = self._told.news(tails.reading, now)
        if tails.sampled:
            events += self._told.behind(left, now)
        for event in events:
            self._agent.emit(event)
        self._dirty = tails.reading.nccl_lines > 0
        if self._dirty and time.monotonic() - self._ticked >= EVERY_S:
            self._dirty = False
            self._tick(tails, now)

    def _tick(self, tails: Tails, now: float) -> None:
        """Statements, where they are not the same as before."""
        facts = live.placed(live.collect(tails.reading), self._agent.node, *self._own)
        for one in facts.communicators:
            self._seen.setdefault(one.id, now)
        facts = structs.replace(
            facts,
            communicators=tuple(
                structs.replace(one, seen=self._seen[one.id]) for one in facts.communicators
            ),
            behind=tails.left,
            sampled=tails.sampled,
        )
        same = structs.replace(facts, lines=0)
        if self._last != same:
            self._last, self._ticked = same, time.monotonic()
            self._agent.emit(NcclTick(tails.attempt, Raw(live.encode(facts))))


def rdma(root: Path = Path("/")) -> tuple[tuple[str, ...], bool | None]:
    """Ports of RDMA devices that are active here, as "mlx5_0:1"; and whether nvidia_peermem is loaded, None if not."""
    found = []
    for state in sorted((root / "sys/class/infiniband").glob("*/ports/*/state")):
        try:
            active = "ACTIVE" in state.read_text("ascii", "replace")
        except OSError:
            continue
        if active:
            found.append(f"{state.parts[-4]}:{state.parts[-2]}")
    peermem = (root / "sys/module/nvidia_peermem").is_dir() or (root / "sys/module/nv_peer_mem").is_dir()
    return tuple(found), True if peermem else None
