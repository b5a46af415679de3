"""The GPUs of this node as an agent gets them: the sampler child under watch, GPU health, NVML's numbers in words.

A driver call that hangs costs the agent nothing. Decisions are pure. Sources of the numbers: nvml.h
(nvmlClocksEventReason*, nvmlDeviceGpuRecoveryAction_t) and NVIDIA's Xid catalogue.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...presets.finding import Finding
from ..finding_ledger import FindingLedger
from ..model import Event, FindingRaised, Gpu, GpuTick

# -----------------------------------------------------------------------------------------------------------
# What to do about the sampler child: let it be, end it, start a new one; and why there are no values. Pure.

NO_DRIVER = 3
"""Exit status of a sampler that found no driver library or no GPU: another one would find none either."""

SHORTEST_S = 0.1
"""Shortest interval between two samples, seconds: asking a driver more often slows training down."""


class State(enum.Enum):
    """Where the sampler child stands."""

    STARTING = "starting"  # spawned, no sample yet
    SAMPLING = "sampling"
    WAITING = "waiting"  # none, a new one follows
    ABSENT = "absent"  # none, and none will follow


class Act(enum.Enum):
    """What to do now."""

    NOTHING = "nothing"
    KILL = "kill"  # end the child without waiting for it, then wait
    SPAWN = "spawn"


class SamplerLimits(Struct, frozen=True):
    """Times in seconds."""

    stale_s: float = 5.0
    """Age of the newest sample at which the driver call counts as hung; at least 3 intervals."""
    init_s: float = 20.0
    """The same for a child that has not sampled yet: loading the driver takes seconds a GPU."""
    backoff_s: float = 5.0
    """Wait before the first new child; doubles with each failure."""
    backoff_max_s: float = 300.0
    healthy_s: float = 60.0
    """Sampling for this long forgets earlier failures."""
    stuck: int = 3
    """Killed children that the driver does not let go, at which no new one is started."""


class Watch(Struct, frozen=True):
    """All that the decision needs; times are monotonic seconds."""

    state: State
    since: float
    """When it was spawned (STARTING), began to sample (SAMPLING) or ended (WAITING)."""
    heard: float
    """When the newest sample came; before the first, when sampling was first tried."""
    failures: int = 0
    stuck: int = 0
    problem: str | None = None
    """How the child before ended; None when it hung in a driver call, or when all is well."""


def decide(watch: Watch, now: float, limits: SamplerLimits, interval: float = 1.0) -> Act:
    """The next step. Pure."""
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
    """Why there are no new values, as a sentence; None when there are, or when it is too early to say."""
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
# The sampler child under watch: a driver call that hangs costs the agent nothing but a sentence.


LINE_BYTES = 1 << 20
"""Longest line taken from the sampler."""
TAIL_BYTES = 2048
"""How much of a sampler's stderr is kept."""
LATE_S = 1.0
"""An event loop that is later than this (seconds) proves nothing about the sampler."""
LIMITS = SamplerLimits()


