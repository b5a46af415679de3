"""What is done to ranks on real host code of NCCL, and the verdict that their logs must lead to."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .build import Built
from .conductor import World
from .topology import topology

Steps = Callable[[World], None]
CALLS = "call AllReduce AllReduce Broadcast AllGather"
NO_KERNEL_ENDS = {"RIG_WORLD": "9"}
"""A rank that is not there has to launch as many: data that does not arrive, as the kernels see it."""
SHORT_S = 3
"""A rank waits so long for the others where they are not to come."""
OTHER = {"2.28.9": "2.29.7", "2.29.7": "2.30.7", "2.30.7": "2.28.9"}
"""The version of the last rank where versions are mixed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One."""

    name: str
    what: str
    """In words, for the table."""
    first: str = ""
    """Id of the first cause; "" for a healthy job."""
    named: tuple[int, ...] | None = None
    """The ranks that the finding must name; None where it need not."""
    says: tuple[str, ...] = ()
    """What its text must hold."""
    steps: Steps
    ranks: int = 2
    nodes: int = 1
    verbs: bool = False
    """Whether there are HCAs."""
    topology: bool = False
    """Whether NCCL is told the topology of a machine with NVSwitch, as with HCAs it is anyway."""
    env: Mapping[str, str] = field(default_factory=dict)
    env_of: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    options: Sequence[str] = ()
    options_of: Mapping[int, Sequence[str]] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()
    """Rank that each process says to be; as they are counted unless given."""
    absent: tuple[int, ...] = ()
    """Ranks that are not started."""
    mixed: bool = False
    """Whether the last rank loads another version. What each reads of the other's messages is chance."""

    def run(self, versions: Mapping[str, Built], version: str, folder: Path) -> None:
        """Start the ranks and take the steps; logs are left in `folder`. Raises LateError."""
        with World(folder) as world:
            for rank in range(self.ranks):
                if rank in self.absent:
                    continue
                other = self.mixed and rank == self.ranks - 1
                chosen = versions[OTHER[version] if other else version]
                options = (*self.options, *self.options_of.get(rank, ()))
                number = self.numbers[rank] if self.numbers else rank
                world.start(
                    rank,
                    number,
                    chosen.library,
                    self.ranks,
                    options,
                    self._environment(rank, chosen, folder),
                )
            self.steps(world)

    def _environment(self, rank: int, chosen: Built, folder: Path) -> dict[str, str]:
        names = {
            name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "RIG_"))
        }
        made = {
            "LD_LIBRARY_PATH": f"{chosen.verbs if self.verbs else _no_verbs(folder)}:{chosen.runtime}",
            "LD_PRELOAD": str(chosen.machine),
            "NCCL_DEBUG": "INFO",
            "NCCL_SOCKET_IFNAME": "lo",
            "RIG_HOST": f"gpu-{'abcdefgh'[rank * self.nodes // self.ranks]}",
            "RIG_WORLD": str(self.ranks),
            "RIG_RANK": str(rank),
            "RIG_MEET": str(folder / "meet"),
            "NCCL_RAS_ADDR": f"127.0.0.1:{_port(folder)}",
        }
        if self.verbs:  # 2.28.9 dies in its init where HCAs are there and libmlx5 is not, unless told so
            made["NCCL_GIN_TYPE"] = "2"
        if self.verbs or self.topology:
            path = folder / "topology.xml"
            path.write_text(topology())
            made["NCCL_TOPO_FILE"] = str(path)
        return {**names, **made, **self.env, **self.env_of.get(rank, {})}


def _no_verbs(folder: Path) -> Path:
    """A folder in which libibverbs cannot be loaded, also on a machine that has it: an MPI brings it along."""
    hidden = folder / "no-verbs"
    hidden.mkdir(exist_ok=True)
    (hidden / "libibverbs.so.1").touch()
    return hidden


def _port(folder: Path) -> int:
    """A port that is free, the same for all ranks of a run."""
    path = folder / "port"
    if not path.exists():
        with socket.create_server(("127.0.0.1", 0)) as free:
            path.write_text(str(free.getsockname()[1]))
    return int(path.read_text())


