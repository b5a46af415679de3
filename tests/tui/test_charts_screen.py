"""Charts on the screen: one window for all panes, the crosshair, steps instead of times, names of curves."""

from __future__ import annotations

import asyncio
import re

import pytest
import scripted as play
import several
from conftest import Rig, Start, shown
from test_looks_curves import Curved, curved

from distui.runners.run.model import RunEnded, RunPhase
from distui.tui.screens.curves import CurveStrip


def titles(it: Rig) -> dict[str, str]:
    """The value of each chart by its title."""
    found = re.findall(r"(step time|throughput|loss|GPU util|GPU power) (\S+)", it.screen())
    return dict(found)


async def started(it: Rig) -> None:
    await it.until(lambda: "p50" in it.screen())
    await asyncio.sleep(3)


async def test_all_panes_of_a_screen_show_the_same_time(rig: Start) -> None:
    async with shown(curved(rig), 200, 60) as it:
        await started(it)
        panes = {str(it.app.screen.query_one(pane).border_title) for pane in ("#strip", "#curves")}
        words = {re.search(r"live \S+", title).group() for title in panes}  # type: ignore[union-attr]
        assert words == {"live 2m"}
        curves = it.app.screen.query_one("#curves", CurveStrip)
        view = curves._view
        assert view is not None
        assert abs(view.span.begin - play.BEGAN) < 10, "the window begins with the first sample"


async def test_arrows_read_all_charts_without_leaving_live(rig: Start) -> None:
    async with shown(curved(rig), 120, 40) as it:
        await it.press("4")
        await started(it)
        before = titles(it)
        assert len(before) == 5
        await it.press("left")
        for _ in range(11):
            await it.press("left")
        await it.until(lambda: re.search(r"live 2m · 22:1\d:\d\d", it.screen()))
        there = titles(it)
        assert there.keys() == before.keys()
        assert there["GPU power"] != before["GPU power"]
        assert "PAST" not in it.screen()
        await it.press("home")
        await it.until(lambda: "live 2m · 22:13:2" in it.screen())
        await it.press("escape")
        await it.until(lambda: titles(it) == before)
        assert "[4 Curves]" in it.screen(), "esc took only the crosshair away"


async def test_the_mouse_reads_all_charts_and_a_click_keeps_them(rig: Start) -> None:
    async with shown(curved(rig), 120, 40) as it:
        await it.press("4")
        await started(it)
        before = titles(it)
        await it.pilot.hover("#curves", offset=(12, 8))
        await it.until(lambda: "live 2m · 22:13:34" in it.screen())
        assert titles(it) != before
        column = {line[12] for line in it.screen().splitlines()[6:14]}
        assert "│" in column
        await it.pilot.hover("#tabs")
        await it.until(lambda: titles(it) == before)
        await it.pilot.hover("#curves", offset=(12, 8))
        await asyncio.sleep(9)
        assert titles(it) != before
        await asyncio.sleep(2)
        assert titles(it) == before, "a mouse at rest shows no old values"
        await it.pilot.click("#curves", offset=(12, 8))
        await asyncio.sleep(12)
        await it.pilot.hover("#tabs")
        await it.until(lambda: "live 2m · 22:13:34" in it.screen())
        await it.pilot.click("#curves", offset=(12, 8))
        await it.pilot.hover("#tabs")
        await it.until(lambda: titles(it) == before)


