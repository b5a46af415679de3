"""Made trainings: what the ranks' flight recorders and hooks say, pulse by pulse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from distui.runners.diagnosis.arrivals import Arrivals
from distui.runners.diagnosis.view import PULSES_KEPT, View
from distui.runners.run.model import RankPhase, RankPlace
from distui.runners.run.pulse import Collective, ProcessGroup, Pulse, Site
from distui.runners.run.samples import RankSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

BEGAN = 1_000_000.0
STACK = (Site("/job/train.py", 40, "train"),)
LOADER = (
    Site("/job/data.py", 12, "__getitem__"),
    Site("/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 54, "fetch"),
    Site("/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 757, "_next_data"),
    *STACK,
)


def arrivals_of(history: Mapping[int, Sequence[Pulse]], world: int) -> Arrivals:
    """The calls in all of these pulses."""
    made = Arrivals()
    for pulse in sorted(
        (pulse for pulses in history.values() for pulse in pulses), key=lambda pulse: pulse.at
    ):
        made.add(pulse, world)
    return made


def view_of(state: RunState, now: float, history: Mapping[int, Sequence[Pulse]]) -> View:
    """A view whose arrivals are those of its pulses."""
    arrivals = arrivals_of(history, state.attempts[-1].world_size)
    return View(state=state, plan=None, now=now, history=history, arrivals=arrivals)


@dataclass
class Training:
    """Ranks that meet in collectives of one group; `late(rank, step)`: extra seconds before the first of a step."""

    ranks: int = 4
    nodes: int = 1
    step_s: float = 0.5
    calls: int = 4
    """Collectives of a step."""
    overlap: bool = False
    """Called one after the other without waiting, as DDP does with its buckets."""
    late: Callable[[int, int], float] = lambda rank, step: 0.0
    skew: Mapping[int, float] = field(default_factory=dict)
    """Node → seconds by which its clock is ahead."""
    op: str = "all_reduce"
    begins: str = ""
    """The first collective of each step, in which nobody waits, as that of DDP for its buffers."""
    nccl: bool = False
    counted: bool = True
    """Whether the hook counts steps."""
    stacks: Mapping[int, Sequence[Site]] = field(default_factory=dict)
    group: str = "0"
    told: bool = True
    """Whether the recorder names the group's ranks."""

    def node(self, rank: int) -> int:
        return rank * self.nodes // self.ranks

    def history(self, seconds: float = 40.0, every: float = 5.0) -> dict[int, list[Pulse]]:
        """Pulses of all ranks, the newest PULSES_KEPT."""
        calls = self._run(seconds)
        looks = [BEGAN + every * number for number in range(1, int(seconds / every) + 1)][-PULSES_KEPT:]
        return {rank: [self._pulse(rank, calls[rank], at) for at in looks] for rank in range(self.ranks)}

    def _run(self, seconds: float) -> list[list[Collective]]:
        found: list[list[Collective]] = [[] for _ in range(self.ranks)]
        now, step = [BEGAN] * self.ranks, 0
        while max(now) < BEGAN + seconds:
            now = [at + self.late(rank, step) for rank, at in enumerate(now)]
            ends = 0.0
            for number in range(self.calls):
                now = [at + self.step_s / self.calls for at in now]
                ends = max(now)
                op = self.op if number or not self.begins else self.begins
                self._call(found, now, step * self.calls + number + 1, ends, op)
                if not self.overlap and op == self.op:
                    now = [ends + 0.001] * self.ranks
            now = [ends + 0.001] * self.ranks
            step += 1
        return found

    def _call(self, found: list[list[Collective]], at: list[float], seq: int, ends: float, op: str) -> None:
        for rank, time in enumerate(at):
            created = time + self.skew.get(self.node(rank), 0.0)
            timed = {"started": True, "duration_ms": 1000 * (ends - time) + 1} if self.nccl else {}
            if self.nccl:
                created = ends - 0.1  # a call returns at once: its time says nothing
            found[rank].append(Collective(self.group, seq, op, created=created, done=True, **timed))  # type: ignore[arg-type]

    def _pulse(self, rank: int, calls: list[Collective], at: float) -> Pulse:
        before = [one for one in calls if one.created <= at]
        ranks = tuple(range(self.ranks)) if self.told else ()
        return Pulse(
            rank=rank, at=at, pid=100 + rank, hook=True, stack=tuple(self.stacks.get(rank, STACK)), samples=1,
            step=len(before) // self.calls if self.counted else None,
            groups=(ProcessGroup(self.group, ranks, enqueued=len(before), completed=len(before)),),
            recent=tuple(before[-64:]), recorder=True,
        )  # fmt: skip

    def state(self) -> RunState:
        """Ranks on their nodes, running."""
        places = tuple(RankPlace(rank, rank, self.node(rank)) for rank in range(self.ranks))
        state = RunState(attempts=[Attempt(1, BEGAN, "start", self.ranks, {}, places)])
        for number in range(self.nodes):
            state.nodes[number] = Node(number, host=f"gpu-{'abcdefgh'[number]}")
        for place in places:
            state.ranks[place.rank] = Rank(
                place, RankPhase.RUNNING, pid=100 + place.rank, sample=RankSample(place.rank)
            )
        return state

    def view(self, seconds: float = 40.0, state: RunState | None = None) -> View:
        history = self.history(seconds)
        return view_of(state or self.state(), BEGAN + seconds + 1.0, history)