# ---- steps


def healthy(world: World) -> None:
    """All ranks call collectives and end."""
    world.meet()
    world.do(f"{CALLS} Neighbours")
    world.well("end")


def healthy_over_network(world: World) -> None:
    """The same; the communicator is aborted: destroying it waits for proxies, whose work no kernel ends here."""
    world.meet()
    world.do(f"{CALLS} Neighbours")
    world.well("abort")


def toggled(world: World) -> None:
    """NCCL begins to log in mid-run."""
    world.meet()
    world.do(CALLS)
    world.do("toggle NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL,INIT")
    world.do(CALLS)
    world.well("end")


def fails(world: World) -> None:
    """Init or the collectives fail by themselves."""
    world.meet()
    world.order(CALLS)
    world.ended()


def one_stays_away(world: World) -> None:
    """The last rank calls no more, and the others wait until their time is up."""
    others = _before_the_hang(world)
    world.order(CALLS, others)
    world.ended(others)
    world.order("leave")
    world.ended()


def one_is_stopped(world: World) -> None:
    """The last rank's process is stopped in mid-run."""
    others = _before_the_hang(world)
    last = max(world.members)
    world.signal(signal.SIGSTOP, last)
    world.order(CALLS, others)
    world.ended(others)
    world.signal(signal.SIGKILL, last)
    world.ended()


def one_is_killed(world: World) -> None:
    """The last rank's process is killed in mid-run."""
    others = _before_the_hang(world)
    last = max(world.members)
    world.signal(signal.SIGKILL, last)
    world.ended([last])
    world.order(CALLS, others)
    world.ended()


def one_raises(world: World) -> None:
    """The last rank's program fails in mid-run."""
    others = _before_the_hang(world)
    last = max(world.members)
    world.order("raise no such label: 41", [last])
    world.ended([last])
    world.order(CALLS, others)
    world.ended()


def _before_the_hang(world: World) -> list[int]:
    """All call collectives; the ranks but the last, which wait only for a short time from now on."""
    world.meet()
    world.do(CALLS)
    others = sorted(world.members)[:-1]
    world.do(f"limit {SHORT_S}", others)
    return others