class GpuSource:
    """Runs the sampler for this node and hands its events to `on_event`, from the event loop.

    Events: `GpuTick` each interval (with `problem` and the values last known while the driver does not
    answer), `FindingRaised` and `FindingCleared` for the GPUs' health and for Xid errors. Without an NVIDIA
    driver there is one `GpuTick` that says so, and no process. `node` goes into the findings, `command`
    replaces the sampler's argv.
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._gpus: tuple[Gpu, ...] = ()
        self._ledger = FindingLedger(on_event)
        self._problem: str | None = None
        now = time.monotonic()
        self._watch = Watch(State.WAITING, now, now)
        self._ended = asyncio.Event()
        """Set when a child ended or was given up: sampling is no longer all there is to see."""

    @property
    def sampling(self) -> bool:
        """Whether samples come now."""
        return self._watch.state is State.SAMPLING

    @property
    def pid(self) -> int | None:
        """The sampler child's pid; None when there is none."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Spawn the sampler and begin to watch it. Returns at once."""
        now = time.monotonic()
        self._watch = Watch(State.WAITING, now, now)
        await self._spawn()
        self._begin(self._run())

    async def stop(self) -> None:
        """End the sampler: by closing its stdin, after a second by SIGKILL, and never waiting longer."""
        child, self._child = self._child, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if child is None or child.returncode is not None:
            return
        if child.stdin is not None:
            child.stdin.close()
        if not await _ended(child):
            _kill(child)
            await _ended(child)

    async def _run(self) -> None:
        while self._watch.state is not State.ABSENT:
            before, pause = time.monotonic(), self._pause()
            await self._sleep(pause)
            if time.monotonic() - before > pause + LATE_S:
                continue  # the agent itself stood still: the sampler's lines wait to be read
            self._killed = [child for child in self._killed if child.returncode is None]
            self._watch = replace(self._watch, stuck=len(self._killed))
            now = time.monotonic()
            act = decide(self._watch, now, self._limits, self._interval)
            if act is Act.KILL:
                self._give_up()
            elif act is Act.SPAWN:
                await self._spawn()
            problem = describe(self._watch, now, self._limits)
            if problem is not None:
                self._on_event(GpuTick(gpus=self._gpus, took_ms=0.0, problem=problem))

    def _pause(self) -> float:
        """Seconds until there may be something to do."""
        calm = min(self._interval, 1.0)
        if not self.sampling:
            return calm
        # While samples come there is nothing to check until shortly before the newest is too old.
        due = self._watch.heard + max(self._limits.stale_s, 3 * self._interval)
        return max(calm, due - calm - time.monotonic())

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or until the child has ended."""
        self._ended.clear()
        alarm = asyncio.get_running_loop().call_later(seconds, self._ended.set)
        await self._ended.wait()
        alarm.cancel()

    async def _spawn(self) -> None:
        self._watch = replace(self._watch, state=State.STARTING, since=time.monotonic())
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE_BYTES
            )
        except OSError as error:
            self._fail(f"the GPU sampler could not be started: {error.strerror}")
            return
        self._child, self._problem = child, None
        self._begin(self._follow(child))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give_up(self) -> None:
        """The child hangs in the driver. It may not even die: nobody waits for it."""
        if self._child is not None:
            _kill(self._child)
            self._killed.append(self._child)
        self._fail(None)

    def _fail(self, problem: str | None) -> None:
        watch, now = self._watch, time.monotonic()
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
        """Read one child's lines until it ends; those of a child that was given up are dropped."""
        assert child.stdout is not None
        assert child.stderr is not None
        tail = bytearray()
        self._begin(_keep_tail(child.stderr, tail))
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
        now = time.monotonic()
        if self._watch.state is State.STARTING:
            self._watch = replace(self._watch, state=State.SAMPLING, since=now, problem=None)
        self._watch = replace(self._watch, heard=now)
        self._gpus = tick.gpus
        self._on_event(tick)
        self._ledger.update(judge(tick.gpus, self._node))

    def _end(self, child: Process, tail: bytes) -> None:
        """The child ended by itself."""
        if child.returncode == NO_DRIVER:
            self._child = None
            self._watch = replace(self._watch, state=State.ABSENT)
            self._ended.set()
            return
        words = tail.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        ended = f"the GPU sampler ended with {_status(child.returncode)}" + (f": {words}" if words else "")
        self._fail(self._problem or ended)


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line; b"" at the end. One that is longer than LINE_BYTES comes as an empty line."""
    try:
        return await stream.readline()
    except ValueError:
        return b"\n"


async def _keep_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(4096):
        tail += chunk
        del tail[:-TAIL_BYTES]


async def _ended(child: Process) -> bool:
    """Wait at most a second for its end."""
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


# -----------------------------------------------------------------------------------------------------------
# What is wrong with a GPU, from one sample of it. Pure.


class GpuRule(NamedTuple):
    """One thing that can be wrong; `text` and `remedy` are sentences, `text` about "GPU <index>"."""

    id: str
    severity: str
    holds: Callable[[Gpu], bool]
    text: str
    remedy: str


RULES = (
    GpuRule(
        "gpu-lost", "error", lambda gpu: gpu.lost,
        "GPU {0.index} is lost: the driver no longer reaches it",
        "restart without this node; the GPU needs a reset, mostly a reboot",
    ),
    GpuRule(
        "gpu-ecc", "error", lambda gpu: bool(gpu.ecc_uncorrected),
        "GPU {0.index} counts {0.ecc_uncorrected} uncorrected ECC errors since the driver was loaded",
        "results since then may be wrong; reset the GPU and watch whether the errors come back",
    ),
    GpuRule(
        "gpu-remap-failed", "error", lambda gpu: gpu.remap_failed is True,
        "GPU {0.index} could not replace a broken memory row", "have the GPU exchanged",
    ),
    GpuRule(
        "gpu-remap-pending", "warning", lambda gpu: gpu.remap_pending is True,
        "GPU {0.index} will replace a broken memory row at its next reset", "reset the GPU before the next run",
    ),
    GpuRule(
        "gpu-recovery", "warning", lambda gpu: gpu.recovery is not None,
        "the driver asks for GPU {0.index}: {0.recovery}", "do that when the run has ended",
    ),
)  # fmt: skip


def judge(gpus: Iterable[Gpu], node: int | None = None) -> tuple[Finding, ...]:
    """The findings that hold for these GPUs now; ids end in ":gpu<index>"."""
    return tuple(
        Finding(
            f"{rule.id}:gpu{gpu.index}", rule.severity, rule.text.format(gpu), node=node, remedy=rule.remedy
        )
        for gpu in gpus
        for rule in RULES
        if rule.holds(gpu)
    )


# -----------------------------------------------------------------------------------------------------------
# NVML's numbers in words: clock event reasons, recovery actions, Xid errors. Pure.


THROTTLE = (
    (0x001, "idle"),
    (0x002, "application clocks"),
    (0x004, "power cap"),
    (0x008, "hardware slowdown"),
    (0x010, "sync boost"),
    (0x020, "thermal (software)"),
    (0x040, "thermal (hardware)"),
    (0x080, "power brake"),
    (0x100, "display clocks"),
    (0x200, "board limit"),
    (0x400, "reliability voltage"),
)

RECOVERY = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain peer-to-peer traffic",
    4: "drain and GPU reset",
    5: "recover the IMEX domain",
    6: "bus reset",
    7: "system reboot",
}

_RESET = "end the run and reset the GPU"
_SCRIPT = "check the ranks on this GPU: it is most often the program's own fault"
_EXCHANGE = "reset the GPU; have it exchanged if this comes back"

XID = {
    8: ("error", "the GPU stopped processing", _SCRIPT),
    13: ("error", "a kernel raised an exception (bad address or instruction)", _SCRIPT),
    31: ("error", "a kernel touched memory that is not mapped", _SCRIPT),
    32: ("error", "the push buffer was corrupted", _EXCHANGE),
    38: ("error", "the driver's firmware failed", _RESET),
    43: ("error", "the GPU stopped a process that had faulted", _SCRIPT),
    45: (
        "warning",
        "a process was cleaned off the GPU before it had ended",
        "look for the error before this one",
    ),
    48: ("error", "double-bit ECC error", _EXCHANGE),
    61: ("error", "the GPU's internal controller halted (warning)", _RESET),
    62: ("error", "the GPU's internal controller halted", _RESET),
    63: ("warning", "a broken memory row was marked to be replaced", "reset the GPU before the next run"),
    64: ("error", "a broken memory row could not be recorded for replacement", _EXCHANGE),
    68: ("error", "a video processor exception", _SCRIPT),
    69: ("error", "a graphics engine class error", _SCRIPT),
    74: (
        "error",
        "NVLink error",
        "check nvidia-smi nvlink -e and the links to the other GPUs; reset the GPU",
    ),
    79: ("error", "the GPU fell off the bus", "reboot the node; check power, cooling and seating"),
    92: ("warning", "many corrected ECC errors", "watch this GPU"),
    94: (
        "error",
        "a contained uncorrected ECC error ended the process that used the memory",
        "restart the run",
    ),
    95: ("error", "an uncontained uncorrected ECC error", _RESET),
    109: ("error", "a context switch took too long", _SCRIPT),
    119: (
        "error",
        "the GPU's system processor (GSP) does not answer the driver",
        "reset the GPU or reboot",
    ),
    120: ("error", "the GPU's system processor (GSP) failed", "reset the GPU or reboot"),
    121: ("warning", "corrected NVLink C2C error", "watch this node"),
    140: ("error", "unrecovered ECC error", _RESET),
    154: ("warning", "the driver asks for a recovery of the GPU", "see the GPU's recovery column"),
}
"""Xid → severity, what happened, what to do."""


def throttle_words(mask: int) -> tuple[str, ...]:
    """The active clock event reasons; one that is not known by name as its bit."""
    named = sum(bit for bit, _ in THROTTLE)
    words = [word for bit, word in THROTTLE if mask & bit]
    return tuple(words + ([f"reason {mask & ~named:#x}"] if mask & ~named else []))


def recovery_words(action: int) -> str | None:
    """What the driver asks for; None for nothing."""
    return None if action == 0 else RECOVERY.get(action, f"recovery action {action}")


def xid_finding(code: int, gpu: int | None, times: int = 1) -> Finding:
    """An Xid error in words. `gpu` is the NVML index, `times` how often it came in a row."""
    severity, text, remedy = XID.get(
        code, ("warning", "an error of the driver or the GPU", "look it up by number")
    )
    where = "an unknown GPU" if gpu is None else f"GPU {gpu}"
    often = f", {times} times" if times > 1 else ""
    return Finding(
        id=f"xid-{code}" + ("" if gpu is None else f":gpu{gpu}"),
        severity=severity,
        text=f"Xid {code} on {where}: {text}{often}",
        remedy=remedy,
    )
