"""All-reduce between pairs of nodes in two rounds, which names the slow or dead one."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..remote_hosts import HostError
from .session import NodeSession, Worker

# -----------------------------------------------------------------------------------------------------------
# Which pairs try an all-reduce, and what follows: two rounds, as DLRover's node check has them. Pure.
# In the first round each node is in one pair; an odd one joins a pair. In the second, each that was in a bad pair
# tries with one of a good pair: who is bad in both is the culprit; where both are good with others, it is what lies
# between.


SLOW = 2.0
"""A pair is slow when the median one is more than so many times quicker."""
State = Literal["good", "slow", "wrong", "dead"]
STATES: tuple[State, ...] = ("good", "slow", "wrong", "dead")
"""From the best."""
Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one group."""

    members: Members
    size: int
    """Bytes that were reduced."""
    seconds: float | None = None
    """Of one all-reduce, of its slowest member; None when it did not come about."""
    right: bool = True
    """Whether the sums were right."""
    problem: str = ""
    """Why it did not come about: who said what."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second on each member's link (nccl-tests' bus bandwidth): comparable between two and three members."""
        if self.seconds is None:
            return None
        count = len(self.members)
        return 2 * (count - 1) / count * self.size / max(self.seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is to blame, by the members' numbers."""

    nodes: dict[int, State]
    links: dict[Members, State]
    """Groups that are bad although each of them works with others, or of which nothing more can be said."""
    nothing_works: bool = False
    """More than two tried, and nobody with success: nobody can be singled out."""


def first_round(count: int) -> list[Members]:
    """Pairs (0,1), (2,3)…; the last of an odd number makes a pair a triple."""
    if count < 2:
        return []
    pairs: list[Members] = [(at, at + 1) for at in range(0, count - 1, 2)]
    if count % 2:
        pairs[-1] = (*pairs[-1], count - 1)
    return pairs


def usual(results: Iterable[Result]) -> float | None:
    """Median bandwidth of what worked; of two the better. None where nothing did."""
    bandwidths = [result.bandwidth for result in results if result.bandwidth is not None and result.right]
    return statistics.median_high(bandwidths) if bandwidths else None


def state(result: Result, reference: float | None) -> State:
    """How a group did; `reference`: the usual bandwidth."""
    if result.bandwidth is None:
        return "dead"
    if not result.right:
        return "wrong"
    return "slow" if reference is not None and result.bandwidth * SLOW < reference else "good"


def second_round(first: Sequence[Result]) -> list[list[Members]]:
    """Groups that clear up what the first round left open; those of one list have nobody in common."""
    reference = usual(first)
    bad = [result.members for result in first if state(result, reference) != "good"]
    suspects = [member for group in bad for member in group]
    good = [
        member for result in first if state(result, reference) == "good" for member in result.members
    ]  # fmt: skip
    if good:
        pairs = [(suspect, good[at % len(good)]) for at, suspect in enumerate(suspects)]
    elif len(suspects) == 3:
        pairs = [(suspects[0], suspects[1]), (suspects[0], suspects[2]), (suspects[1], suspects[2])]
    elif len(suspects) > 3:
        half = len(suspects) // 2
        pairs = [(suspects[at], suspects[at + half]) for at in range(half)]
        pairs += [(suspects[-1], suspects[0])] if len(suspects) % 2 else []
    else:
        pairs = []
    return _waves(pairs)


def _waves(pairs: Sequence[tuple[int, int]]) -> list[list[Members]]:
    """The same pairs, so that nobody is in two of one wave."""
    waves: list[list[Members]] = []
    for pair in pairs:
        for wave in waves:
            if not any(member in group for group in wave for member in pair):
                wave.append(pair)
                break
        else:
            waves.append([pair])
    return waves


def verdict(first: Sequence[Result], second: Sequence[Result]) -> Blame:
    """What both rounds say together."""
    reference = usual(first) or usual(second)
    states = [(result.members, state(result, reference)) for result in (*first, *second)]
    cleared = {member for members, how in states if how == "good" for member in members}
    bad = [(members, how) for members, how in states if how != "good"]
    everyone = {member for members, _ in states for member in members}
    if not cleared and len(everyone) > 2:
        return Blame({}, {}, nothing_works=True)
    nodes: dict[int, State] = {}
    for member in sorted(everyone - cleared):
        outcomes = [how for members, how in bad if member in members]
        if len(outcomes) > 1:
            # Who did reduce with somebody is not dead: where it did not, the other may be.
            nodes[member] = _worst([how for how in outcomes if how != "dead"] or outcomes)
    links = {members: how for members, how in bad if not _explained(members, how, nodes)}
    return Blame(
        nodes,
        {
            members: how
            for members, how in links.items()
            if not any(set(other) < set(members) for other in links)  # a pair says more than its triple
        },
    )


def _explained(members: Members, how: State, nodes: Mapping[int, State]) -> bool:
    """Whether one of a group is known to be as bad as the group was."""
    return any(STATES.index(nodes.get(member, "good")) >= STATES.index(how) for member in members)


def _worst(states: Iterable[State]) -> State:
    return max(states, key=STATES.index)


# -----------------------------------------------------------------------------------------------------------
# The two rounds, really: workers on the nodes, and what each pair said.


START_SECONDS = 120.0
"""Until torch is imported on every node: about a minute from a cold network file system."""
PAIR_SECONDS = 60.0
"""From then on, for all of one pair."""
TORCH_SHARE = 0.7
"""Of that, what torch may wait before it gives up and says why."""
GRACE_SECONDS = 4.0
"""How long the others may take to say what they saw, once a member has failed."""
ENVIRONMENT = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class PairMember:
    """One rank of a pair."""

    name: str
    session: NodeSession
    python: str
    """Interpreter of the training environment."""
    address: str
    """By which the others reach it."""
    device: int | None = None
    """Index of a GPU; None: gloo on the processor."""


@dataclass
class _Seen:
    """How far a member came."""

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
    """All results of each round. `done` hears of round, groups that are through, and all of them."""
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
    """One group's all-reduce, within START_SECONDS and `seconds`."""
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
    """Wait until each has imported torch; why not, or ""."""

    async def until_ready(worker: Worker, side: _Seen) -> None:
        while not side.over and side.stage == "import":
            await _hear(worker, side)

    tasks = [asyncio.create_task(until_ready(*pair)) for pair in zip(workers, seen, strict=True)]
    return await _all(tasks, START_SECONDS, f"torch was not imported within {START_SECONDS:.0f} s")


async def _reduced(workers: Sequence[Worker], seen: Sequence[_Seen], seconds: float) -> str:
    """Let them meet and reduce; why they did not end, or ""."""
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
    watching = asyncio.create_task(_grace(tasks, seen))
    try:
        return await _all(tasks, seconds, f"not done within {seconds:.0f} s")
    finally:
        watching.cancel()


async def _grace(tasks: Sequence[asyncio.Task[None]], seen: Sequence[_Seen]) -> None:
    """Once one has failed, the others get a little time, and are no longer waited for."""
    waiting = set(tasks)
    while waiting and not any(side.failed for side in seen):
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(waiting, timeout=GRACE_SECONDS) if waiting else None
    for task in waiting:
        task.cancel()


async def _all(tasks: Sequence[asyncio.Task[None]], seconds: float, late: str) -> str:
    """Wait for all; `late` when they are not through in time."""
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
    """Take in what a member says next."""
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
        side.over, side.lines = True, message["said"]
        if side.seconds is None and not side.error:
            side.lost, side.error = True, _ended(message)
    return message


def _ended(message: dict[str, Any]) -> str:
    code = message["exit"]
    last = f": {message['said'][-1]}" if message["said"] else ""
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
    """Whose words matter: of one that is gone, of one that failed, of nobody."""
    pairs = list(zip(chosen, seen, strict=True))
    for member, side in sorted(pairs, key=lambda pair: not pair[1].lost):
        if side.error:
            warned = [line for line in side.lines if "NCCL WARN" in line]
            more = f" ({warned[-1]})" if warned else ""
            return f"{member.name}, in {_where(side.stage)}: {side.error}{more}"
    stood = ", ".join(f"{member.name} in {_where(side.stage)}" for member, side in pairs)
    return f"{late or 'no answer'}: {stood}"


def _where(stage: str) -> str:
    return {"import": "the import of torch", "ready": "the start", "connect": "meeting the other"}.get(
        stage, f"the {stage}"
    )
