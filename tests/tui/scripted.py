"""A link and a source that play given events and serve log bytes from real files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path

from distui.presets.finding import PresetError
from distui.presets.load import load
from distui.presets.model import Loaded
from distui.runners.comparison.rerun_changes import LaunchChange
from distui.runners.hub.sky_process import Candidate
from distui.runners.launch.launch_form import LaunchForm, LaunchPreview
from distui.runners.launch.preset_library import PresetEntry
from distui.runners.logs.windows import ask_window
from distui.runners.run.answers import MetricsWindow
from distui.runners.run.commands import Command, Down, ReadLog, ReadMetrics, SetAutostop, Stop
from distui.runners.run.errors import LaunchError
from distui.runners.run.log_files import file_id
from distui.runners.run.model import (
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    CommandDone,
    Event,
    FirstCause,
    GpuTick,
    HookChanged,
    HostTick,
    LogGrew,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunCreated,
    RunEnded,
    RunnerStarted,
    RunPhase,
    Stamped,
)
from distui.runners.run.samples import Gpu, Host, RankSample
from distui.runners.run.wire.client import LinkError, Window
from distui.tui.rows.runs import RunEntry
from distui.tui.source import LocalSource, Shell

BEGAN = 1_700_000_000.0
NOW = BEGAN + 125.0
GIB = 1 << 30


class ScriptedLink:
    """Plays `events`, then what `play` puts in; `break_with` ends the stream as a lost agent does."""

    def __init__(self, run_dir: Path, events: Iterable[Stamped], readonly: bool = False) -> None:
        self.run_dir = run_dir
        self.script = list(events)
        self.readonly = readonly
        self.commands: list[Command] = []
        self.answers: dict[str, CommandDone] = {}
        self.asked: list[int] = []
        self.reads: list[tuple[str, int, str]] = []
        self._more: asyncio.Queue[Stamped | LinkError | None] = asyncio.Queue()

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        self.asked.append(after)
        for stamped in self.script:
            if not stamped.seq or stamped.seq > after:
                yield stamped
        if self.script and isinstance(self.script[-1].event, RunEnded):
            return
        while (item := await self._more.get()) is not None:
            if isinstance(item, LinkError):
                raise item
            yield item

    def play(self, *events: Event, time: float = NOW, seq: int = 0) -> None:
        for event in events:
            self._more.put_nowait(Stamped(time=time, event=event, seq=seq))

    def play_line(self, line: Stamped) -> None:
        self._more.put_nowait(line)

    def break_with(self, text: str) -> None:
        self._more.put_nowait(LinkError(text))

    async def send(self, command: Command) -> CommandDone:
        self.commands.append(command)
        return self.answers.get(type(command).__name__, CommandDone("", True, "done"))

    async def read_log(self, ask: ReadLog) -> Window:
        self.reads.append((ask.file, ask.offset, ask.grep))
        return await ask_window(self.run_dir, ask)

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        return MetricsWindow(ask.id, error="no metrics of this run are kept here")

    async def close(self) -> None:
        return None


class ScriptedSource(LocalSource):
    """One run, or none."""

    def __init__(self, link: ScriptedLink | None = None, runs: Iterable[RunEntry] = ()) -> None:
        super().__init__()
        self.link = link
        self.listed = list(runs)
        self.launched: list[LaunchForm] = []
        self.rerun_of: list[str] = []
        """Runs that were started again."""
        self.changed: list[LaunchChange] = []
        """What a rerun would change."""
        self.retired = ""
        """What went by retention after a launch."""
        self.opened: list[str] = []
        self.refuse = ""
        self.unreachable = ""
        self.offered: list[Candidate] | str = []
        """Candidates, or why there are none."""
        self.wanted: list[LaunchForm] = []
        self.saved: list[tuple[str, LaunchForm]] = []
        self.shells: list[tuple[str, int]] = []
        self.late: list[Down | SetAutostop] = []

    def runs(self) -> list[RunEntry]:
        return self.listed

    async def open(self, run_id: str) -> ScriptedLink:
        self.opened.append(run_id)
        if self.link is None or self.unreachable:
            raise LinkError(self.unreachable or "no agent answers")
        return self.link

    def presets(self) -> list[PresetEntry]:
        return [
            PresetEntry(name=name, title=title, summary=summary)
            for name, title, summary in (
                ("single", "One process", "One process on one device."),
                ("ddp", "Data parallel", "Every rank holds the whole model; gradients are averaged."),
                ("fsdp2", "Fully sharded", "Parameters, gradients and optimizer state are sharded."),
                ("zero1", "ZeRO stage 1", "Only the optimizer state is sharded."),
            )
        ]

    def preset(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        try:
            return load(name, overrides)
        except PresetError as error:
            raise LaunchError(str(error)) from None

    def save(self, name: str, form: LaunchForm, replace: bool = False) -> str:
        self.saved.append((name, form))
        return f"presets/{name}.toml"

    def plan(self, form: LaunchForm, ask: bool = False) -> LaunchPreview:
        if not form.script and not form.repeats:
            return LaunchPreview(text="", problems=("no script: type the path of the training script",))
        if form.place.startswith("hosts") and not ask:
            return LaunchPreview(text="hosts: not asked yet", open_questions="the hosts")
        env = "".join(f"\n  {pair}" for pair in form.option("env").split())
        text = (
            f"# preset {form.preset}\ntorchrun \\\n  --nproc-per-node {form.nproc or 'auto'} \\\n"
            f"  {form.script} {form.args}\nenvironment{env}\n  NCCL_DEBUG={form.nccl_debug or 'WARN'}"
        )
        return LaunchPreview(text=text)

    async def launch(self, form: LaunchForm) -> str:
        if self.refuse:
            raise LaunchError(self.refuse)
        self.launched.append(form)
        return "r-new"

    async def rerun_changes(self, run_id: str) -> list[LaunchChange]:
        if self.refuse:
            raise LaunchError(self.refuse)
        return self.changed

    async def rerun(self, run_id: str) -> str:
        if self.refuse:
            raise LaunchError(self.refuse)
        self.rerun_of.append(run_id)
        return "r-new"

    def retire(self, launched: str) -> str:
        return self.retired

    async def candidates(self, form: LaunchForm) -> list[Candidate]:
        self.wanted.append(form)
        if isinstance(self.offered, str):
            raise LaunchError(self.offered)
        return self.offered

    def shell(self, run_id: str, node: int) -> Shell | None:
        self.shells.append((run_id, node))
        return Shell((), "c2 is reached through the agent of the head node, which carries no shell: ssh c2")

    async def stop(self, run_id: str, command: Stop, say: Callable[[str], None]) -> CommandDone:
        assert self.link is not None
        return await self.link.send(command)

    async def afterwards(self, run_id: str, command: Down | SetAutostop) -> CommandDone:
        self.late.append(command)
        return CommandDone(command.id, True, "done afterwards")


def stamped(events: Iterable[tuple[float, Event]]) -> list[Stamped]:
    """Events at seconds after BEGAN; journaled ones are numbered."""
    found: list[Stamped] = []
    seq = 0
    for after, event in events:
        telemetry = isinstance(event, GpuTick | HostTick | RankTick | LogGrew | CaughtUp)
        seq += not telemetry
        found.append(Stamped(time=BEGAN + after, event=event, seq=0 if telemetry else seq))
    return found


def gpus(count: int = 8) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{index}",
            name="NVIDIA H100 80GB HBM3",
            util=(97, 96, 95, 98, 31, 94, 96, 0)[index % 8],
            mem_used=int((61 + index) * GIB),
            mem_total=80 * GIB,
            power_w=400.0 + 10 * index,
            power_limit_w=700.0,
            temp_c=55.0 + 3 * index,
        )
        for index in range(count)
    )


def samples(count: int, gpu: bool = True, step: int = 120) -> tuple[RankSample, ...]:
    return tuple(
        RankSample(
            rank=rank,
            pid=4711 + rank,
            cpu_percent=98.0 + rank,
            rss_bytes=int((2.1 + rank / 10) * GIB),
            gpu=rank if gpu else None,
            gpu_source="nvml" if gpu else None,
            step=step,
            step_s=0.041 + rank / 1000,
            log_age_s=rank % 3,
        )
        for rank in range(count)
    )


def places(count: int, gpu: bool = True) -> tuple[RankPlace, ...]:
    return tuple(RankPlace(rank, rank, 0, str(rank) if gpu else None) for rank in range(count))


def plan(backend: str = "nccl", ranks: int = 8) -> PlanSummary:
    return PlanSummary(
        preset="fsdp2",
        strategy="fsdp2",
        launcher="torchrun",
        command="train.py --steps 1000",
        nproc_per_node=ranks,
        backend=backend,
        obeys="train.py calls parallelize() in line 12: it obeys strategy and precision.",
        restart_limit=3,
    )


def running(ranks: int = 8, gpu: bool = True, live: bool = True) -> list[tuple[float, Event]]:
    """A run that has been running for two minutes."""
    events: list[tuple[float, Event]] = [
        (0, RunCreated("r-1a2b3c4d", "minigpt", "n001", plan("nccl" if gpu else "gloo", ranks))),
        (0.1, AgentStarted(100, "0.1.0", False)),
        (0.5, RunnerStarted(101, "torchrun", torch="2.13.0")),
        (1, AttemptStarted(1, "launch", ranks, places(ranks, gpu))),
    ]
    events += [(2, RankChanged(1, rank, RankPhase.RUNNING, rank, 4711 + rank)) for rank in range(ranks)]
    if gpu:
        events += [
            (4, HookChanged(1, rank, "armed", 4711 + rank, "WARN", live, "2.29.7")) for rank in range(ranks)
        ]
    events += [
        (124.6, GpuTick(gpus(8) if gpu else (), problem=None if gpu else "no NVIDIA driver library")),
        (124.6, HostTick(Host(cpu_percent=40.0, cores=64))),
        (124.6, RankTick(samples(ranks, gpu))),
        (124.7, CaughtUp(20)),
    ]
    return events


def cause() -> FirstCause:
    return FirstCause(
        rank=3,
        local_rank=3,
        node=0,
        pid=4714,
        exit_code=1,
        text="rank 3 ended with exit code 1: RuntimeError: shape mismatch in block 7",
        last_lines=(
            "Traceback (most recent call last):",
            '  File "train.py", line 88, in <module>',
            "    loss = model(batch)",
            "RuntimeError: shape mismatch in block 7 [red]",
        ),
        victims=(0, 1, 2, 4, 5, 6, 7),
    )


def failed() -> list[tuple[float, Event]]:
    """The same run after rank 3 failed for good."""
    events = running()[:-1]
    for rank in range(8):
        state = RankPhase.FAILED if rank == 3 else RankPhase.KILLED
        how = {"exit_code": 1} if rank == 3 else {"signal": "SIGTERM"}
        events.append((130, RankChanged(1, rank, state, rank, 4711 + rank, **how)))
    text = "rank 3 failed and no restart is left"
    return [
        *events,
        (131, AttemptEnded(1, Outcome.FAILED, cause(), text)),
        (131.1, CaughtUp(30)),
        (131.2, RunEnded(RunPhase.FAILED, 1, "rank 3 failed first; 0 of 3 restarts were allowed")),
    ]


def finished() -> list[tuple[float, Event]]:
    events = running()[:-1]
    events += [
        (120 + rank / 10, RankChanged(1, rank, RankPhase.SUCCEEDED, rank, 4711 + rank, 0))
        for rank in range(8)
    ]
    return [
        *events,
        (121, AttemptEnded(1, Outcome.SUCCEEDED)),
        (121.1, CaughtUp(30)),
        (121.2, RunEnded(RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0")),
    ]


def write_logs(run_dir: Path, ranks: int = 8, lines: int = 30) -> None:
    """Log files as an agent lays them out; markup and escapes in them must stay harmless."""
    for rank in range(ranks):
        out = run_dir / file_id(0, 1, rank, "out")
        out.parent.mkdir(parents=True, exist_ok=True)
        body = (
            [f"step {step} loss {2.5 - step / 100:.3f} 12.1k tok/s" for step in range(lines)]
            if rank == 0
            else []
        )
        out.write_text("".join(f"{line}\n" for line in [f"rank {rank} ready [bold]", *body]))
        err = run_dir / file_id(0, 1, rank, "err")
        err.write_bytes(b"\x1b[31mUserWarning: slow loader\x1b[0m\n" if rank == 1 else b"")
        nccl = run_dir / file_id(0, 1, rank, "nccl")
        nccl.write_text(f"n001:{4711 + rank}:1 [{rank}] NCCL INFO Init COMPLETE\n")


def sizes(run_dir: Path) -> LogGrew:
    return LogGrew(
        {str(path.relative_to(run_dir)): path.stat().st_size for path in sorted(run_dir.rglob("rank-*"))}
    )
