"""The decision over the sampler child, as a table, and the real thing over a real child."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import patience
import pytest
from gpu_rig import Rig, needs_compiler, scenario
from msgspec.structs import replace
from virtual_time import VirtualLoop

from distui.presets.finding import Finding
from distui.runners.run import clock
from distui.runners.run.model import Event, FindingCleared, FindingRaised, GpuTick
from distui.runners.run.parts import in_background
from distui.runners.run.samples import Gpu
from distui.runners.telemetry.gpus import (
    Act,
    GpuSource,
    SamplerLimits,
    State,
    Watch,
    backoff,
    decide,
    describe,
)

LIMITS = SamplerLimits()


def watch(state: State, since: float = 0.0, heard: float = 0.0, failures: int = 0, stuck: int = 0) -> Watch:
    return Watch(state, since, heard, failures, stuck)


def test_decide() -> None:
    for given, now, expected in [
        (watch(State.STARTING), 19.0, Act.NOTHING),
        (watch(State.STARTING), 21.0, Act.KILL),
        (watch(State.SAMPLING, heard=100.0), 104.9, Act.NOTHING),
        (watch(State.SAMPLING, heard=100.0), 105.1, Act.KILL),
        (watch(State.WAITING, failures=1), 4.9, Act.NOTHING),
        (watch(State.WAITING, failures=1), 5.0, Act.SPAWN),
        (watch(State.WAITING, failures=3), 19.0, Act.NOTHING),
        (watch(State.WAITING, failures=3), 20.0, Act.SPAWN),
        (watch(State.WAITING, failures=3, stuck=3), 1e6, Act.NOTHING),
        (watch(State.ABSENT), 1e6, Act.NOTHING),
    ]:
        assert decide(given, now, LIMITS) is expected


def test_a_slow_interval_is_no_hang() -> None:
    given = watch(State.SAMPLING, heard=0.0)
    assert decide(given, 14.0, LIMITS, interval=5.0) is Act.NOTHING
    assert decide(given, 15.1, LIMITS, interval=5.0) is Act.KILL


def test_backoff_doubles_to_its_limit() -> None:
    waits = [backoff(watch(State.WAITING, failures=failures), LIMITS) for failures in (1, 2, 3, 4, 7, 5000)]
    assert waits == [5, 10, 20, 40, 300, 300]


def test_describe_says_how_long_and_what_next() -> None:
    hung = watch(State.WAITING, since=106.0, heard=100.0, failures=1)
    text = describe(hung, 107.0, LIMITS)
    assert text == "GPU driver call has not returned for 7 s (a new sampler in 4 s)"
    assert "3 samplers hang in the driver" in str(
        describe(Watch(State.WAITING, 0, 0, 3, stuck=3), 1.0, LIMITS)
    )
    assert describe(watch(State.SAMPLING), 3.0, LIMITS) is None
    assert describe(watch(State.STARTING), 3.0, LIMITS) is None


class Seen:
    """Events as they come, for a test that waits for one."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def take(self, event: Event) -> None:
        self.all.append(event)
        self._queue.put_nowait(event)

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        async with asyncio.timeout(patience.HANG_S):
            while not wanted(event := await self._queue.get()):
                pass
            return event


def good(event: Event) -> bool:
    return isinstance(event, GpuTick) and event.problem is None


def problem(words: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, GpuTick) and words in (event.problem or "")


# ---- with fake samplers


class Child:
    """A sampler's process, as asyncio hands it out."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, cast(int | None, None)
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self.stdin = self
        self.unkillable = False
        self._over = asyncio.Event()

    def says(self, event: Event) -> None:
        self.stdout.feed_data(msgspec.json.encode(event) + b"\n")

    def ends(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self.stdout.feed_eof()
            self.stderr.feed_eof()
            self._over.set()

    def kill(self) -> None:
        if not self.unkillable:
            self.ends(-signal.SIGKILL)

    def close(self) -> None:
        """Of its stdin: it ends by itself."""
        if not self.unkillable:
            self.ends(0)

    async def wait(self) -> int | None:
        await self._over.wait()
        return self.returncode


class Driver:
    """Starts fake samplers, which tick while the driver answers."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.hangs = self.refuses = False
        self.gpus = tuple(Gpu(number, f"GPU-{number}", "H100") for number in (0, 1))

    async def start(self, *command: object, **options: object) -> Child:
        if self.refuses:
            raise FileNotFoundError(2, "No such file or directory")
        child = Child(100 + len(self.children))
        self.children.append(child)
        self._ticking = asyncio.create_task(self._tick(child))
        return child

    async def _tick(self, child: Child) -> None:
        while child.returncode is None:
            await asyncio.sleep(0.1)
            if not self.hangs:
                child.says(GpuTick(self.gpus))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", made.start)
    return made


@asynccontextmanager
async def running(limits: SamplerLimits = LIMITS) -> AsyncIterator[tuple[GpuSource, Seen]]:
    seen = Seen()
    source = GpuSource(0.1, seen.take, node=2, limits=limits)
    async with in_background(source.run()):
        yield source, seen


