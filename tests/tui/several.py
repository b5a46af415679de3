"""Scripted runs on several nodes, as a hub tells of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import scripted as play

from distui.runners.hub.sky_process import Candidate
from distui.runners.run.log_files import file_id
from distui.runners.run.model import (
    HUB,
    AgentStarted,
    AttemptStarted,
    CaughtUp,
    Cluster,
    ClusterChanged,
    Event,
    GpuTick,
    HookChanged,
    HostTick,
    LinkChanged,
    LinkState,
    LogGrew,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
    StageChanged,
    Stamped,
)
from distui.runners.run.samples import Host

Told = tuple[float, int, Event]
"""Seconds after BEGAN, node, event."""

CLUSTER = Cluster(
    name="minigpt-1a2b3c4d", infra="aws/us-east-1", resources="p5.48xlarge (H100:8)", price_per_hour=196.64,
    job=1, state="UP", since=play.BEGAN - 1800, autostop_min=30,
)  # fmt: skip
REFUSED = "ssh: connect to host c2 port 22: Connection timed out"
CANDIDATES = [
    Candidate("slurm/lab/gpu", "", "96", "1024", "H100:8", None, True),
    Candidate("aws/us-east-1", "p5.48xlarge", "192", "2048", "H100:8", 196.64, False),
    Candidate("gcp/us-central1", "a3-highgpu-8g", "208", "1872", "H100:8", 176.31, False),
]


def stamped(events: Iterable[Told]) -> list[Stamped]:
    """As play.stamped, with the node of each."""
    nodes: list[int] = []
    pairs: list[tuple[float, Event]] = []
    for after, node, event in events:
        nodes.append(node)
        pairs.append((after, event))
    return [
        msgspec.structs.replace(line, node=node)
        for line, node in zip(play.stamped(pairs), nodes, strict=True)
    ]


def plan(nodes: int = 2, least: int | None = None, ranks: int = 4) -> PlanSummary:
    return msgspec.structs.replace(play.plan(ranks=ranks), nnodes=nodes, nnodes_min=least)


def created(nodes: int = 2, least: int | None = None, ranks: int = 4) -> list[Told]:
    return [
        (0, HUB, RunCreated("r-1a2b3c4d", "minigpt", "laptop", plan(nodes, least, ranks), merged=True)),
        (0.1, HUB, AgentStarted(100, "0.1.0", False)),
    ]


def running(nodes: int = 2, ranks: int = 4, least: int | None = None) -> list[Told]:
    """Two minutes of a run on `nodes` nodes with `ranks` GPUs each."""
    events = [*created(nodes, least, ranks), (1.0, HUB, ClusterChanged(CLUSTER))]
    for node in range(nodes):
        host = f"c{node + 1}"
        mine = range(node * ranks, (node + 1) * ranks)
        places = tuple(RankPlace(rank, rank % ranks, node, str(rank % ranks)) for rank in mine)
        events += [
            (2, node, LinkChanged(LinkState.UP, host)),
            (2, node, RunCreated(f"r-1a2b3c4d.n{node}", "minigpt", host, plan(nodes, least, ranks))),
            (3, node, AttemptStarted(1, "launch", nodes * ranks, places)),
        ]
        events += [
            (4, node, RankChanged(1, rank, RankPhase.RUNNING, rank % ranks, 4711 + rank)) for rank in mine
        ]
        events += [
            (5, node, HookChanged(1, rank, "armed", 4711 + rank, "WARN", True, "2.29.7")) for rank in mine
        ]
    for node in range(nodes):
        events += sampled(node, ranks)
    return [*events, (124.7, HUB, CaughtUp(20))]


def sampled(node: int, ranks: int, at: float = 124.6) -> list[Told]:
    """A sample of everything on one node."""
    mine = [
        msgspec.structs.replace(one, rank=node * ranks + one.rank, pid=4711 + node * ranks + one.rank)
        for one in play.samples(ranks)
    ]
    return [
        (at, node, GpuTick(play.gpus(ranks))),
        (at, node, HostTick(Host(cpu_percent=40.0, cores=64))),
        (at, node, RankTick(tuple(mine))),
    ]


def lost(nodes: int = 2, ranks: int = 4, least: int | None = None, which: int = 1) -> list[Told]:
    """The same; one node has not answered for 12 seconds."""
    down = LinkChanged(LinkState.LOST, "", REFUSED, play.NOW + 3)
    return [*running(nodes, ranks, least)[:-1], (113, which, down), (124.7, HUB, CaughtUp(30))]


def launching() -> list[Told]:
    """SkyPilot runs the setup; one node is up, the other is not reached yet."""
    return [
        *created(),
        (1, HUB, StageChanged(Stage.PROVISION, "begun", "Launching on AWS us-east-1 (us-east-1a)")),
        (61, HUB, StageChanged(Stage.PROVISION, "begun", "Instances are up")),
        (73, HUB, StageChanged(Stage.PROVISION, "done")),
        (73, HUB, StageChanged(Stage.SYNC, "begun", "Syncing files")),
        (84, HUB, StageChanged(Stage.SYNC, "done")),
        (84, HUB, StageChanged(Stage.SETUP, "begun", "Job submitted, ID: 1")),
        (
            84.5,
            HUB,
            ClusterChanged(msgspec.structs.replace(CLUSTER, autostop_min=None, since=play.BEGAN + 50)),
        ),
        (120, 0, LinkChanged(LinkState.UP, "c1")),
        (121, 1, LinkChanged(LinkState.CONNECTING, "c2")),
        (124.6, HUB, LogGrew({"launch.log": 1})),
        (124.7, HUB, CaughtUp(9)),
    ]


def refused() -> list[Told]:
    """There are no such nodes where the user wants them."""
    why = (
        "no such nodes are free there now: take another infrastructure, or --retry-until-up (Failed to acquire "
        "resources in all zones in us-east-1; InsufficientInstanceCapacity)"
        "; --on gcp/us-central1 has them (H100:8 a3-highgpu-8g, $176.31 per hour)"
    )
    return [
        *created(),
        (1, HUB, StageChanged(Stage.PROVISION, "begun", "Launching on AWS us-east-1 (us-east-1a)")),
        (90, HUB, StageChanged(Stage.PROVISION, "failed", why)),
        (124.6, HUB, LogGrew({"launch.log": 1})),
        (124.7, HUB, CaughtUp(5)),
        (124.8, HUB, RunEnded(RunPhase.FAILED, 1, f"the launch failed: {why}")),
    ]


def setup_failed() -> list[Told]:
    """The cluster is up and stays, and the user's setup does not work."""
    why = (
        "setup failed on minigpt-1a2b3c4d: launch.log has its output"
        "; cluster minigpt-1a2b3c4d is up and is billed: `distui down minigpt`"
    )
    return [
        *launching()[:-4],
        (
            118,
            HUB,
            ClusterChanged(msgspec.structs.replace(CLUSTER, autostop_min=None, price_per_hour=None)),
        ),
        (118, HUB, StageChanged(Stage.SETUP, "failed", why)),
        (124.6, HUB, LogGrew({"launch.log": 1})),
        (124.7, HUB, CaughtUp(9)),
        (124.8, HUB, RunEnded(RunPhase.FAILED, 1, f"the launch failed: {why}")),
    ]


