"""When frames are made: soon, together, and not more often than there is something to see."""

from __future__ import annotations

import asyncio

import pytest
from virtual_time import run

from distui.tui.beat import APART_S, CLOCKS_S, GATHER_S, SAMPLES_S, SOON_S, Beat


class Frames:
    """Notes when a frame is due."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.times: list[float] = []
        self.beat = Beat(self._due)
        self._came = asyncio.Event()

    def _due(self) -> None:
        self.times.append(self.loop.time())
        self.beat.beaten()
        self._came.set()

    async def next(self) -> float:
        """When the next frame is due."""
        self._came.clear()
        async with asyncio.timeout(5):
            await self._came.wait()
        return self.times[-1]


def test_samples_of_one_second_are_one_frame() -> None:
    run(samples())


async def samples() -> None:
    frames = Frames()
    began = frames.loop.time()
    for _ in range(100):
        frames.beat.stir(sample=True)
    first = await frames.next()
    assert first - began == pytest.approx(GATHER_S)
    frames.beat.stir(sample=True)
    second = await frames.next()
    assert second - first == pytest.approx(SAMPLES_S)
    frames.beat.stop()
    assert len(frames.times) == 2


def test_what_matters_does_not_wait_for_samples_and_a_flood_of_it_is_held_apart() -> None:
    run(flood())


async def flood() -> None:
    frames = Frames()
    frames.beat.stir(sample=True)
    began = frames.loop.time()
    frames.beat.stir(sample=False)
    first = await frames.next()
    assert first - began == pytest.approx(SOON_S)
    assert SOON_S < GATHER_S
    frames.beat.stir(sample=False)
    second = await frames.next()
    assert second - first == pytest.approx(APART_S)
    assert APART_S < SAMPLES_S
    frames.beat.stop()


def test_clocks_move_without_news_and_nothing_moves_after_the_end() -> None:
    run(clocks())


async def clocks() -> None:
    frames = Frames()
    frames.beat.at_once()
    first = await frames.next()
    second = await frames.next()
    assert second - first == pytest.approx(CLOCKS_S)
    frames.beat.stop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * CLOCKS_S):
            await frames.next()
