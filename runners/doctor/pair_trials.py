"""All-reduces between nodes or GPUs: workers on the nodes, and their reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..run.parts import in_background
from ..run.wire.ssh import HostError
from .pair_checks import Members, Result, first_round, second_round
from .session import NodeSession, Worker

START_SECONDS = 120.0
"""Seconds for the import of torch on every node: about a minute from a cold network file system."""
PAIR_SECONDS = 60.0
"""Seconds after the import for all work of one pair."""
TORCH_SHARE = 0.7
"""Timeout of torch as a share of these seconds. It fails with a reason."""
GRACE_SECONDS = 4.0
"""Seconds for the reports of the other members after a failure."""
ENVIRONMENT = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class PairMember:
    name: str
    session: NodeSession
    python: str
    """Interpreter of the training environment."""
    address: str
    """Address for the other members."""
    device: int | None = None
    """Index of a GPU; None: gloo on the processor."""


@dataclass
class _Seen:
    """Progress of a member."""

    stage: str = "import"
    error: str = ""
    seconds: float | None = None
    right: bool = True
    lost: bool = False
    over: bool = False
    lines: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.over and self.seconds is None


async def two_rounds(
    members: Sequence[PairMember],
    size: int,
    done: Callable[[int, int, int], None],
    seconds: float = PAIR_SECONDS,
) -> tuple[list[Result], list[Result]]:
    """Return all results of each round. `done` receives the round, the number of finished groups, and of all groups."""
    first = await _wave(members, first_round(len(members)), size, seconds, _counter(done, 1))
    second: list[Result] = []
    waves = second_round(first)
    count = _counter(done, 2)
    total = sum(len(wave) for wave in waves)
    for wave in waves:
        second += await _wave(members, wave, size, seconds, lambda more, _: count(more, total))
    return first, second


def _counter(done: Callable[[int, int, int], None], number: int) -> Callable[[int, int], None]:
    through = 0

    def count(more: int, total: int) -> None:
        nonlocal through
        through += more
        done(number, through, total)

    return count


async def _wave(
    members: Sequence[PairMember],
    groups: Sequence[Members],
    size: int,
    seconds: float,
    count: Callable[[int, int], None],
) -> list[Result]:
    async def measure(group: Members) -> Result:
        result = await try_group(members, group, size, seconds)
        count(1, len(groups))
        return result

    count(0, len(groups))
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(measure(group)) for group in groups]
    return [task.result() for task in running]


async def try_group(members: Sequence[PairMember], group: Members, size: int, seconds: float) -> Result:
    """Try one group's all-reduce within START_SECONDS and `seconds`."""
    chosen = [members[number] for number in group]
    seen = [_Seen() for _ in chosen]
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for rank, member in enumerate(chosen):
            spec = _spec(rank, chosen, member, size, seconds)
            run = member.session.run(member.python, spec, START_SECONDS + seconds)
            workers.append(await stack.enter_async_context(run))
        late = await _all_ready(workers, seen)
        if not late and not any(side.over for side in seen):
            late = await _reduced(workers, seen, seconds)
    return _result(group, size, chosen, seen, late)


def _spec(
    rank: int, chosen: Sequence[PairMember], member: PairMember, size: int, seconds: float
) -> dict[str, Any]:
    return {
        "do": "pair",
        "rank": rank,
        "world": len(chosen),
        "address": chosen[0].address,
        "device": member.device,
        "bytes": size,
        "seconds": seconds * TORCH_SHARE,
        "port": 0,
        "env": ENVIRONMENT,
    }


async def _all_ready(workers: Sequence[Worker], seen: Sequence[_Seen]) -> str:
    """Wait until all members have imported torch. Return the reason if they have not, else ""."""

    async def until_ready(worker: Worker, side: _Seen) -> None:
        while not side.over and side.stage == "import":
            await _hear(worker, side)

    tasks = [asyncio.create_task(until_ready(*pair)) for pair in zip(workers, seen, strict=True)]
    return await _all(tasks, START_SECONDS, f"torch was not imported within {START_SECONDS:.0f} s")