def managed() -> list[Told]:
    """A managed job runs: SkyPilot lets nobody in."""
    return [
        *created(),
        (1, HUB, StageChanged(Stage.PROVISION, "begun", "submitting a managed job")),
        (60, HUB, ClusterChanged(Cluster(name="minigpt-1a2b3c4d", job=7, managed=True, state="RUNNING"))),
        (60, HUB, StageChanged(Stage.PROVISION, "done")),
        (60, HUB, StageChanged(Stage.START, "begun", "SkyPilot runs the managed job")),
        (124.6, HUB, LogGrew({"launch.log": 1})),
        (124.7, HUB, CaughtUp(9)),
    ]


def on_hosts() -> list[Told]:
    """Hosts of the user's own get the code."""
    known = Cluster(infra="hosts", resources="2 hosts")
    return [
        *created(),
        (1, HUB, ClusterChanged(known)),
        (1, 0, LinkChanged(LinkState.CONNECTING, "alpha")),
        (1, 1, LinkChanged(LinkState.CONNECTING, "beta")),
        (1, HUB, StageChanged(Stage.SYNC, "begun", "2 hosts")),
        (2, 0, StageChanged(Stage.SYNC, "begun")),
        (2, 1, StageChanged(Stage.SYNC, "begun")),
        (9, 0, StageChanged(Stage.SYNC, "done")),
        (124.7, HUB, CaughtUp(9)),
    ]


def write_logs(run_dir: Path, nodes: int = 2, ranks: int = 4) -> None:
    """What a hub would serve of each rank, and what SkyPilot said."""
    for rank in range(nodes * ranks):
        out = run_dir / file_id(rank // ranks, 1, rank, "out")
        out.parent.mkdir(parents=True, exist_ok=True)
        steps = range(30) if rank % ranks == 0 else range(0)
        out.write_text(
            f"rank {rank} ready\n" + "".join(f"step {step} loss {2.5 - step / 100:.3f}\n" for step in steps)
        )
        for stream in ("err", "nccl"):
            (run_dir / file_id(rank // ranks, 1, rank, stream)).write_text("")
    said = [
        "Launching on AWS us-east-1 (us-east-1a).", "Instances are up.", "Syncing files.",
        "Job submitted, ID: 1", "(setup pid=812) Collecting torch==2.9.1",
        "(setup pid=812)   Downloading torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl (899.8 MB)",
    ]  # fmt: skip
    (run_dir / "launch.log").write_text("".join(f"{line}\n" for line in said))