# ---- the table

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(name="healthy-p2p", what="healthy, NVLink and P2P", steps=healthy, ranks=4),
    Scenario(
        name="healthy-ipc", what="healthy, P2P by IPC handles", steps=healthy, env={"NCCL_CUMEM_ENABLE": "0"}
    ),
    Scenario(name="healthy-shm", what="healthy, shared memory", steps=healthy, env={"NCCL_P2P_DISABLE": "1"}),
    Scenario(
        name="healthy-nvls", what="healthy, NVLink SHARP", steps=healthy, ranks=4, topology=True, env={"RIG_NVLS": "1"},
    ),
    Scenario(name="healthy-socket", what="healthy, two nodes over TCP", steps=healthy_over_network, nodes=2),
    Scenario(
        name="healthy-ib", what="healthy, two nodes over InfiniBand", steps=healthy_over_network, nodes=2, verbs=True
    ),
    Scenario(
        name="healthy-roce", what="healthy, two nodes over RoCE", steps=healthy_over_network, nodes=2, verbs=True,
        env={"RIG_ROCE": "1"},
    ),
    Scenario(name="live-toggle", what="`NCCL_DEBUG` changed live", steps=toggled, env={"NCCL_DEBUG": "WARN"}),
    Scenario(
        name="wrong-interface", what="an interface that one node does not have", steps=fails, nodes=2,
        env_of={1: {"NCCL_SOCKET_IFNAME": "eth9"}}, options=("limit=8",), first="sock-no-interface", named=(1,),
    ),
    Scenario(
        name="mixed-versions", what="two versions of NCCL", steps=fails, mixed=True, options=("limit=8",),
        first="version-mismatch", says=("rank 0 has", "rank 1 has"),
    ),
    Scenario(
        name="wrong-world-size", what="a wrong WORLD_SIZE on one rank", steps=fails, options=("limit=8",),
        options_of={1: ("claims=4",)}, first="boot-mismatch",
    ),
    Scenario(
        name="same-rank-twice", what="one rank twice", steps=fails, ranks=3, numbers=(0, 1, 1), options=("limit=8",),
        first="boot-rank-dup",
    ),
    Scenario(
        name="init-timeout", what="one rank is never started", steps=fails, ranks=3, absent=(2,),
        options=(f"limit={SHORT_S}",), first="rank-absent", named=(2,),
    ),
    Scenario(
        name="missing-rank", what="one rank calls no more", steps=one_stays_away, ranks=3,
        env={"NCCL_DEBUG_SUBSYS": "INIT,COLL"}, first="rank-absent", named=(2,),
    ),
    Scenario(
        name="stopped-rank", what="one rank is stopped (SIGSTOP)", steps=one_is_stopped, ranks=3,
        env={"NCCL_DEBUG_SUBSYS": "INIT,COLL"}, first="rank-absent", named=(2,),
    ),
    Scenario(
        name="killed-rank", what="one rank is killed (SIGKILL)", steps=one_is_killed, ranks=3, nodes=3,
        env={"NCCL_DEBUG_SUBSYS": "INIT,COLL"}, first="rank-absent", named=(2,),
    ),
    Scenario(
        name="abort", what="one rank's program fails, the others abort", steps=one_raises, ranks=3,
        first="died-exception", named=(2,),
    ),
    Scenario(
        name="duplicate-gpu", what="two ranks on one GPU", steps=fails, options_of={1: ("device=0",)},
        first="dup-gpu",
    ),
    Scenario(
        name="out-of-memory", what="GPU memory is full", steps=fails, env={"RIG_MEMORY_MB": "4"}, first="cuda-oom"
    ),
    Scenario(
        name="cuda-failure", what="an illegal memory access", steps=fails, env_of={1: {"RIG_ERROR": "700@3"}},
        options=(f"wait={SHORT_S}",), first="cuda-failure", named=(1,), says=("an illegal memory access",),
    ),
    Scenario(
        name="cuda-failure-init", what="CUDA fails during init", steps=fails, env={"RIG_ERROR": "999@0"},
        first="cuda-failure", says=("unknown error",),
    ),
    Scenario(
        name="wrong-root", what="a root that is no rank", steps=fails, options=("root_of_broadcast=9",),
        first="invalid-usage",
    ),
    Scenario(
        name="no-network", what="a network plugin that is not there", steps=fails, env={"NCCL_NET": "fast"},
        first="net-plugin-none",
    ),
    Scenario(
        name="too-many-files", what="`ulimit -n` is too low", steps=fails, nodes=2, options_of={1: ("files=40",)},
        options=("limit=8",), env={"NCCL_CUMEM_ENABLE": "0"}, first="too-many-files", named=(1,),
    ),
    Scenario(
        name="ib-port-down", what="a port of InfiniBand goes down", steps=fails, nodes=2, verbs=True,
        env=NO_KERNEL_ENDS, env_of={1: {"RIG_IB": "port-error"}}, options=(f"wait={SHORT_S}",),
        first="ib-port-error", named=(1,),
    ),
    Scenario(
        name="ib-no-route", what="no route between HCAs", steps=fails, nodes=2, verbs=True,
        env={"RIG_IB": "unreachable"}, first="ib-qp-unreachable",
    ),
    Scenario(
        name="ib-no-answer", what="an HCA gets no answer", steps=fails, nodes=2, verbs=True,
        env={"RIG_IB": "retry", **NO_KERNEL_ENDS},
        options=(f"wait={SHORT_S}",), first="ib-retry-exceeded",
    ),
    Scenario(
        name="ib-memlock", what="no memory can be locked", steps=fails, nodes=2, verbs=True,
        env={"RIG_IB": "memlock"}, first="ib-memlock",
    ),
)  # fmt: skip