async def test_a_call_that_hangs_is_given_up_and_the_values_stay(driver: Driver) -> None:
    async with running() as (source, seen):
        await seen.until(good)
        driver.hangs = True
        tick = await seen.until(problem("GPU driver call has not returned for"))
        assert isinstance(tick, GpuTick)
        assert len(tick.gpus) == 2, "the values last known"
        assert driver.children[0].returncode == -signal.SIGKILL
        await seen.until(problem("waiting for a new sampler's first values"))
        driver.hangs = False
        await seen.until(good)
        assert source.pid == 101


async def test_three_samplers_that_the_driver_does_not_let_go_are_enough(driver: Driver) -> None:
    driver.hangs = True
    async with running() as (_, seen):
        for _ in range(3):
            await asyncio.sleep(0.1)
            while driver.children[-1].unkillable:
                await asyncio.sleep(1.0)
            driver.children[-1].unkillable = True
        await seen.until(problem("3 samplers hang in the driver; a new one follows when one of them ends"))
        await asyncio.sleep(600)
        assert len(driver.children) == 3
        driver.children[0].ends(-signal.SIGKILL)
        await asyncio.sleep(2.0)
        assert len(driver.children) == 4
        for child in driver.children:
            child.ends(0)


async def test_a_driver_that_hangs_while_it_starts_is_given_up(driver: Driver) -> None:
    driver.hangs = True
    async with running() as (source, seen):
        began = clock.monotonic()
        await seen.until(problem("a new sampler in"))
        assert source.pid is None
        assert LIMITS.init_s < clock.monotonic() - began < LIMITS.init_s + 1.0


async def test_a_sampler_that_dies_is_replaced(driver: Driver) -> None:
    async with running() as (source, seen):
        await seen.until(good)
        driver.children[0].kill()
        await seen.until(problem("the GPU sampler ended with SIGKILL (a new sampler in 5 s)"))
        await seen.until(good)
        assert source.pid == 101


async def test_health_is_told_with_its_node_and_taken_back(driver: Driver) -> None:
    async with running() as (_, seen):
        await seen.until(good)
        healthy, (first, second) = driver.gpus, driver.gpus
        driver.gpus = (first, replace(second, lost=True))
        driver.children[0].says(FindingRaised(Finding("xid-48:gpu0", "error", "an Xid")))
        raised = [await seen.until(lambda event: isinstance(event, FindingRaised)) for _ in range(2)]
        findings = [event.finding for event in raised if isinstance(event, FindingRaised)]
        assert {finding.id for finding in findings} == {"gpu-lost:gpu1", "xid-48:gpu0"}
        assert {finding.node for finding in findings} == {2}
        driver.gpus = healthy
        cleared = await seen.until(lambda event: isinstance(event, FindingCleared))
        assert cleared == FindingCleared("gpu-lost:gpu1", node=2)


async def test_a_sampler_that_cannot_work_is_quoted(driver: Driver) -> None:
    async with running() as (_, seen):
        await asyncio.sleep(0)
        driver.children[0].stderr.feed_data(b"Traceback\nno such module\n")
        driver.children[0].ends(1)
        await seen.until(problem("the GPU sampler ended with status 1: no such module"))


async def test_a_sampler_that_cannot_start_is_said(driver: Driver) -> None:
    driver.refuses = True
    async with running() as (_, seen):
        await seen.until(problem("the GPU sampler could not be started: No such file or directory"))


async def test_lines_that_are_no_events_are_passed_over(driver: Driver) -> None:
    async with running() as (_, seen):
        await asyncio.sleep(0)
        driver.children[0].stdout.feed_data(b"noise\n{}\n" + b"x" * (3 << 20) + b"\n")
        assert await seen.until(good) == GpuTick(driver.gpus)


async def test_an_agent_that_stood_still_blames_nobody(driver: Driver) -> None:
    async with running() as (source, seen):
        await seen.until(good)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop._now += 60.0  # as a loop that was blocked finds it
        await seen.until(good)
        await asyncio.sleep(0.3)
        assert source.pid == 100
        assert all(good(event) for event in seen.all)


async def test_stop_ends_the_child(driver: Driver) -> None:
    async with running() as (source, seen):
        await seen.until(good)
    assert driver.children[0].returncode == 0
    assert source.pid is None


# ---- with the real sampler


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    found = Rig(tmp_path, scenario.busy(2))
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.real
@needs_compiler
async def test_a_real_sampler_that_hangs_is_replaced_and_ended(rig: Rig) -> None:
    async with running(SamplerLimits(stale_s=1.0, backoff_s=0.2)) as (source, seen):
        await seen.until(good)
        hung = source.pid
        rig.set(scenario.busy(2) + scenario.hang("nvmlDeviceGetUtilizationRates"))
        await seen.until(problem("GPU driver call has not returned for"))
        rig.set(scenario.busy(2))
        await seen.until(good)
        assert source.pid not in (None, hung)
        assert not Path(f"/proc/{hung}").exists()
        last = source.pid
    assert not Path(f"/proc/{last}").exists()


@pytest.mark.real
async def test_without_a_driver_library_one_tick_and_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DISTUI_NVML_LIBRARY", str(tmp_path / "none.so"))
    async with running() as (source, seen):
        await seen.until(problem("no GPU: "))
        while source.pid is not None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # several intervals, in which nothing more may come
        assert len(seen.all) == 1