async def _reduced(workers: Sequence[Worker], seen: Sequence[_Seen], seconds: float) -> str:
    """Let the members connect and reduce. Return the reason if they do not end, else ""."""
    for worker in workers:
        await worker.write_line({"go": True})

    async def until_over(worker: Worker, side: _Seen, others: Sequence[Worker]) -> None:
        while not side.over:
            message = await _hear(worker, side)
            for other in others if "port" in message else ():
                await other.write_line({"port": message["port"]})

    tasks = [
        asyncio.create_task(until_over(worker, side, workers[1:] if not rank else ()))
        for rank, (worker, side) in enumerate(zip(workers, seen, strict=True))
    ]
    async with in_background(_grace(tasks, seen)):
        return await _all(tasks, seconds, f"not done within {seconds:.0f} s")


async def _grace(tasks: Sequence[asyncio.Task[None]], seen: Sequence[_Seen]) -> None:
    """After a failure, give the other members a short time, and then stop waiting for them."""
    waiting = set(tasks)
    while waiting and not any(side.failed for side in seen):
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(waiting, timeout=GRACE_SECONDS) if waiting else None
    for task in waiting:
        task.cancel()


async def _all(tasks: Sequence[asyncio.Task[None]], seconds: float, late: str) -> str:
    """Wait for all tasks. Return `late` if some are not done in time, else ""."""
    try:
        done, waiting = await asyncio.wait(tasks, timeout=seconds)
        for task in done:
            if not task.cancelled():
                task.result()
        return late if waiting else ""
    finally:
        for task in tasks:
            task.cancel()


async def _hear(worker: Worker, side: _Seen) -> dict[str, Any]:
    """Process a member's next message."""
    try:
        message = await worker.hear()
    except HostError as error:
        side.error, side.lost, side.over = str(error), True, True
        return {}
    side.stage = message.get("stage", side.stage)
    side.error = message.get("error", side.error)
    if "seconds" in message:
        side.seconds, side.right, side.over = message["seconds"], message["right"], True
    if "exit" in message:
        side.over, side.lines = True, message["lines"]
        if side.seconds is None and not side.error:
            side.lost, side.error = True, _ended(message)
    return message


def _ended(message: dict[str, Any]) -> str:
    code = message["exit"]
    last = f": {message['lines'][-1]}" if message["lines"] else ""
    return (
        f"its process was killed by signal {-code}{last}"
        if (code or 0) < 0
        else f"ended with code {code}{last}"
    )


def _result(
    group: Members, size: int, chosen: Sequence[PairMember], seen: Sequence[_Seen], late: str
) -> Result:
    times = [side.seconds for side in seen]
    measured = [value for value in times if value is not None]
    if len(measured) == len(seen):
        return Result(group, size, max(measured), all(side.right for side in seen))
    return Result(group, size, problem=_problem(chosen, seen, late))


def _problem(chosen: Sequence[PairMember], seen: Sequence[_Seen], late: str) -> str:
    """Return the reason of a lost member, else of a failed one, else the stage of each member."""
    pairs = list(zip(chosen, seen, strict=True))
    for member, side in sorted(pairs, key=lambda pair: not pair[1].lost):
        if side.error:
            warned = [line for line in side.lines if "NCCL WARN" in line]
            more = f" ({warned[-1]})" if warned else ""
            return f"{member.name}, in {_where(side.stage)}: {side.error}{more}"
    stages = ", ".join(f"{member.name} in {_where(side.stage)}" for member, side in pairs)
    return f"{late or 'no answer'}: {stages}"


def _where(stage: str) -> str:
    return {"import": "the import of torch", "ready": "the start", "connect": "meeting the other"}.get(
        stage, f"the {stage}"
    )
