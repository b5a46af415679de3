"""Runs that are made up: what every rank's pulses say at one moment, and what the detectors make of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distui.presets.finding import Finding
from distui.runners.diagnosis import hang, starting
from distui.runners.diagnosis.view import View
from distui.runners.run.model import RankPhase, RankPlace, RunPhase
from distui.runners.run.pulse import Collective, ProcessGroup, Pulse, Site
from distui.runners.run.samples import Gpu, RankSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

NOW = 1_763_757_667.0
"""20:41:07 UTC."""
TORCH = "/venv/lib/python3.11/site-packages/torch/"
PYTHON = "/usr/lib/python3.11/"
STEP = (
    Site("/job/train.py", 50, "step"),
    Site("/job/train.py", 70, "main"),
    Site("/job/train.py", 80, "<module>"),
)
LOAD = (Site("/job/train.py", 33, "load"), *STEP[1:])
END = (Site("/job/train.py", 77, "finish"), Site("/job/train.py", 79, "main"), STEP[2])
IN_ALL_REDUCE = (
    Site(TORCH + "distributed/distributed_c10d.py", 3252, "all_reduce"),
    Site(TORCH + "distributed/c10d_logger.py", 83, "wrapper"),
    *STEP,
)
IN_BACKWARD = (
    Site(TORCH + "autograd/graph.py", 824, "_engine_run_backward"),
    Site(TORCH + "autograd/__init__.py", 353, "backward"),
    Site(TORCH + "_tensor.py", 648, "backward"),
    *STEP,
)
IN_BARRIER = (Site(TORCH + "distributed/distributed_c10d.py", 5356, "barrier"), IN_ALL_REDUCE[1], *END)
IN_RECV = (Site(TORCH + "distributed/distributed_c10d.py", 2799, "recv"), IN_ALL_REDUCE[1], *STEP)
IN_MONITORED = (Site(TORCH + "distributed/distributed_c10d.py", 5435, "monitored_barrier"), *END)
IN_INIT = (
    Site(TORCH + "distributed/rendezvous.py", 199, "_create_c10d_store"),
    Site(TORCH + "distributed/rendezvous.py", 280, "_env_rendezvous_handler"),
    Site(TORCH + "distributed/distributed_c10d.py", 1892, "init_process_group"),
    Site(TORCH + "distributed/c10d_logger.py", 97, "wrapper"),
    STEP[2],
)
IN_NEW_GROUP = (
    Site(TORCH + "distributed/distributed_c10d.py", 2169, "_new_process_group_helper"),
    Site(TORCH + "distributed/distributed_c10d.py", 5863, "new_group"),
    *END,
)
IN_LOADER = (
    Site(PYTHON + "selectors.py", 415, "select"),
    Site(PYTHON + "multiprocessing/connection.py", 947, "wait"),
    Site(PYTHON + "multiprocessing/queues.py", 113, "get"),
    Site(TORCH + "utils/data/dataloader.py", 1291, "_try_get_data"),
    *STEP[1:],
)
IN_SAVE = (
    Site(TORCH + "serialization.py", 1259, "_save"),
    Site(TORCH + "serialization.py", 1003, "save"),
    Site("/job/train.py", 61, "keep"),
    *STEP[1:],
)


def call(
    seq: int, op: str = "all_reduce", *, age: float = 14.0, sites: Sequence[Site] = STEP, what: str = "Float[20]",
    group: str = "0", done: bool = False, p2p: bool = False,
) -> Collective:  # fmt: skip
    """One collective, called `age` seconds ago."""
    return Collective(
        group=group, seq=seq, op=op, what=what, created=NOW - age, done=done, sites=tuple(sites), p2p=p2p
    )


def series(
    rank: int, stack: Sequence[Site], *, looks: int = 8, every: float = 2.0, share: float = 0.0,
    others: float = 0.0, bytes_s: int = 0, enqueued: int = 42, groups: Sequence[ProcessGroup] | None = None,
    end: float = NOW, **more: object,
) -> tuple[Pulse, ...]:  # fmt: skip
    """A rank's newest pulses, all alike: `share` of a core for its main thread, `others` for its other threads."""
    base = Pulse(rank=rank, at=end, pid=100 + rank, hook=True, state="S", stack=tuple(stack), sites=1, samples=10,
                 torch=True, recorder=True, step=12, world_size=None,
                 groups=(ProcessGroup("0", (), enqueued, enqueued),) if groups is None else tuple(groups))  # fmt: skip
    found = []
    for number in range(looks):
        at = end - every * (looks - 1 - number)
        gone = at - NOW + 1000.0
        values = {name: getattr(base, name) for name in base.__struct_fields__}
        values |= {"at": at, "cpu_s": gone * share, "process_s": gone * (share + others),
                   "written_bytes": int(gone * bytes_s), "read_bytes": 0}  # fmt: skip
        found.append(Pulse(**(values | more)))
    return tuple(found)