async def test_the_right_column_of_charts_has_the_same_crosshair(rig: Start) -> None:
    async with shown(curved(rig), 120, 40) as it:
        await it.press("4")
        await started(it)
        curves = it.app.screen.query_one("#curves", CurveStrip)
        await it.pilot.hover("#curves", offset=(22, 8))
        left = curves.history.crosshair
        await it.pilot.hover("#curves", offset=(22 + curves._inner + 2, 8))
        assert left is not None
        assert curves.history.crosshair == left


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_the_axis_may_be_one_of_steps(rig: Start, ascii_only: bool) -> None:
    async with shown(curved(rig, ascii_only=ascii_only), 120, 40) as it:
        await it.press("4")
        await started(it)
        assert "22:14:00" in it.screen()
        await it.press("X")
        await it.until(lambda: "step 570" in it.screen())
        assert "22:14:00" not in it.screen()
        for _ in range(9):
            await it.press("left")
        await it.until(lambda: re.search(r"22:1\d:\d\d step \d{3} ", it.screen()))
        for _ in range(30):
            await it.press("right")
        await it.until(lambda: re.search(r"22:15:2\d step 62\d ", it.screen()))
        assert "n/a" not in titles(it).values(), "it stops at the newest value"
        await it.press("X", "escape")
        await it.until(lambda: "22:14:00" in it.screen())


async def test_without_a_step_the_axis_stays_one_of_time(rig: Start) -> None:
    async with shown(rig(play.running(2, gpu=False), ranks=2), 120, 40) as it:
        await it.press("4", "X")
        await it.until(lambda: "no steps to show" in it.screen())


async def test_charts_that_do_not_fit_are_reached(rig: Start) -> None:
    async with shown(curved(rig), 80, 24) as it:
        await it.press("4")
        await started(it)
        assert "charts 1–2 of 10" in it.screen()
        await it.press("j")
        await it.until(lambda: "charts 2–3 of 10" in it.screen())
        assert titles(it).keys() == {"throughput", "loss"}
        await it.press("pagedown", "pagedown", "k")
        await it.until(lambda: "of 10" in it.screen())


async def test_curves_of_nodes_have_the_names_of_the_nodes(rig: Start) -> None:
    it = rig(nodes=several.running(6, 2))
    it.source.link = Curved(it.link.run_dir, it.link.script, it.link.readonly)
    async with shown(it, 120, 40):
        await it.press("4")
        await started(it)
        await it.press("b")
        await it.until(lambda: "A c1  B c2  C c3  D c4  of 6 nodes" in it.screen())


async def test_the_values_of_an_ended_run_are_final(rig: Start) -> None:
    it = curved(rig)
    async with shown(it, 120, 40):
        await started(it)
        assert "FOLLOW" in it.screen()
        it.link.play(RunEnded(RunPhase.SUCCEEDED, 0, "done"), seq=90)
        await it.until(lambda: "SUCCEEDED" in it.screen() and "· END" in it.screen())
        assert "step time" in it.screen()
        assert " ago" not in it.screen()
        await it.press("4")
        await it.until(lambda: "─ whole run ·" in it.screen())
        await it.press("plus")
        await it.until(lambda: "─ last 60 s ·" in it.screen())


async def test_the_slash_finds_a_metric_and_draws_its_chart_first(rig: Start) -> None:
    async with shown(curved(rig), 120, 40) as it:
        await it.press("4")
        await started(it)
        assert titles(it).popitem()[0] != "loss"
        await it.press("slash", *"loss", "enter")
        first = r"╮\n│loss \S+ · p50"
        await it.until(lambda: re.search(first, it.screen()))
        assert it.app.view.pane == "curves"
        await it.press("escape")
        await it.until(lambda: "│step time" in it.screen())
        assert "[4 Curves]" in it.screen(), "esc only returned to the usual order"


async def test_the_slash_says_that_a_pane_has_no_list(rig: Start) -> None:
    async with shown(curved(rig), 120, 40) as it:
        await it.press("5", "slash")
        await it.until(lambda: "This pane has no list to filter" in it.told())
        assert len(it.app.screen_stack) == 2


async def test_ranks_over_time_are_drawn_once(rig: Start) -> None:
    async with shown(curved(rig), 200, 60) as it:
        await it.press("4")
        await started(it)
        await it.press("b")
        await it.until(lambda: it.screen().count("ranks × time") == 1)
        await it.press("1")
        await it.until(lambda: "[1 Overview]" in it.screen())
        await it.until(lambda: "p50" in it.screen())
        assert it.screen().count("ranks × time") == 1
