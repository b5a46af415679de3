"""The nodes of a run, all in one process: `ssh_nodes.py RUN NODES WRITERS [whole]`.

Each is an agent's chronicle and server on a socket of its own, telling once a second what an agent with eight GPUs and
eight ranks tells; the nodes' seconds are spread. Of all ranks the first WRITERS write a line a second.
`whole`: one chronicle and one server of them all, as a hub's is, for what a viewer of the run takes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import IO

from distui.presets.node_plans import part_id
from distui.runners.agent.server import AgentServer
from distui.runners.logs.windows import ask_window
from distui.runners.run import file_io, run_directories
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.commands import Action
from distui.runners.run.model import (
    AgentStarted,
    AttemptStarted,
    CommandDone,
    GpuTick,
    HookChanged,
    HostTick,
    LogGrew,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunCreated,
    RunnerStarted,
)
from distui.runners.run.parts import Parts
from distui.runners.run.samples import Gpu, Host, RankSample
from distui.runners.run.wire.client import stem
from distui.runners.telemetry import curves

EACH = 8
"""GPUs and ranks of a node."""
GIB = 1 << 30
FIRST_PID = 100_000
held: list[IO[str]] = []


def served(entry: run_directories.Entry) -> tuple[Chronicle, AgentServer]:
    """The chronicle of a run or of a node's part, and the server that tells it."""
    chronicle = Chronicle(entry.path)
    server = AgentServer(
        Path(stem(entry.record.run8) + ".sock"), entry.record, chronicle, Parts(print), refuse,
        partial(ask_window, entry.path), partial(curves.ask_curves, curves.kept(entry)),
    )  # fmt: skip
    return chronicle, server


