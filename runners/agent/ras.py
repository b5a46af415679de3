"""Asks NCCL's RAS, rarely and only where it is safe; what it says is a hint beside the detectors' own evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..diagnosis import ras
from ..model import Finding, FindingCleared, FindingRaised, Pulse, RankPhase
from ..state import RunState

if TYPE_CHECKING:
    from .agent import Agent

EVERY_S = 10.0
"""Between two questions, at least."""
WAITS_S = 10.0
"""A rank has waited so long in a collective before RAS is asked at all."""
LIMIT_S = 8.0
LARGEST = 8 << 20
ID = "nccl-ras"


def refusal(state: RunState, always: bool, now: float) -> str:
    """Why RAS is not to be asked now; "" when it may be. Pure.

    Asking during an init, or NCCL before 2.28, has crashed ranks (NVIDIA/nccl #1669, #1718, #1996, #2346).
    `always`: the user has set NCCL_RAS_ENABLE=1, and wants it also of 2.24 to 2.27.
    """
    ranks = state.ranks
    if not ranks or any(rank.phase is not RankPhase.RUNNING for rank in ranks.values()):
        return "not every rank runs"
    versions = {ras.parse_version(rank.nccl_version or "") for rank in ranks.values()}
    oldest = min((version for version in versions if version is not None), default=None)
    if oldest is None or None in versions:
        return "the version of NCCL is not known on every rank"
    if oldest < (2, 24, 0):
        return "NCCL has RAS from 2.24 on"
    if oldest < ras.TRUSTED_SINCE and not always:
        return "RAS of NCCL 2.24 to 2.27 has crashed jobs that asked it; --nccl RAS_ENABLE=1 has it asked"
    pulses = {number: rank.pulse for number, rank in ranks.items()}
    if not _all_joined(
        {number: pulse for number, pulse in pulses.items() if pulse is not None}, len(ranks)
    ):
        return "not every rank has finished a first collective"
    if not any(_waits(pulse, now) for pulse in pulses.values()):
        return "no rank waits"
    return ""


def _all_joined(pulses: Mapping[int, Pulse], ranks: int) -> bool:
    """Whether every rank has ended a collective, and none is in the first one of a group: which makes communicators."""
    ended = [pulse for pulse in pulses.values() if any(group.completed > 0 for group in pulse.groups)]
    making = [pulse for pulse in pulses.values() if any(one.seq <= 1 for one in pulse.active)]
    return len(ended) == ranks and not making


def _waits(pulse: Pulse | None, now: float) -> bool:
    return pulse is not None and any(one.created and now - one.created > WAITS_S for one in pulse.active)


async def ask(port: int, as_json: bool, hosts: tuple[str, ...] = ("::1", "127.0.0.1")) -> ras.Report:
    """One report of all communicators that the process behind `port` knows. Raises OSError, TimeoutError, RasError."""
    problem: OSError = OSError("nobody listens")
    for host in hosts:
        try:
            async with asyncio.timeout(LIMIT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            problem = error
            continue
        try:
            async with asyncio.timeout(LIMIT_S):
                return ras.parse(await _converse(reader, writer, as_json))
        finally:
            writer.close()
    raise problem


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, as_json: bool) -> str:
    said = ["CLIENT PROTOCOL 2", "TIMEOUT 5", *(["SET FORMAT json"] if as_json else [])]
    for line in said:
        writer.write(line.encode() + b"\n")
        answer = (await reader.readline()).decode("utf-8", "replace").strip()
        if not answer.startswith(("SERVER PROTOCOL", "OK")):
            raise ras.RasError(f"RAS answered {answer[:80]!r} to {line}")
    writer.write(b"VERBOSE STATUS\n")
    parts, size = [], 0
    while block := await reader.read(1 << 16):
        parts.append(block)
        size += len(block)
        if size > LARGEST:
            raise ras.RasError("RAS sends without an end")
    return b"".join(parts).decode("utf-8", "replace")


class RasWatch:
    """Asks while ranks wait, and tells what did not move between two answers. Only the head's agent has one."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._before: ras.Report | None = None
        self._told: Finding | None = None
        address = agent.plan.env.get("NCCL_RAS_ADDR", "")
        self._port = int(address.rpartition(":")[2]) if address.rpartition(":")[2].isdigit() else None
        self._always = agent.plan.env.get("NCCL_RAS_ENABLE") == "1"
        self._off = self._port is None or agent.plan.env.get("NCCL_RAS_ENABLE") == "0"

    async def run(self) -> None:
        """For as long as the run lives; cancel to stop."""
        while not self._off:
            await asyncio.sleep(EVERY_S)
            if refusal(self._agent.state, self._always, time.time()):
                self._before = None
                self._tell(None)
            else:
                await self._ask()

    async def _ask(self) -> None:
        assert self._port is not None
        oldest = min(
            ras.parse_version(rank.nccl_version or "") or (0, 0, 0)
            for rank in self._agent.state.ranks.values()
        )
        try:
            now = await ask(self._port, oldest >= ras.JSON_SINCE)
        except (OSError, TimeoutError, ras.RasError):
            return  # it is a hint: without an answer nothing is said
        before, self._before = self._before, now
        self._tell(judge(before, now, self._agent.node) if before is not None else None)

    def _tell(self, finding: Finding | None) -> None:
        if finding is None and self._told is not None:
            self._agent.emit(FindingCleared(ID, node=self._agent.node))
        elif finding is not None and finding != self._told:
            self._agent.emit(FindingRaised(finding))
        self._told = finding


def judge(before: ras.Report, now: ras.Report, node: int) -> Finding | None:
    """What two reports say together; None where nothing is wrong. Pure."""
    evidence = [
        f"{_named(one.ranks)} launched {one.operation} {one.count} times, most ranks {one.most} times, and nothing "
        f"moved between two reports (communicator {one.communicator})"
        for one in ras.stuck(before, now)
    ]
    gone = [one for one in ras.missing(now) if one in ras.missing(before)]
    for one in gone:
        state = "is taken for dead" if one.dead else "does not answer"
        where = " ".join(part for part in (f"pid {one.pid}" if one.pid else "", one.host) if part)
        evidence.append(f"rank {one.rank}{f' ({where})' if where else ''} {state}")
    if not evidence:
        return None
    ranks = {rank for one in ras.stuck(before, now) for rank in one.ranks} | {one.rank for one in gone}
    return Finding(
        ID,
        "info",
        f"NCCL's RAS names {_named(tuple(sorted(ranks)))} as behind or silent",
        role="hint",
        ranks=tuple(sorted(ranks)),
        node=node,
        remedy="a hint, no proof: RAS counts launches and knows nothing of Send and Recv; look at these stacks",
        evidence=tuple(evidence),
    )


def _named(ranks: tuple[int, ...]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
