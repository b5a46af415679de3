"""Rows that go straight to the terminal look as Textual would have painted them, and stay below what covers them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pyte
import pytest
import scripted as play
from conftest import Rig, Start, shown

from distui.runners.model import GpuTick, LogGrew, RankTick
from distui.tui.paint import ASK, NAMES
from distui.tui.screens.rows_view import thumb

pytestmark = pytest.mark.timeout(60)


class Paper:
    """A terminal that only sees what the brush writes, and says at once that it has arrived."""

    def __init__(self, it: Rig) -> None:
        self.screen = pyte.Screen(*it.app.size)
        self.stream = pyte.Stream(self.screen)
        self._pacer = it.app.pacer

    def take(self, text: str) -> None:
        self.stream.feed(text)
        if text.endswith(ASK):
            asyncio.get_running_loop().call_soon(self._pacer.answered)

    @property
    def rows(self) -> dict[int, str]:
        """Rows with ink, by their place."""
        return {y: line.rstrip() for y, line in enumerate(self.screen.display) if line.strip()}


@contextmanager
def papered(it: Rig) -> Iterator[Paper]:
    """From here on the app believes that it has a terminal that answers at once."""
    paper = Paper(it)
    it.app.write = paper.take  # type: ignore[method-assign]
    it.app.pacer.active = True
    yield paper
    it.app.pacer.active = False


def news(it: Rig, step: int) -> None:
    """Other values for every GPU and rank, and one more line in the log."""
    gpus = tuple(msgspec.structs.replace(gpu, util=float(step % 100)) for gpu in play.gpus())
    ranks = tuple(msgspec.structs.replace(one, step=step, cpu_percent=step / 10) for one in play.samples(8))
    out = it.run_dir / "node-0/attempt-001/rank-0.out"
    with out.open("a") as file:
        file.write(f"step {step} written later\n")
    it.link.play(GpuTick(gpus, 2.0), time=it.now)
    it.link.play(RankTick(ranks), time=it.now)
    it.link.play(LogGrew({str(out.relative_to(it.run_dir)): out.stat().st_size}), time=it.now)


@pytest.mark.parametrize("theme", NAMES)
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_brush_paints_what_textual_would(rig: Start, size: tuple[int, int], theme: str) -> None:
    async with shown(rig(play.running()), *size) as it:
        await it.until(lambda: "step 29" in it.screen())
        it.app.theme = theme
        await it.pilot.pause()
        with papered(it) as paper:
            for step in (612, 787, 934):
                news(it, step)
                await it.until(lambda step=step: f"step {step} written" in "\n".join(paper.rows.values()))  # type: ignore[misc]
            await it.pilot.pause()
        lines = it.screen().splitlines()
        wrong = {y: (text, lines[y]) for y, text in paper.rows.items() if text.strip() not in lines[y]}
        assert not wrong
        assert len(paper.rows) > 12
        assert "787" not in lines[0]


async def test_colours_are_those_of_textual(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        with papered(it) as paper:
            news(it, 612)
            await it.until(lambda: "step 612" in "\n".join(paper.rows.values()))
            await it.pilot.pause()
        whole = pyte.Screen(*it.app.size)
        stream = pyte.Stream(whole)
        for y, strip in enumerate(it.app.screen._compositor.render_strips()):
            stream.feed(f"\x1b[{y + 1};1H{strip.render(it.app.console)}")
        painted = [
            (y, x) for y in paper.rows for x in range(2, 118) if paper.screen.buffer[y][x].bg != "default"
        ]
        assert len(painted) > 1000
        for y, x in painted:
            ours, theirs = paper.screen.buffer[y][x], whole.buffer[y][x]
            assert ours == theirs or (ours.data == theirs.data == " " and ours.bg == theirs.bg), (y, x)


async def test_nothing_is_painted_over_a_dialog_or_a_notification(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        with papered(it) as paper:
            await it.press("r")
            paper.screen.reset()
            for step in (612, 613, 614):
                await shown_by_textual(it, step)
            assert paper.rows == {}
            await it.press("escape")
            it.app.notify("in front of the rows", timeout=60)
            await it.pilot.pause()
            paper.screen.reset()
            for step in (787, 788, 789):
                await shown_by_textual(it, step)
            assert paper.rows == {}
            await it.until(lambda: "step 789" in it.screen())
            assert "In front of the rows" in it.told()


async def shown_by_textual(it: Rig, step: int) -> None:
    """News that have been published to the panes."""
    news(it, step)
    ranks = it.app.follower.state.ranks if it.app.follower is not None else {}
    await it.until(lambda: (sample := ranks[0].sample) is not None and sample.step == step)
    it.app.publish()
    await it.pilot.pause()


async def test_another_title_comes_with_its_rows(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        with papered(it) as paper:
            await it.press("m")
            assert "GPU memory" in it.screen()
            assert paper.rows == {}
            news(it, 612)
            await it.until(lambda: "step 612" in "\n".join(paper.rows.values()))


def test_a_thumb_is_as_long_as_the_share_that_is_shown() -> None:
    assert thumb(20, 10, 0) == (0, 0)
    assert thumb(20, 40, 0) == (0, 10)
    assert thumb(20, 40, 20) == (10, 20)
    assert thumb(20, 100_000, 99_980) == (19, 20)