def coming(rank: int, *, size: str = "4", master: str = "gpu-a:29500", **more: object) -> tuple[Pulse, ...]:
    """A rank in init_process_group."""
    values: dict[str, object] = {"step": 0, "groups": (), "world_size": size, "master": master, **more}
    return series(rank, IN_INIT, **values)  # type: ignore[arg-type]


def waiting(
    rank: int, *calls: Collective, stack: Sequence[Site] = IN_ALL_REDUCE, **more: object
) -> tuple[Pulse, ...]:
    """A rank in collectives that do not end; the oldest first."""
    made = calls or (call(42),)
    groups = more.pop("groups", None) or tuple(
        ProcessGroup(
            name,
            (),
            max(one.seq for one in made if one.group == name),
            min(one.seq for one in made if one.group == name) - 1,
        )
        for name in dict.fromkeys(one.group for one in made)
    )
    return series(rank, stack, active=made, groups=groups, **more)  # type: ignore[arg-type]


class Made:
    """A run of some ranks on some nodes, in which nothing is known of any rank until it is said."""

    def __init__(self, ranks: int = 4, nodes: int = 1) -> None:
        self.state = RunState(phase=RunPhase.RUNNING, began=NOW - 600)
        each = ranks // nodes
        places = tuple(RankPlace(rank, rank % each, rank // each) for rank in range(ranks))
        self.state.attempts.append(Attempt(1, NOW - 600, "launch", ranks, {}, places))
        self.state.ranks = {
            place.rank: Rank(place, RankPhase.RUNNING, pid=100 + place.rank, hook="armed")
            for place in places
        }
        self.state.nodes = {node: Node(node, f"gpu-{'abcdefgh'[node % 8]}") for node in range(nodes)}
        self.history: dict[int, tuple[Pulse, ...]] = {}

    def add(self, *many: Sequence[Pulse]) -> Made:
        """What some ranks' pulses say."""
        for pulses in many:
            self.history[pulses[0].rank] = tuple(pulses)
            self.state.ranks[pulses[0].rank].pulse = pulses[-1]
        return self

    def wait(self, ranks: Iterable[int], *calls: Collective, **more: object) -> Made:
        """Ranks that wait in the same collectives."""
        return self.add(*(waiting(rank, *calls, **more) for rank in ranks))  # type: ignore[arg-type]

    def end(
        self,
        rank: int,
        phase: RankPhase = RankPhase.SUCCEEDED,
        code: int | None = 0,
        signal: str | None = None,
    ) -> Made:
        """A rank whose process has ended."""
        known = self.state.ranks[rank]
        known.phase, known.exit_code, known.signal, known.hook = phase, code, signal, None
        return self

    def uses(self, rank: int, percent: float) -> Made:
        """Percent of a core that a rank's processes use, children included."""
        self.state.ranks[rank].sample = RankSample(rank, cpu_percent=percent)
        return self

    def gpu(self, rank: int, util: float, power: float) -> Made:
        """A GPU of its own for a rank, with a limit of 700 W."""
        known = self.state.ranks[rank]
        known.sample = RankSample(rank, gpu=known.place.local_rank)
        node = self.state.nodes[known.place.node]
        card = Gpu(
            known.place.local_rank, f"GPU-{rank}", "H100", util=util, power_w=power, power_limit_w=700.0
        )
        node.gpus = (*node.gpus, card)
        return self

    @property
    def view(self) -> View:
        return View(state=self.state, plan=None, now=NOW + 1.0, history=self.history)

    def hang(self) -> list[Finding]:
        """What the hang detector says."""
        return list(hang.find(self.view))

    def start(self) -> list[Finding]:
        """What the start-up detector says."""
        return list(starting.find(self.view))


def only(found: Sequence[Finding]) -> Finding:
    """The one finding."""
    assert len(found) == 1, [one.text for one in found]
    return found[0]


def quiet(found: Sequence[Finding]) -> bool:
    """Whether no alarm is among them."""
    return all(one.severity == "note" for one in found)
