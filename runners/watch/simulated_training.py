"""A training that is computed instead of run: 16 ranks on 2 nodes, with the faults of `Faults`.

Everything is a function of the time. Nothing here is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..run.pulse import Collective, ProcessGroup, Pulse, Site
from ..run.samples import Gpu, Host, RankSample, TrainingSample

NODES, GPUS = 2, 8
RANKS = NODES * GPUS
HOSTS = ("sim-1", "sim-2")
SLOW, STUCK = 11, 5
"""The rank with the throttled GPU, and the one that hangs."""
STARTS_S = 0.5
"""Seconds from the beginning of an attempt to its first step."""
STEP_S, LATE_S = 0.5, 0.15
"""Seconds per step, and how much later than the others the slow rank finishes its part of one."""
EVEN_S = 0.008
"""Seconds per step that a rank waits if no other is slow."""
CALLS = 4
"""Collectives per step."""
CHECKPOINT_STEPS = 5
"""Steps between two checkpoints. The next attempt resumes from the newest one."""
GIB = 1 << 30
TOKENS = 65_536
"""Tokens per step."""

_TORCH = "/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
_THREADING = "/usr/lib/python3.12/threading.py"
TRAINS = (Site("/job/model.py", 61, "backward"), Site("/job/train.py", 84, "train"))
WAITS = (Site(_TORCH, 2996, "all_reduce"), Site("/job/train.py", 88, "train"))
HANGS = (
    Site(_THREADING, 355, "wait"),
    Site("/job/checkpoint.py", 47, "wait_for_upload"),
    Site("/job/train.py", 91, "train"),
)


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the training."""

    hangs_after_s: float = 30.0
    """Seconds from the beginning of the first attempt until rank STUCK hangs."""
    hot_gpu: bool = True
    """Whether rank SLOW has a throttled GPU, for which the other ranks wait."""
    tcp: bool = True
    """Whether NCCL uses TCP between the nodes, although they have RDMA devices."""


