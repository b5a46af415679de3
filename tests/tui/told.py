"""Facts of NCCL as nodes tell them, and runs with findings: what the screens of the diagnosis are shown."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import scripted as play
import several

from distui.presets.finding import Finding
from distui.runners.diagnosis.nccl_facts import Communicator, FactLine, Init, NcclFacts, NcclNode, Pair
from distui.runners.run.log_files import file_id
from distui.runners.run.model import (
    HUB,
    CaughtUp,
    Event,
    FindingRaised,
    HostTick,
    NcclTick,
    PulseTick,
    RankTick,
)
from distui.runners.run.pulse import Pulse, Site
from distui.runners.run.samples import Host

PHASES = {"kernels": 0.31, "bootstrap": 0.42, "topo": 0.18, "graphs": 0.04, "connections": 0.12}


def hosts_of(nodes: int, each: int, prefix: str = "c") -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{node + 1}": tuple(range(node * each, (node + 1) * each)) for node in range(nodes)}


def pairs_of(nodes: int, each: int, between: str = "NET/IB/GDRDMA") -> tuple[Pair, ...]:
    """All pairs inside a node, and between nodes those of equal local ranks, round about."""
    inside = [
        Pair(node * each + one, node * each + other, "P2P/CUMEM")
        for node in range(nodes)
        for one in range(each)
        for other in range(each)
        if one != other
    ]
    size = nodes * each
    across = [Pair(rank, (rank + each) % size, between) for rank in range(size)] if nodes > 1 else []
    return (*inside, *across)


def communicator(nodes: int = 1, each: int = 8, **changes: object) -> Communicator:
    """One that all have joined."""
    size = nodes * each
    values: dict[str, object] = {
        "id": "0x673b5f0a1c2d3e4f",
        "nranks": size,
        "nnodes": nodes,
        "hosts": hosts_of(nodes, each, "c" if nodes > 1 else "n00"),
        "stages": dict.fromkeys(range(size), "connected"),
        "began": {rank: play.BEGAN + 5 + 0.02 * (rank % 5) for rank in range(size)},
        "inits": tuple(
            Init(
                rank,
                sum(PHASES.values()) + 0.03 * (rank % 4),
                {**PHASES, "topo": 0.18 + 0.03 * (rank % 4)},
            )
            for rank in range(size)
        ),
        "pairs": pairs_of(nodes, each),
        "rings": (tuple(range(size)), tuple(reversed(range(size)))),
        "ring_count": 4,
        "trees": 4,
        "channels": {"coll": 4, "p2p": 8},
        "tuning": {"AllReduce RING LL": 12, "AllReduce TREE SIMPLE": 3},
    }
    return Communicator(**(values | changes))  # type: ignore[arg-type]


def node(host: str, number: int = 0, **changes: object) -> NcclNode:
    values: dict[str, object] = {
        "host": host,
        "node": number,
        "versions": ("2.29.7+cuda12.9",),
        "networks": ("IB",),
        "bootstrap": f"eth0:10.1.0.{number + 1}",
        "interfaces": ("eth0",),
        "hcas": {"mlx5_0:1": "IB", "mlx5_1:1": "IB"},
        "env": {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5"},
    }
    return NcclNode(**(values | changes))  # type: ignore[arg-type]


def line(rank: int, number: int, text: str, node: int = 0) -> FactLine:
    return FactLine(file_id(node, 1, rank, "nccl"), number, text)


def facts(one: Communicator | None = None, *, raw: bool = True, **changes: object) -> NcclFacts:
    """Of a run on one node or on several, all alike."""
    chosen = one or communicator()
    hosts = list(chosen.hosts)
    lines = {
        "network:n001": line(0, 1, "n001:4711:1 [0] NCCL INFO Init COMPLETE"),
        f"comm:{chosen.id}": line(0, 1, "n001:4711:1 [0] NCCL INFO Init COMPLETE"),
        "rule:pt-watchdog": line(0, 2, "Watchdog caught collective operation timeout"),
        "rule:sock-closed-by-peer": line(
            4, 2, "NCCL WARN socketProgress: Connection closed by remote peer"
        ),
    }
    values: dict[str, object] = {
        "nodes": tuple(node(host, number) for number, host in enumerate(hosts)),
        "communicators": (chosen,),
        "lines": 13_204,
        "nccl_lines": 12_034,
        "raw": lines if raw else {},
    }
    return NcclFacts(**(values | changes))  # type: ignore[arg-type]


def tick(told: NcclFacts, attempt: int = 1) -> NcclTick:
    return NcclTick(attempt, msgspec.Raw(msgspec.json.encode(told)))


def running(told: NcclFacts, *findings: Finding) -> list[tuple[float, Event]]:
    """The run on one node, which has told this."""
    raised: list[tuple[float, Event]] = [(120, FindingRaised(one)) for one in findings]
    disk = HostTick(Host(cpu_percent=40.0, cores=64, disk_free=812 << 30, disk_total=1800 << 30))
    stalled = hung() if any(one.waiting for one in findings) else ()
    ticks = [(124.6, event) for event in (*stalled, disk, tick(told))]
    return [*play.running()[:-1], *raised, *ticks, (124.7, CaughtUp(20))]


def hung() -> tuple[Event, ...]:
    """Samples of ranks that have made no step for 42 s, and the pulse of the one that the others wait for."""
    still = (
        msgspec.structs.replace(sample, step_s=None, still_s=42.0, usual_s=sample.step_s)
        for sample in play.samples(8)
    )
    stack = (Site("data.py", 88, "load"), Site("train.py", 60, "main"))
    pulse = Pulse(3, play.NOW, 4714, hook=True, state="S", stack=stack, sites=1, samples=10, step=120)
    return RankTick(tuple(still)), PulseTick((pulse,))


def on_nodes(told: NcclFacts, nodes: int = 2, *findings: Finding) -> list[several.Told]:
    """The run on several nodes; the first tells of all."""
    raised: list[several.Told] = [(120, one.node or 0, FindingRaised(one)) for one in findings]
    ended = [event for event in several.running(nodes) if not isinstance(event[2], CaughtUp)]
    return [*ended, *raised, (124.6, 0, tick(told)), (124.7, HUB, CaughtUp(20))]


def uneven() -> NcclFacts:
    """Two nodes: one has chosen TCP, and one of its ranks is late."""
    one = communicator(2, 4)
    slow = tuple(
        msgspec.structs.replace(pair, kind="NET/Socket") if (pair.source, pair.target) == (5, 1) else pair
        for pair in one.pairs
    )
    stages = {**dict.fromkeys(range(8), "connected"), 6: "bootstrapped"}
    inits = tuple(init for init in one.inits if init.rank != 6)
    late = msgspec.structs.replace(one, pairs=slow, stages=stages, inits=inits)
    small = communicator(1, 4, id="0x11", nnodes=1, hosts={"c1": (0, 1, 2, 3)})
    odd = node("c2", 1, networks=("Socket",), hcas={}, env={"NCCL_DEBUG": "INFO"}, versions=("2.27.3",))
    return facts(late, nodes=(node("c1"), odd), communicators=(late, small))


def findings() -> Iterable[Finding]:
    """A hang with what goes with it, and something that is no alarm."""
    text = "rank 3 never joined all_reduce 1204: it is in load() at data.py:88, and 7 ranks wait for it"
    yield Finding(
        "hang-not-joined", "error", text, rank=3, node=0, since=play.BEGAN + 83, waiting=(0, 1, 2, 4, 5, 6, 7),
        remedy="look at data.py:88 on rank 3; a barrier before it would show who is late",
        evidence=(
            "rank 3: stack unchanged in 6 looks: load (data.py:88) < next (data.py:41) < main (train.py:60)",
            "ranks 0-2, 4-7: all_reduce 1204 of group 0 called at train.py:71",
            f"{file_id(0, 1, 3, 'nccl')}:1: n001:4714:1 [3] NCCL INFO Init COMPLETE",
        ),
    )  # fmt: skip
    for rank in (0, 1, 2):
        yield Finding(
            "pt-watchdog", "warning", f"rank {rank}'s watchdog says a timeout", role="symptom", rank=rank
        )
    yield Finding("sock-closed-by-peer", "warning", "a peer closed its connection", role="symptom", rank=4)
    yield Finding(
        "expect-gdr", "warning", "GPUDirect RDMA is off although both nodes have it", role="hint", node=0
    )
    yield Finding(
        "hang-no-verdict", "note", "no verdict: missing the stack of rank 5 (no hook)", role="fact", rank=5
    )
    yield Finding("first-step", "note", "the first step takes long: it compiles", role="fact")


def stacks() -> dict[str, str]:
    """Seven ranks in a collective, one in its data loader; as faulthandler writes them."""

    def text(*frames: tuple[str, int, str]) -> str:
        lines = [f'  File "{file}", line {number} in {name}' for file, number, name in frames]
        return "\n".join(["Current thread 0x00007f00 (most recent call first):", *lines, ""])

    torch = "/opt/venv/lib/python3.11/site-packages/torch/distributed"
    usual = text(
        (f"{torch}/distributed_c10d.py", 2821, "all_reduce"),
        (f"{torch}/c10d_logger.py", 81, "wrapper"),
        ("train.py", 71, "step"),
        ("train.py", 90, "main"),
    )
    other = text(
        ("data.py", 88, "load"),
        ("train.py", 65, "step"),
        ("train.py", 90, "main"),
    )
    return {str(rank): other if rank == 5 else usual for rank in range(8)}