class Samples:
    """What a node's agent samples."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._step = 0

    def _ranks(self) -> range:
        return range(self._number * EACH, (self._number + 1) * EACH)

    def _pid(self, rank: int) -> int:
        return FIRST_PID + rank

    def sampled(self) -> tuple[GpuTick, RankTick, HostTick]:
        """What is told of the next second."""
        self._step += 4
        return (
            GpuTick(tuple(self._gpu(index) for index in range(EACH)), "570.86.15"),
            RankTick(tuple(self._sample(rank) for rank in self._ranks())),
            HostTick(self._host()),
        )

    def _varied(self, salt: int, span: int) -> int:
        """A number that changes with every sample."""
        return (self._step * 7 + self._number * 13 + salt * 5) % span

    def _gpu(self, index: int) -> Gpu:
        varied = self._varied(index, 10)
        return Gpu(
            index, f"GPU-{self._number:08x}-{index:04x}-0000-0000-000000000000", "NVIDIA H100 80GB HBM3",
            util=90.0 + varied, mem_used=60 * GIB + (varied << 20), mem_total=80 * GIB, power_w=600.5 + varied,
            power_limit_w=700.0, temp_c=60 + varied, mem_temp_c=70 + varied, sm_mhz=1900 + varied, mem_mhz=2619,
            max_sm_mhz=1980, throttle=(), pcie_tx_bps=1e9 + varied, pcie_rx_bps=1e9 - varied,
            nvlink_tx_bps=2e11 + varied, nvlink_rx_bps=2e11 - varied, energy_j=1e6 + self._step, ecc_uncorrected=0,
            remap_pending=False, remap_failed=False, pcie_replays=0, pcie_gen=5, pcie_width=16, mig=False,
            pids=(self._pid(self._number * EACH + index),), pid_mem=(60 * GIB,),
        )  # fmt: skip

    def _sample(self, rank: int) -> RankSample:
        varied = self._varied(rank, 10)
        return RankSample(
            rank, self._pid(rank), 99.0 + varied / 10, 8 * GIB + (varied << 20), 120, 4, 1e6 + varied, 0.0,
            rank % EACH, "nvml", 60 * GIB, self._step, 0.25 + varied / 1000,
        )  # fmt: skip

    def _host(self) -> Host:
        varied = self._varied(0, 10)
        return Host(
            cpu_percent=20.0 + varied, cores=192, load1=30.0 + varied, mem_used=500 * GIB + varied, mem_total=2000 * GIB,
            shm_used=GIB, shm_total=1000 * GIB, disk_free=900 * GIB - varied, disk_total=1000 * GIB,
            net_rx_bps=1e6 + varied, net_tx_bps=1e6 - varied, ib_rx_bps=1e10 + varied, ib_tx_bps=1e10 - varied,
            cpu_stall_percent=0.1,
        )  # fmt: skip


class Node(Samples):
    """One simulated node."""

    def __init__(
        self, entry: run_directories.Entry, chronicle: Chronicle, number: int, nodes: int, writers: int
    ) -> None:
        super().__init__(number)
        self._entry, self._nodes = entry, nodes
        self._writers = [rank for rank in self._ranks() if rank < writers]
        self._emit = partial(chronicle.emit, node=number)

    def begin(self, all_ranks: range | None = None) -> None:
        """A run that trains; with `all_ranks` the run of them all."""
        record = self._entry.record
        plan = PlanSummary("ddp", "ddp", "torchrun", "train.py", self._nodes, None, EACH, "nccl")
        if all_ranks is None or not self._number:
            self._emit(RunCreated(record.run, record.name, record.host, plan))
            self._emit(AgentStarted(os.getpid(), "0", False))
            self._emit(RunnerStarted(FIRST_PID - 1, "torchrun", "", "/usr/bin/python", "2.13.0"))
            ranks = self._ranks() if all_ranks is None else all_ranks
            places = tuple(
                RankPlace(
                    rank, rank % EACH, self._number if all_ranks is None else rank // EACH, str(rank % EACH)
                )
                for rank in ranks
            )
            self._emit(AttemptStarted(1, "launch", self._nodes * EACH, places))
        for rank in self._ranks():
            self._emit(RankChanged(1, rank, RankPhase.RUNNING, rank % EACH, self._pid(rank)))
        for rank in self._ranks():
            for state in ("up", "armed"):
                self._emit(HookChanged(1, rank, state, self._pid(rank), "WARN", True, "2.27.3"))
        (self._entry.path / f"node-{self._number}/attempt-001").mkdir(parents=True)

    async def run(self) -> None:
        """Tell, in this node's part of each second, for ever."""
        while True:
            due = self._number / self._nodes
            await asyncio.sleep((due - time.time()) % 1.0 or 1.0)
            for event in self.sampled():
                self._emit(event)
            if self._writers:
                self._emit(LogGrew({file: self._write(file, rank) for rank in self._writers
                                    if (file := f"node-{self._number}/attempt-001/rank-{rank}.out")}))  # fmt: skip

    def _write(self, file: str, rank: int) -> int:
        """A line more; the size in bytes of the file."""
        with (self._entry.path / file).open("ab") as log:
            log.write(b"step %d rank %d loss 2.31 3456 tok/s\n" % (self._step, rank))
            return log.tell()


async def refuse(command: Action) -> CommandDone:
    """There is nobody to do it."""
    return CommandDone(command.id, False, "this node is simulated")


async def nodes_of(run: str, count: int, writers: int) -> list[Node]:
    """Every node with a socket of its own."""
    nodes = []
    for number in range(count):
        entry = run_directories.at(run_directories.runs_dir() / part_id(run, number))
        assert entry is not None
        chronicle, server = served(entry)
        nodes.append(Node(entry, chronicle, entry.record.node, count, writers))
        nodes[-1].begin()
        await server.start("0")
    return nodes


async def whole(run: str, count: int, writers: int) -> list[Node]:
    """All nodes behind one socket, that of the run."""
    entry = run_directories.at(run_directories.runs_dir() / run)
    assert entry is not None
    chronicle, server = served(entry)
    nodes = [Node(entry, chronicle, number, count, writers) for number in range(count)]
    for node in nodes:
        node.begin(range(count * EACH))
    await server.start("0")
    lock = (entry.path / run_directories.AGENT_LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a hub that serves the run; `held` keeps it open
    held.append(lock)
    file_io.write(
        entry.path / run_directories.AGENT_FILE,
        file_io.identify(socket=f"{stem(entry.record.run8)}.sock"),
    )
    return nodes


async def main(run: str, count: int, writers: int, make: str = "") -> None:
    """Serve until killed."""
    nodes = await (whole if make == "whole" else nodes_of)(run, count, writers)
    await asyncio.gather(*(node.run() for node in nodes))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
