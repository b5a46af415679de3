"""The GPUs of this node for the agent, from a supervised sampler child.

A hung driver call does not block the agent. Decisions are pure.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..run import clock
from ..run.finding_ledger import FindingLedger
from ..run.model import Event, FindingRaised, GpuTick
from ..run.samples import Gpu
from .gpu_words import NO_DRIVER, SHORTEST_S, judge

# -----------------------------------------------------------------------------------------------------------
# What to do with the sampler child (nothing, end it, start a new one), and why values are missing. Pure.


class State(enum.Enum):
    """State of the sampler child."""

    STARTING = "starting"  # spawned, no sample yet
    SAMPLING = "sampling"
    WAITING = "waiting"  # no child, a new one follows
    ABSENT = "absent"  # no child, and none will follow


class Act(enum.Enum):
    """The next action."""

    NOTHING = "nothing"
    KILL = "kill"  # kill the child without waiting for its end, then wait for the back-off
    SPAWN = "spawn"


class SamplerLimits(Struct, frozen=True):
    """Times in seconds."""

    stale_s: float = 5.0
    """Age of the newest sample before a driver call counts as hung; at least 3 intervals."""
    init_s: float = 20.0
    """`stale_s` before a child's first sample: loading the driver takes seconds per GPU."""
    backoff_s: float = 5.0
    """Wait before the first new child; it doubles with each failure."""
    backoff_max_s: float = 300.0
    healthy_s: float = 60.0
    """Time of sampling that clears the count of failures."""
    stuck: int = 3
    """Number of killed children still in the driver that prevents a new one."""


class Watch(Struct, frozen=True):
    """Input of the decision; times are monotonic seconds."""

    state: State
    since: float
    """Time of spawning (STARTING), of the first sample (SAMPLING), or of the end (WAITING)."""
    heard: float
    """Time of the newest sample; before it, of the first try."""
    failures: int = 0
    stuck: int = 0
    problem: str | None = None
    """How the previous child ended; None if it hung in a driver call, or if there is no problem."""


def decide(watch: Watch, now: float, limits: SamplerLimits, interval: float = 1.0) -> Act:
    """Return the next action. Pure."""
    match watch.state:
        case State.STARTING if now - watch.since > limits.init_s:
            return Act.KILL
        case State.SAMPLING if now - watch.heard > max(limits.stale_s, 3 * interval):
            return Act.KILL
        case State.WAITING if watch.stuck < limits.stuck and now - watch.since >= backoff(watch, limits):
            return Act.SPAWN
    return Act.NOTHING


def backoff(watch: Watch, limits: SamplerLimits) -> float:
    """Seconds between the end of a child and the start of the next."""
    return min(limits.backoff_max_s, limits.backoff_s * 2.0 ** min(32, max(0, watch.failures - 1)))


def describe(watch: Watch, now: float, limits: SamplerLimits) -> str | None:
    """Why there are no new values, as a sentence; None if there are, or if it is too early to judge."""
    if watch.state in (State.SAMPLING, State.ABSENT) or (
        watch.state is State.STARTING and not watch.failures
    ):
        return None
    why = watch.problem or f"GPU driver call has not returned for {now - watch.heard:.0f} s"
    if watch.state is State.STARTING:
        return f"{why} (waiting for a new sampler's first values)"
    if watch.stuck >= limits.stuck:
        return f"{why} ({watch.stuck} samplers hang in the driver; a new one follows when one of them ends)"
    left = max(0.0, backoff(watch, limits) - (now - watch.since))
    return f"{why} (a new sampler in {left:.0f} s)"


# -----------------------------------------------------------------------------------------------------------
# Supervision of the sampler child: after a hung driver call the agent only reports a problem.


LINE_BYTES = 1 << 20
"""Maximum bytes of a line from the sampler."""
TAIL_BYTES = 2048
"""Bytes of a sampler's stderr to keep."""
LATE_S = 1.0
"""Delay of the event loop in seconds above which its observations prove nothing about the sampler."""
LIMITS = SamplerLimits()


