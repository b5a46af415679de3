"""What the terminal shows is what Textual would have painted, whoever painted it, and nothing covers a dialog."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product

import msgspec
import pyte
import pytest
import scripted as play
from conftest import Rig, Start, shown
from patience import HANG_S
from terminals import RepeatingScreen, RepeatingStream
from textual.events import CursorPosition
from textual.scrollbar import ScrollBar

from distui.runners.run import clock
from distui.runners.run.model import AttemptStarted, GpuTick, LogGrew, RankTick
from distui.tui.colours import NAMES
from distui.tui.pacing import ASK, Pacer
from distui.tui.paint import MOST_SETTLE_S
from distui.tui.screens.curves import CurveStrip
from distui.tui.screens.rows_view import thumb
from distui.tui.terminal_output import REPEAT_ANSWER

pytestmark = pytest.mark.usefixtures("painted")


class Paper:
    """A terminal that says at once that what was written has arrived."""

    def __init__(self, it: Rig) -> None:
        self._it = it
        self.screen = RepeatingScreen(*it.app.size)
        self.stream = RepeatingStream(self.screen)
        self.received = 0
        self.sent = ""

    def take(self, text: str) -> None:
        self.received += len(text.encode())
        self.sent += text
        self.stream.feed(text)
        if text.endswith(ASK):
            asyncio.get_running_loop().call_soon(self._it.app.pacer.answered)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    async def settled(self) -> None:
        """Until nothing is to be written any more."""
        await self._it.pilot.pause()
        async with asyncio.timeout(HANG_S):
            while self._it.app.picture.due or self._it.app.pacer.busy:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def papered(it: Rig, *, repeats: bool = False) -> AsyncIterator[Paper]:
    """From here on the app believes that it has a terminal that answers at once, and `repeats` characters."""
    paper = Paper(it)
    app = it.app
    app.picture.allow(repeats=repeats)
    app.pacer = Pacer(app._taken, paper.take)
    app.pacer.greet()
    app.screen.refresh()
    await it.until(lambda: "step 29" in paper.text)
    await paper.settled()
    yield paper
    app.pacer.active = False


def differences(it: Rig, paper: Paper) -> list[tuple[int, int, object, object]]:
    """Cells that are not as Textual alone would have painted the whole screen now."""
    whole = pyte.Screen(*it.app.size)
    stream = pyte.Stream(whole)
    for y, strip in enumerate(it.app.screen._compositor.render_strips()):
        stream.feed(f"\x1b[{y + 1};1H{strip.render(it.app.console)}")
    found: list[tuple[int, int, object, object]] = []
    for y, x in product(range(whole.lines), range(whole.columns)):
        ours, theirs = paper.screen.buffer[y][x], whole.buffer[y][x]
        same = ours == theirs or (ours.data == theirs.data == " " and ours.bg == theirs.bg)
        if not same and not isinstance(
            it.app.screen.get_widget_at(x, y)[0], ScrollBar
        ):  # see RowsView.slide
            found.append((y, x, ours, theirs))
    return found


def news(it: Rig, step: int) -> None:
    """Other values for every GPU and rank, and one more line in the log."""
    gpus = tuple(msgspec.structs.replace(gpu, util=float(step % 100)) for gpu in play.gpus())
    ranks = tuple(msgspec.structs.replace(one, step=step, cpu_percent=step / 10) for one in play.samples(8))
    out = it.run_dir / "node-0/attempt-001/rank-0.out"
    with out.open("a") as file:
        file.write(f"step {step} written later\n")
    it.link.play(GpuTick(gpus), time=it.now)
    it.link.play(RankTick(ranks), time=it.now)
    it.link.play(LogGrew({str(out.relative_to(it.run_dir)): out.stat().st_size}), time=it.now)


SIZES = ((80, 24), (120, 40), (200, 60))
KEYS = ("m", "2", "question_mark", "escape", "3", "5", "1", "j", "d", "escape")


@pytest.mark.parametrize(("size", "theme"), zip(SIZES, NAMES, strict=True))
async def test_the_terminal_shows_what_textual_would(rig: Start, size: tuple[int, int], theme: str) -> None:
    async with shown(rig(play.running()), *size) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it, repeats=size != SIZES[0]) as paper:
            it.app.theme = theme
            for step in (612, 787, 934):
                news(it, step)
                await it.until(lambda step=step: f"step {step} written" in paper.text)  # type: ignore[misc]
            await paper.settled()
            assert differences(it, paper) == []
            for key in KEYS if size == SIZES[0] else KEYS[:4]:
                await it.press(key)
                await paper.settled()
                assert differences(it, paper) == [], key


async def test_charts_are_made_every_two_seconds_and_at_once_when_something_happened(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        charts = it.app.screen.query_one("#curves", CurveStrip)
        made: list[float] = []
        make = charts.made
        charts.made = lambda frame, width, height: made.append(frame.now) or make(frame, width, height)  # type: ignore[method-assign, func-returns-value]
        it.now = float(int(it.now) // 2 * 2 + 2)
        for second in range(8):
            news(it, 612 + second)
            await it.until(lambda second=second: f"step {612 + second} written" in it.screen())  # type: ignore[misc]
            it.now += 1.0
        assert len(made) == 4, made
        begun = len(made)
        it.link.play(AttemptStarted(2, "restart", 8, play.places(8)), time=it.now)
        await it.until(lambda: len(made) > begun)  # it is a mark on the time axis
        begun = len(made)
        await it.press("minus")
        assert len(made) > begun, "another window"


BUDGETS = (
    ("", 15_000),
    ("question_mark", 10_000),
    ("escape", 10_000),
    ("2", 12_000),
    ("3", 12_000),
    ("1", 12_000),
    ("6", 12_000),
    ("1", 12_000),
)
"""Keys at 200×60, and the most bytes after each; no key: the whole screen."""

WITHOUT_REP = 1.5
"""By how much more a terminal may receive that does not repeat lines."""


@pytest.mark.parametrize("repeats", [True, False])
async def test_few_bytes_bring_another_screen(rig: Start, repeats: bool) -> None:
    async with shown(rig(play.running()), 200, 60) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it, repeats=repeats) as paper:
            before = 0
            for key, most in BUDGETS:
                if key:
                    await it.press(key)
                    await paper.settled()
                    assert differences(it, paper) == [], key
                assert paper.received - before <= most * (1 if repeats else WITHOUT_REP), key
                before = paper.received


async def test_the_answer_to_the_first_question_allows_repetition(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it) as paper:
            for position, repeats in (((1, 1), False), (REPEAT_ANSWER, True)):
                it.app.pacer.rtt = None
                it.app.on_cursor_position(CursorPosition(*position))
                before = len(paper.sent)
                it.app.paint_anew()
                await paper.settled()
                assert bool(re.search(r"─\x1b\[\d+b", paper.sent[before:])) == repeats
                assert differences(it, paper) == []


async def test_a_layout_that_keeps_changing_is_painted_after_a_tenth_of_a_second(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it) as paper:
            it.app.paint_anew()
            await paper.settled()
            begun, before = clock.monotonic(), paper.received
            it.app.picture.forget()
            while paper.received == before:
                it.app.screen.refresh(layout=True)
                await asyncio.sleep(0.005)
                assert clock.monotonic() - begun < 2 * MOST_SETTLE_S
            await paper.settled()
            assert differences(it, paper) == []


async def test_a_sample_changes_few_bytes(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it) as paper:
            news(it, 612)
            await it.until(lambda: "step 612 written" in paper.text)
            await paper.settled()
            before = paper.received
            news(it, 613)
            await it.until(lambda: "step 613 written" in paper.text)
            await paper.settled()
            assert differences(it, paper) == []
            assert paper.received - before < 2500, "rows as they stood took 7,000"


async def test_nothing_is_painted_over_a_dialog_or_a_notification(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it) as paper:
            await it.press("r")
            for step in (612, 613, 614):
                await shown_by_textual(it, step)
                await paper.settled()
                assert differences(it, paper) == []
            await it.press("escape")
            it.app.notify("in front of the rows", timeout=60)
            await it.pilot.pause()
            for step in (787, 788, 789):
                await shown_by_textual(it, step)
                await paper.settled()
                assert differences(it, paper) == []
            await it.until(lambda: "step 789" in it.screen())
            assert "In front of the rows" in it.told()


async def shown_by_textual(it: Rig, step: int) -> None:
    """News that have been published to the panes."""
    news(it, step)
    ranks = it.run.state.ranks
    await it.until(lambda: (sample := ranks[0].sample) is not None and sample.step == step)
    it.app.publish()
    await it.pilot.pause()


async def test_another_size_and_a_shell_in_between_are_painted_whole(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it) as paper:
            paper.screen.resize(50, 150)
            paper.screen.reset()
            await it.pilot.resize_terminal(150, 50)
            await paper.settled()
            assert differences(it, paper) == []
            paper.screen.reset()
            it.app._resume_signal()
            it.app.refresh(layout=True)
            await paper.settled()
            assert differences(it, paper) == []


def test_a_thumb_is_as_long_as_the_share_that_is_shown() -> None:
    assert thumb(20, 10, 0) == (0, 0)
    assert thumb(20, 40, 0) == (0, 10)
    assert thumb(20, 40, 20) == (10, 20)
    assert thumb(20, 100_000, 99_980) == (19, 20)
