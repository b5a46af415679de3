"""Log files that grow are told: with the sample, and at once where somebody looks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import patience

from distui.runners.agent.log_growth import DEAF_S, SHORTEST_S, Growing
from distui.runners.run import clock
from distui.runners.run.growth_watch import GONE
from distui.runners.run.log_files import file_id
from distui.runners.run.model import LogGrew, Stamped
from distui.runners.run.state import RunState

ONE, TWO = file_id(0, 1, 0, "out"), file_id(0, 2, 0, "nccl")


def write(run: Path, file: str, data: bytes = b"x") -> None:
    path = run / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        log.write(data)


class Told:
    """What was told, and when."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.times: list[float] = []
        self._news = asyncio.Event()

    def take(self, sizes: dict[str, int]) -> None:
        self.sizes |= sizes
        self.times.append(clock.monotonic())
        self._news.set()

    async def until(self, wanted: Callable[[dict[str, int]], bool]) -> None:
        async with asyncio.timeout(patience.HANG_S):
            while not wanted(self.sizes):
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def growing(run: Path) -> AsyncIterator[tuple[Growing, Told]]:
    told = Told()
    found = Growing(run, told.take)
    try:
        yield found, told
    finally:
        found.end()


async def test_where_nobody_looks_only_a_look_tells(tmp_path: Path) -> None:
    async with growing(tmp_path) as (it, told):
        write(tmp_path, ONE)
        await asyncio.sleep(2 * DEAF_S)  # nothing may come
        assert told.times == []
        it.check()
        assert told.sizes == {ONE: 1}


async def test_a_line_is_told_at_once_where_somebody_looks(tmp_path: Path) -> None:
    async with growing(tmp_path) as (it, told):
        write(tmp_path, ONE)
        it.attend(True)
        assert told.sizes == {ONE: 1}
        await asyncio.sleep(2 * SHORTEST_S)
        for size in range(2, 12):
            write(tmp_path, ONE)
            began = clock.monotonic()
            await told.until(lambda sizes, size=size: sizes[ONE] == size)  # type: ignore[misc]
            assert clock.monotonic() == began, "no timer was waited for"
            await asyncio.sleep(1.5 * SHORTEST_S)
        it.attend(False)
        write(tmp_path, ONE)
        await asyncio.sleep(2 * DEAF_S)
        assert told.sizes == {ONE: 11}


async def test_who_comes_while_others_look_is_given_what_was_written_just_now(tmp_path: Path) -> None:
    async with growing(tmp_path) as (it, told):
        write(tmp_path, ONE)
        it.attend(True)
        for size in range(2, 12):
            write(tmp_path, ONE)
            it.welcome()
            assert told.sizes == {ONE: size}


async def test_a_file_that_gets_another_name_is_gone_by_its_old_one(tmp_path: Path) -> None:
    async with growing(tmp_path) as (it, told):
        write(tmp_path, TWO)
        write(tmp_path, ONE)
        it.check()
        name = ONE.replace("rank-0", "command")
        (tmp_path / ONE).rename(tmp_path / name)
        it.check()
        assert told.sizes == {TWO: 1, ONE: GONE, name: 1}
        state = RunState()
        for sizes in ({TWO: 1, ONE: 1}, {ONE: GONE, name: 1}):
            state.apply(Stamped(seq=0, time=1.0, event=LogGrew(sizes)))
        assert state.log_sizes == {TWO: 1, name: 1}


async def test_a_new_attempt_is_heard_too(tmp_path: Path) -> None:
    async with growing(tmp_path) as (it, told):
        it.attend(True)
        for count in range(1, 4):
            write(tmp_path, ONE)
            write(tmp_path, TWO)
            await told.until(lambda sizes, count=count: sizes.get(ONE) == sizes.get(TWO) == count)  # type: ignore[misc]


async def test_a_flood_is_looked_at_now_and_then_and_its_end_is_seen(tmp_path: Path) -> None:
    async with growing(tmp_path) as (it, told):
        write(tmp_path, ONE)
        it.attend(True)
        for _ in range(1000):
            write(tmp_path, ONE)
            await asyncio.sleep(0.001)
        await told.until(lambda sizes: sizes[ONE] == 1001)
        assert len(told.times) <= 2 + 1.0 / SHORTEST_S
        assert all(later - earlier > 0.9 * SHORTEST_S for earlier, later in itertools.pairwise(told.times))


async def test_without_the_kernel_s_help_the_files_are_looked_at_four_times_a_second(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with growing(tmp_path) as (it, told):
        write(tmp_path, ONE)
        gc.collect()  # what an earlier test has left behind closes nothing from here on
        probe = os.open("/dev/null", os.O_RDONLY)
        os.close(probe)
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))  # no descriptor for inotify
        try:
            it.attend(True)
            assert told.sizes == {}  # nor to list a folder
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await told.until(lambda sizes: sizes == {ONE: 1})
        write(tmp_path, ONE)
        began = clock.monotonic()
        await told.until(lambda sizes: sizes == {ONE: 2})
        assert clock.monotonic() - began <= DEAF_S + 0.001