@dataclass(frozen=True, slots=True)
class SimulatedAttempt:
    """One attempt; `began` is a Unix time."""

    began: float
    faults: Faults
    hangs: bool
    resumed: int = 0
    """Step of the checkpoint that it resumes from."""

    def steps(self, now: float) -> int:
        """Return the number of steps that this attempt has completed."""
        return max(0, int((min(now, self._last) - self.began - STARTS_S) / STEP_S))

    def step(self, now: float) -> int:
        """Return the step of the whole training."""
        return self.resumed + self.steps(now)

    def has_stopped(self, now: float) -> bool:
        """Whether the ranks wait for the one that hangs."""
        return now >= self._last

    @property
    def _last(self) -> float:
        """Time at which a rank hangs."""
        return self.began + self.faults.hangs_after_s if self.hangs else math.inf

    def _is_slow(self, rank: int) -> bool:
        return self.faults.hot_gpu and rank == SLOW

    def _waits_s(self, rank: int) -> float:
        """Return the seconds per step that a rank waits for the others."""
        return LATE_S if self.faults.hot_gpu and rank != SLOW else EVEN_S

    def step_s(self, step: int) -> float:
        """Return the seconds that a step takes."""
        return STEP_S * (1 + 0.04 * math.sin(2.6 * step))

    def loss(self, step: int) -> float:
        """Return the loss at a step."""
        return 2.1 + 8.0 * math.exp(-step / 60) + 0.05 * math.sin(step * 1.7)

    def samples(self, node: int, now: float) -> tuple[RankSample, ...]:
        """Return a sample of each rank on a node."""
        return tuple(
            self._sample(rank, self.has_stopped(now), now) for rank in range(node * GPUS, (node + 1) * GPUS)
        )

    def _sample(self, rank: int, stopped: bool, now: float) -> RankSample:
        works = not (stopped and rank == STUCK)
        return RankSample(
            rank=rank,
            pid=pid_of(rank),
            cpu_percent=100.0 if works else 0.0,
            rss_bytes=int(3.1 * GIB),
            gpu=rank % GPUS,
            gpu_source="nvml",
            gpu_mem=62 * GIB,
            step=self.steps(now),
            step_s=None if stopped or not self.steps(now) else self.step_s(self.step(now)),
            wait_percent=self._wait_percent(rank, stopped),
            still_s=now - self._last if stopped else None,
            usual_s=STEP_S if stopped else None,
        )

    def _wait_percent(self, rank: int, stopped: bool) -> float:
        if stopped:
            return 0.0 if rank == STUCK else 100.0
        return 100 * self._waits_s(rank) / STEP_S

    def gpus(self, node: int, now: float) -> tuple[Gpu, ...]:
        """Return a sample of each GPU of a node."""
        return tuple(self._gpu(node * GPUS + index, now) for index in range(GPUS))

    def _gpu(self, rank: int, now: float) -> Gpu:
        idle = self.has_stopped(now) and rank == STUCK
        slow = self._is_slow(rank)
        wave = 2 * math.sin(now / 3 + rank)
        return Gpu(
            index=rank % GPUS,
            uuid=f"GPU-simulated-{rank}",
            name="simulated H100 80GB",
            util=0.0 if idle else 96 + wave,
            mem_used=62 * GIB,
            mem_total=80 * GIB,
            power_w=110.0 if idle else (330.0 if slow else 610.0) + 5 * wave,
            power_limit_w=700.0,
            temp_c=91.0 if slow else 62.0 + wave,
            sm_mhz=1_110 if slow else 1_755,
            max_sm_mhz=1_980,
            throttle=("thermal slowdown",) if slow else (),
            throttled_percent=100.0 if slow else 0.0,
            pids=(pid_of(rank),),
            pid_mem=(62 * GIB,),
        )

    def host(self, now: float) -> Host:
        """Return a sample of a node."""
        busy = 0.0 if self.has_stopped(now) else 9.0e8
        tcp = self.faults.tcp
        return Host(
            cpu_percent=14.0,
            cores=128,
            mem_used=190 * GIB,
            mem_total=2_000 * GIB,
            net_rx_bps=busy if tcp else 0.0,
            net_tx_bps=busy if tcp else 0.0,
            ib_rx_bps=0.0 if tcp else 9 * busy,
            ib_tx_bps=0.0 if tcp else 9 * busy,
        )

    def training(self, now: float) -> TrainingSample:
        """Return the signals that rank 0 prints."""
        step = self.step(now)
        at = self.began + STARTS_S + self.steps(now) * STEP_S
        source = "output: step {step} loss {loss}"
        return TrainingSample(
            0,
            at,
            step=step,
            total=100_000,
            loss=self.loss(step),
            tokens_s=TOKENS / self.step_s(step),
            sources={"step": source, "loss": source, "tokens_s": source},
            every_s=self.step_s(step),
        )

    def pulses(self, node: int, now: float) -> tuple[Pulse, ...]:
        """Return a pulse of each rank on a node."""
        return tuple(self._pulse(rank, now) for rank in range(node * GPUS, (node + 1) * GPUS))

    def _pulse(self, rank: int, now: float) -> Pulse:
        step, stopped = self.steps(now), self.has_stopped(now)
        done = step * CALLS
        waits = stopped and rank != STUCK
        active = (self._call(rank, done + 1, self._last),) if waits else ()
        return Pulse(
            rank=rank,
            at=now,
            pid=pid_of(rank),
            hook=True,
            state="S" if stopped else "R",
            stack=self.stack(rank, now),
            sites=1 if stopped else 3,
            samples=8,
            cpu_s=(self._last if stopped and not waits else now) - self.began,
            torch=True,
            step=step,
            last_step=self.began + STARTS_S + step * STEP_S,
            groups=(ProcessGroup("0", tuple(range(RANKS)), done + len(active), done, backend="nccl"),),
            active=active,
            recent=tuple(self._done_call(rank, seq) for seq in range(max(1, done - 47), done + 1)),
            recorder=True,
        )

    def stack(self, rank: int, now: float) -> tuple[Site, ...]:
        """Return the stack of a rank's main thread, innermost first."""
        if not self.has_stopped(now):
            return TRAINS
        return HANGS if rank == STUCK else WAITS

    def _call(self, rank: int, seq: int, at: float) -> Collective:
        return Collective("0", seq, "all_reduce", "BFloat16[25600000]", at, started=True, sites=WAITS[1:])

    def _done_call(self, rank: int, seq: int) -> Collective:
        """Return a completed call: on an early rank its kernel waits for the slow one."""
        ends = self.began + STARTS_S + seq * STEP_S / CALLS
        waited = self._waits_s(rank) / CALLS
        return Collective(
            "0",
            seq,
            "all_reduce",
            "BFloat16[25600000]",
            ends - waited,
            done=True,
            started=True,
            duration_ms=1000 * waited,
        )


def pid_of(rank: int) -> int:
    """Return a process id that no process has."""
    return (1 << 22) + 1 + rank


def nccl_lines(rank: int, tcp: bool) -> str:
    """Return what NCCL writes at init. `tcp`: it finds no RDMA device, e.g. in a container without /dev/infiniband."""
    node, local = divmod(rank, GPUS)
    host, pid, after = HOSTS[node], pid_of(rank), (rank + 1) % RANKS
    comm = f"comm 0x55d0{rank:04x} rank {rank} nranks {RANKS} cudaDev {local} nvmlDev {local} busId {local + 1}b000"
    far = after // GPUS != node
    address = f"eth0:10.0.0.{node + 1}<0>"
    if tcp:
        network, sends = "Socket", "[send] via NET/Socket/0"
        found = ["NET/IB : No device found.", f"NET/Socket : Using [0]{address}"]
    else:
        network, sends = "IB", "[send] via NET/IB/0/GDRDMA"
        found = [f"NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB {address}"]
    texts = (
        f"Bootstrap: Using {address}",
        "NCCL version 2.29.7+cuda13.0",
        *found,
        f"Using network {network}",
        f"[Rank {rank}] ncclCommInitRank {comm} commId 0x5eed - Init START",
        f"comm 0x55d0{rank:04x} rank {rank} nRanks {RANKS} nNodes {NODES} localRanks {GPUS} localRank {local} MNNVL 0",
        f"Channel 00/0 : {rank}[{local}] -> {after}[{after % GPUS}] {sends if far else 'via P2P/CUMEM'}",
        f"ncclCommInitRank {comm} commId 0x5eed - Init COMPLETE",
    )
    return "".join(f"{host}:{pid}:{pid} [{local}] NCCL INFO {text}\n" for text in texts)
