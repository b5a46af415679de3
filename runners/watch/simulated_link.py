"""Link to the simulated run of `distui demo`: the events of an agent, and findings of the real detectors."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from msgspec import Raw

from ... import __version__
from ..diagnosis import nccl_facts
from ..diagnosis.detectors import Judging
from ..diagnosis.read_logs import read_all
from ..logs.windows import ask_window
from ..run import clock
from ..run.answers import MetricsWindow
from ..run.commands import Command, Dump, Hello, ReadLog, ReadMetrics, Restart, Stop, Via
from ..run.freshness import PULSE_S
from ..run.log_files import file_id
from ..run.model import (
    HUB,
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Checkpoint,
    CheckpointSaved,
    CommandDone,
    Event,
    GpuTick,
    HookChanged,
    HostTick,
    LinkChanged,
    LinkState,
    LogGrew,
    NcclTick,
    Outcome,
    PlanSummary,
    PulseTick,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunCreated,
    RunEnded,
    RunnerStarted,
    RunPhase,
    Stamped,
    TrainingTick,
)
from ..run.state import RunState
from ..run.wire.client import Window
from .simulated_training import (
    CHECKPOINT_STEPS,
    GPUS,
    HOSTS,
    NODES,
    RANKS,
    TOKENS,
    Faults,
    SimulatedAttempt,
    nccl_lines,
    pid_of,
)

RUN = "simulated:demo"
NAME = "demo (simulated)"
RDMA = ("mlx5_0", "mlx5_1")
"""RDMA devices with active ports on each node, which NCCL did not find."""
EVERY_S, ATTENTIVE_S = 1.0, 2.0
"""Seconds between two samples, and between two pulses of ranks that wait. An agent has the same paces."""
FIRST_PULSE_S = 4.0
"""Seconds from the beginning of an attempt to its first pulse."""
_PLAN = PlanSummary(
    preset="simulated",
    strategy="ddp",
    launcher="torchrun",
    command="train.py",
    nnodes=NODES,
    nproc_per_node=GPUS,
    backend="nccl",
    restart_limit=3,
    notes=(
        "Simulated: no rank, GPU or network of this run exists. The findings are those of the real detectors.",
    ),
)


class SimulatedLink:
    """The simulated run. Satisfies `wire.client.Link`; consume `events` from one task."""

    readonly = False

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._folder = tempfile.TemporaryDirectory(prefix="distui-demo-")
        self._state = RunState()
        self._journal: list[Stamped] = []
        self._fresh: list[Stamped] = []
        """Events that no viewer has received."""
        self._judging = Judging(self._state, None, self._emit)
        self._attempt = SimulatedAttempt(clock.now(), faults, hangs=True)
        self._number = 0
        self._changed = asyncio.Event()
        """Set after a command and at the end: the viewer need not wait for the next sample."""
        self._closed = False
        self._written = 0
        """Newest step that is in the log."""
        self._saved = 0
        """Step of the newest checkpoint."""
        self._next_pulse = 0.0

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """Yield the run from its beginning, in real time."""
        if not self._number:
            self._create()
        for stamped in self._take():
            yield stamped
        yield Stamped(time=clock.now(), event=CaughtUp(seq=len(self._journal)))
        while not self._closed:
            seconds = math.floor((clock.now() - self._attempt.began) / EVERY_S) * EVERY_S
            if not self._state.phase.ended:
                self._sample(self._attempt.began + seconds)
            for stamped in self._take():
                yield stamped
            if self._state.phase.ended:
                return
            due = self._attempt.began + seconds + EVERY_S
            if await clock.wait_set(self._changed, max(0.0, due - clock.now())):
                self._changed.clear()

    def _take(self) -> list[Stamped]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def _emit(self, event: Event, node: int = HUB, journaled: bool = True) -> None:
        if journaled:
            stamped = Stamped(time=clock.now(), event=event, seq=len(self._journal) + 1, node=node)
            self._journal.append(stamped)
        else:
            stamped = Stamped(time=clock.now(), event=event, node=node)
        self._state.apply(stamped)
        self._fresh.append(stamped)

    def _create(self) -> None:
        self._emit(RunCreated(RUN, NAME, "this terminal", _PLAN, merged=True))
        self._emit(AgentStarted(0, __version__, False))
        for node, host in enumerate(HOSTS):
            self._emit(LinkChanged(LinkState.UP, host), node)
            self._emit(RunCreated(f"{RUN}.n{node}", NAME, host, _PLAN), node)
            self._emit(RunnerStarted(0, "torchrun", torch="simulated"), node)
        self._begin("launch")

    def _begin(self, cause: str) -> None:
        """Begin the next attempt. Only the first one hangs."""
        self._number += 1
        began = clock.now()
        self._attempt = SimulatedAttempt(began, self._faults, self._number == 1, self._saved)
        self._written = self._saved
        self._next_pulse = began + FIRST_PULSE_S
        for node in range(NODES):
            ranks = range(node * GPUS, (node + 1) * GPUS)
            places = tuple(RankPlace(rank, rank % GPUS, node, str(rank % GPUS)) for rank in ranks)
            self._emit(AttemptStarted(self._number, cause, RANKS, places), node)
            for rank in ranks:
                self._emit(
                    RankChanged(self._number, rank, RankPhase.RUNNING, rank % GPUS, pid_of(rank)), node
                )
                self._emit(
                    HookChanged(self._number, rank, "armed", pid_of(rank), "INFO", False, "2.29.7"), node
                )
                self._append(rank, "nccl", nccl_lines(rank, self._faults.tcp))
            self._emit(NcclTick(self._number, Raw(self._facts(node))), node, journaled=False)

    def _facts(self, node: int) -> bytes:
        """Read the node's NCCL logs, as an agent does."""
        names = [
            file_id(node, self._number, rank, "nccl") for rank in range(node * GPUS, (node + 1) * GPUS)
        ]
        reading = read_all((name, Path(self._folder.name, name)) for name in names)
        return nccl_facts.encode(nccl_facts.with_node_facts(reading.facts(), node, RDMA, None))

    def _append(self, rank: int, stream: str, text: str) -> None:
        path = Path(self._folder.name, file_id(rank // GPUS, self._number, rank, stream))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def _sample(self, now: float) -> None:
        """Emit one sample of everything, and judge it."""
        training = self._attempt
        pulses = now >= self._next_pulse
        if pulses:
            self._next_pulse = now + (ATTENTIVE_S if training.has_stopped(now) else PULSE_S)
        for node in range(NODES):
            ticks: list[Event] = [GpuTick(training.gpus(node, now)), HostTick(training.host(now))]
            ticks.append(RankTick(training.samples(node, now)))
            if pulses:
                ticks.append(PulseTick(training.pulses(node, now)))
            for tick in ticks:
                self._emit(tick, node, journaled=False)
        if training.steps(now):
            self._write_steps(training.step(now), now)
            self._emit(TrainingTick((training.training(now),)), 0, journaled=False)
        self._judging.judge(now)

    def _write_steps(self, newest: int, now: float) -> None:
        """Write the steps up to the newest one to the log of rank 0, and report the checkpoints among them."""
        for step in range(self._written + 1, newest + 1):
            tokens_s = TOKENS / self._attempt.step_s(step)
            line = f"step {step} loss {self._attempt.loss(step):.3f} {tokens_s / 1000:.1f}k tok/s\n"
            self._append(0, "out", line)
            if step % CHECKPOINT_STEPS == 0:
                self._saved = step
                saved = Checkpoint(f"/job/checkpoints/step-{step}", now, "dcp", step, 0, 0.2)
                self._emit(CheckpointSaved(self._number, saved), 0)
        if newest > self._written:
            name = file_id(0, self._number, 0, "out")
            size = Path(self._folder.name, name).stat().st_size
            self._emit(LogGrew({name: size}), 0, journaled=False)
        self._written = newest

    async def send(self, command: Command) -> CommandDone:
        """Simulate a restart, a stop and stacks. Other commands need a real run."""
        done = self._obey(command)
        self._changed.set()
        return done

    def _obey(self, command: Command) -> CommandDone:
        if isinstance(command, Hello | Via):
            return CommandDone("", False, "simulated")
        if isinstance(command, Restart):
            self._end_attempt(Outcome.RESTARTED)
            self._begin("restart")
            return CommandDone(command.id, True, f"attempt {self._number} has started")
        if isinstance(command, Stop):
            self._end_attempt(Outcome.STOPPED)
            self._emit(RunEnded(RunPhase.STOPPED, 1, "stopped"))
            return CommandDone(command.id, True, "stopped")
        if isinstance(command, Dump) and command.what == "stacks":
            ranks = command.ranks or tuple(range(RANKS))
            return CommandDone(command.id, True, "stacks", dict(self._stacks(ranks)))
        return CommandDone(command.id, False, "only a real run can do this: the demo is simulated")

    def _end_attempt(self, outcome: Outcome) -> None:
        for rank in range(RANKS):
            ended = RankChanged(
                self._number, rank, RankPhase.STOPPED, rank % GPUS, pid_of(rank), signal="SIGTERM"
            )
            self._emit(ended, rank // GPUS)
        for node in range(NODES):
            self._emit(AttemptEnded(self._number, outcome), node)

    def _stacks(self, ranks: tuple[int, ...]) -> Iterator[tuple[str, str]]:
        for rank in ranks:
            frames = self._attempt.stack(rank, clock.now())
            lines = [f'  File "{site.file}", line {site.line} in {site.name}' for site in frames]
            yield (
                str(rank),
                "\n".join([f"Thread 0x{pid_of(rank):016x} (most recent call first):", *lines, ""]),
            )

    async def read_log(self, ask: ReadLog) -> Window:
        """Return one window of a log."""
        return await ask_window(self._folder.name, ask)

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """Return an error: curves are not recorded."""
        return MetricsWindow(ask.id, error="simulated: the curves begin where you opened it")

    async def close(self) -> None:
        """End the simulation, and remove its logs."""
        self._closed = True
        self._changed.set()
        self._folder.cleanup()