class GpuSource:
    """Runs the sampler for this node and passes its events to `on_event`, on the event loop.

    Events: a `GpuTick` per interval (with `problem` and the last known values while the driver does not answer), and
    `FindingRaised` and `FindingCleared` for the GPUs' health and for Xid errors. Without an NVIDIA driver it emits one
    `GpuTick` with that problem, and runs no process. `node` is for the findings, `command` replaces the sampler's argv.
    """

    def __init__(
        self,
        interval: float,
        on_event: Callable[[Event], None],
        *,
        node: int | None = None,
        limits: SamplerLimits = LIMITS,
        command: tuple[str, ...] | None = None,
    ) -> None:
        self._interval = max(SHORTEST_S, interval)
        self._on_event = on_event
        self._node = node
        self._limits = limits
        self._command = command or (
            *(sys.executable, "-P", "-m", f"{__package__}.sampler"),
            *("--interval", str(self._interval)),
        )
        self._decode = msgspec.json.Decoder(Event).decode
        self._child: Process | None = None
        self._killed: list[Process] = []
        self._group = asyncio.TaskGroup()
        """Tasks that read the children's pipes."""
        self._gpus: tuple[Gpu, ...] = ()
        self._ledger = FindingLedger(on_event)
        self._problem: str | None = None
        now = clock.monotonic()
        self._watch = Watch(State.WAITING, now, now)
        self._ended = asyncio.Event()
        """Set if a child ended or was given up, so that the supervision must act."""

    @property
    def sampling(self) -> bool:
        """Whether samples are arriving."""
        return self._watch.state is State.SAMPLING

    @property
    def pid(self) -> int | None:
        """Pid of the sampler child; None without one."""
        return None if self._child is None else self._child.pid

    async def run(self) -> None:
        """Keep a sampler running until cancellation, or until a sampler finds no driver."""
        now = clock.monotonic()
        self._watch = Watch(State.WAITING, now, now)
        try:
            async with asyncio.TaskGroup() as self._group:
                await self._spawn()
                await self._keep_sampling()
        finally:
            await self._end_sampler()

    async def _end_sampler(self) -> None:
        """Close its stdin, send SIGKILL after one second, and wait one more second at most."""
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        if child.stdin is not None:
            child.stdin.close()
        if not await _ended(child):
            _kill(child)
            await _ended(child)

    async def _keep_sampling(self) -> None:
        while self._watch.state is not State.ABSENT:
            before, pause = clock.monotonic(), self._pause()
            await self._sleep(pause)
            if clock.monotonic() - before > pause + LATE_S:
                continue  # the agent itself was blocked: the sampler's lines are still unread
            self._killed = [child for child in self._killed if child.returncode is None]
            self._watch = replace(self._watch, stuck=len(self._killed))
            now = clock.monotonic()
            act = decide(self._watch, now, self._limits, self._interval)
            if act is Act.KILL:
                self._give_up()
            elif act is Act.SPAWN:
                await self._spawn()
            problem = describe(self._watch, now, self._limits)
            if problem is not None:
                self._on_event(GpuTick(gpus=self._gpus, problem=problem))

    def _pause(self) -> float:
        """Seconds until the next check."""
        calm = min(self._interval, 1.0)
        if not self.sampling:
            return calm
        # With samples arriving, the next check is due shortly before the newest becomes stale.
        due = self._watch.heard + max(self._limits.stale_s, 3 * self._interval)
        return max(calm, due - calm - clock.monotonic())

    async def _sleep(self, seconds: float) -> None:
        """Sleep, at most until the child ends."""
        self._ended.clear()
        alarm = asyncio.get_running_loop().call_later(seconds, self._ended.set)
        await self._ended.wait()
        alarm.cancel()

    async def _spawn(self) -> None:
        self._watch = replace(self._watch, state=State.STARTING, since=clock.monotonic())
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE_BYTES
            )
        except OSError as error:
            self._fail(f"the GPU sampler could not be started: {error.strerror}")
            return
        self._child, self._problem = child, None
        self._group.create_task(self._follow(child))

    def _give_up(self) -> None:
        """Kill a child that hangs in the driver, without waiting: it may not even die."""
        if self._child is not None:
            _kill(self._child)
            self._killed.append(self._child)
        self._fail(None)

    def _fail(self, problem: str | None) -> None:
        watch, now = self._watch, clock.monotonic()
        healthy = watch.state is State.SAMPLING and now - watch.since >= self._limits.healthy_s
        hung_anew = problem is None and watch.problem is not None
        self._child = None
        self._ended.set()
        self._watch = replace(
            watch,
            state=State.WAITING,
            since=now,
            heard=watch.since if hung_anew else watch.heard,
            failures=1 if healthy else watch.failures + 1,
            problem=problem,
        )

    async def _follow(self, child: Process) -> None:
        """Read one child's lines until it ends; drop those of a child that was given up."""
        assert child.stdout is not None
        assert child.stderr is not None
        tail = bytearray()
        self._group.create_task(_keep_tail(child.stderr, tail))
        while line := await _line(child.stdout):
            try:
                event = self._decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # a driver library may print to stdout, too
            if child is self._child:
                self._take(event)
        await _ended(child)
        if child is self._child:
            self._end(child, bytes(tail))

    def _take(self, event: Event) -> None:
        if isinstance(event, FindingRaised):
            self._on_event(FindingRaised(dataclasses.replace(event.finding, node=self._node)))
        elif isinstance(event, GpuTick) and event.problem is not None:
            self._problem = event.problem
            self._on_event(event)
        elif isinstance(event, GpuTick):
            self._sampled(event)

    def _sampled(self, tick: GpuTick) -> None:
        now = clock.monotonic()
        if self._watch.state is State.STARTING:
            self._watch = replace(self._watch, state=State.SAMPLING, since=now, problem=None)
        self._watch = replace(self._watch, heard=now)
        self._gpus = tick.gpus
        self._on_event(tick)
        self._ledger.update(judge(tick.gpus, self._node))

    def _end(self, child: Process, tail: bytes) -> None:
        """Handle the end of a child that was not killed."""
        if child.returncode == NO_DRIVER:
            self._child = None
            self._watch = replace(self._watch, state=State.ABSENT)
            self._ended.set()
            return
        words = tail.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        ended = f"the GPU sampler ended with {_status(child.returncode)}" + (f": {words}" if words else "")
        self._fail(self._problem or ended)


async def _line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line, b"" at the end, and an empty line for one that is longer than LINE_BYTES."""
    try:
        return await stream.readline()
    except ValueError:
        return b"\n"


async def _keep_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(4096):
        tail += chunk
        del tail[:-TAIL_BYTES]


async def _ended(child: Process) -> bool:
    """Wait at most one second for its end."""
    try:
        await asyncio.wait_for(child.wait(), 1.0)
    except TimeoutError:
        return False
    return True


def _kill(child: Process) -> None:
    try:
        child.kill()
    except ProcessLookupError:
        pass


def _status(code: int | None) -> str:
    if code is None:
        return "no status"
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
