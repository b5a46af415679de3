"""Query NCCL's RAS, rarely and only if it is safe. Its answer is a hint in addition to the detectors' evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ...presets.finding import Finding
from ..diagnosis import ras
from ..diagnosis.rules import parse_version
from ..run import clock
from ..run.formatting import spans_text
from ..run.model import Pulse, RankPhase
from ..run.state import RunState
from .runner_process import ServedRun

EVERY_S = 10.0
"""Shortest time between two queries, in seconds."""
WAITS_S = 10.0
"""Seconds that a rank must have waited in a collective before a query."""
LIMIT_S = 8.0
ANSWERS_S, ASKED = 1.0, 8
"""Seconds until a living process answers, and the number of tries."""
LARGEST = 8 << 20
ID = "nccl-ras"


def refusal(state: RunState, now: float) -> str:
    """Return why RAS must not be queried now, or "". Pure.

    Queries during an init, or of NCCL before 2.28, have crashed ranks (NVIDIA/nccl #1669, #1718, #1996, #2346).
    """
    ranks = state.ranks
    if not ranks or any(rank.phase is not RankPhase.RUNNING for rank in ranks.values()):
        return "not every rank runs"
    oldest = min(parse_version(rank.nccl_version or "") for rank in ranks.values())
    if not oldest:
        return "the version of NCCL is not known on every rank"
    if oldest < ras.SINCE:
        return "RAS of NCCL before 2.28.7 has crashed jobs that asked it"
    pulses = {number: rank.pulse for number, rank in ranks.items()}
    if not _all_joined(
        {number: pulse for number, pulse in pulses.items() if pulse is not None}, len(ranks)
    ):
        return "not every rank has finished a first collective"
    if not any(_waits(pulse, now) for pulse in pulses.values()):
        return "no rank waits"
    return ""


def _all_joined(pulses: Mapping[int, Pulse], ranks: int) -> bool:
    """Return True if every rank has completed a collective, and none is in a group's first one (communicator setup)."""
    ended = [pulse for pulse in pulses.values() if any(group.completed > 0 for group in pulse.groups)]
    making = [pulse for pulse in pulses.values() if any(call.seq <= 1 for call in pulse.active)]
    return len(ended) == ranks and not making


def _waits(pulse: Pulse | None, now: float) -> bool:
    return pulse is not None and any(call.created and now - call.created > WAITS_S for call in pulse.active)


async def ask(port: int, hosts: tuple[str, ...] = ("::1", "127.0.0.1")) -> ras.RasReport:
    """Return one report of all communicators known to a process on `port`. Raises OSError, TimeoutError, RasError.

    The ranks of a node share the port, and the kernel connects to any of them, even to a stopped one. Without a quick
    answer, the next connection may reach another rank.
    """
    problem: OSError = OSError("no process listens")
    for host in hosts * ASKED:
        try:
            async with asyncio.timeout(ANSWERS_S):
                reader, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            problem = error
            continue
        try:
            if await _greeted(reader, writer):
                async with asyncio.timeout(LIMIT_S):
                    return ras.parse(await _status(reader, writer))
            problem = TimeoutError("no answer")
        finally:
            writer.close()
    raise problem


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Agree on the protocol. Return False without an answer."""
    try:
        async with asyncio.timeout(ANSWERS_S):
            for line in ("CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json"):
                writer.write(line.encode() + b"\n")
                answer = (await reader.readline()).decode("utf-8", "replace").strip()
                if not answer.startswith(("SERVER PROTOCOL", "OK")):
                    raise ras.RasError(f"RAS answered {answer[:80]!r} to {line}")
    except TimeoutError:
        return False
    except ras.RasError:
        raise
    except ValueError:
        raise ras.RasError("RAS sends a line without an end") from None
    return True


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"VERBOSE STATUS\n")
    parts, size = [], 0
    while block := await reader.read(1 << 16):
        parts.append(block)
        size += len(block)
        if size > LARGEST:
            raise ras.RasError("RAS sends without an end")
    return b"".join(parts).decode("utf-8", "replace")


class RasWatch:
    """Queries while ranks wait, and reports ranks without progress between two answers.

    Only the head's agent has one.
    """

    def __init__(self, run: ServedRun) -> None:
        self._run = run
        self._before: ras.RasReport | None = None
        address = run.plan.env.get("NCCL_RAS_ADDR", "")
        self._port = int(address.rpartition(":")[2]) if address.rpartition(":")[2].isdigit() else None
        self._off = self._port is None or run.plan.env.get("NCCL_RAS_ENABLE") == "0"

    async def run(self) -> None:
        """Query until cancelled."""
        while not self._off:
            await asyncio.sleep(EVERY_S)
            if refusal(self._run.state, clock.now()):
                self._before = None
                self._report(None)
            else:
                await self._ask()

    async def _ask(self) -> None:
        assert self._port is not None
        try:
            now = await ask(self._port)
        except (OSError, TimeoutError, ras.RasError):
            return  # a hint only: no answer means no hint
        before, self._before = self._before, now
        self._report(judge(before, now, self._run.node) if before is not None else None)

    def _report(self, finding: Finding | None) -> None:
        if finding is None:
            self._run.findings.clear(ID, node=self._run.node)
        else:
            self._run.findings.raise_finding(finding)


def judge(before: ras.RasReport, now: ras.RasReport, node: int) -> Finding | None:
    """Compare two reports. Return None if nothing is wrong. Pure."""
    evidence = [
        f"{spans_text('rank', lag.ranks)} launched {lag.operation} {lag.count} times, most ranks {lag.most} times, and "
        f"nothing moved between two reports (communicator {lag.communicator})"
        for lag in ras.stuck(before, now)
    ]
    gone = [peer for peer in ras.missing(now) if peer in ras.missing(before)]
    for peer in gone:
        state = "is taken for dead" if peer.dead else "does not answer"
        where = " ".join(part for part in (f"pid {peer.pid}" if peer.pid else "", peer.host) if part)
        evidence.append(f"rank {peer.rank}{f' ({where})' if where else ''} {state}")
    if not evidence:
        return None
    ranks = {rank for lag in ras.stuck(before, now) for rank in lag.ranks} | {peer.rank for peer in gone}
    return Finding(
        ID,
        "note",
        f"NCCL's RAS names {spans_text('rank', ranks)} as behind or silent",
        role="hint",
        ranks=tuple(sorted(ranks)),
        node=node,
        remedy="a hint, no proof: RAS counts launches and does not count Send and Recv; compare these stacks",
        evidence=tuple(evidence),
    )
