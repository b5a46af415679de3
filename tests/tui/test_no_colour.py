"""NO_COLOR: no byte sets a colour, and what colours show is still there."""

from __future__ import annotations

import re

import pytest
import scripted as play
from conftest import Start, shown
from each import for_each
from test_painter import differences, papered

from distui.presets.finding import Finding
from distui.runners.run.model import FindingRaised
from distui.tui.colourless import wants_no_colour
from distui.tui.colours import NAMES

pytestmark = pytest.mark.usefixtures("painted")

COLOURED = re.compile(r"\x1b\[[\d;:]*?(?<![\d])(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?![\d])[\d;:]*m")
"""SGR (ECMA-48, 8.3.117) with a colour; 39 and 49 are the terminal's own."""


@for_each(
    ("sequence", "is_coloured"),
    [
        ("\x1b[31m", True),
        ("\x1b[1;38;2;9;9;9m", True),
        ("\x1b[0;107m", True),
        ("\x1b[48;5;3m", True),
        ("\x1b[m", False),
        ("\x1b[0;1;2;4;7m", False),
        ("\x1b[39;49m", False),
        ("\x1b[31C", False),
        ("\x1b[31X text m", False),
    ],
)
def test_colours_are_recognised(sequence: str, is_coloured: bool) -> None:
    assert bool(COLOURED.search(sequence)) == is_coloured


@pytest.mark.parametrize("theme", NAMES)
async def test_no_colour_is_sent(rig: Start, monkeypatch: pytest.MonkeyPatch, theme: str) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    warned = (
        125,
        FindingRaised(Finding("slow", "warning", "rank 4 waits least", rank=4, remedy="look at GPU 4")),
    )
    async with shown(rig([*play.running(), warned]), 120, 40) as it:
        await it.until(lambda: "step 29" in it.screen())
        it.app.theme = theme
        async with papered(it) as paper:
            for key in (
                "1",
                "2",
                "3",
                "4",
                "5",
                "6",
                "7",
                "question_mark",
                "escape",
                "slash",
                "x",
                "escape",
                "d",
            ):
                await it.press(key)
                await paper.settled()
                assert differences(it, paper) == [], key
            assert COLOURED.findall(paper.sent) == []
            assert {"1", "2", "7"} <= set(re.findall(r"(?<=[\[;])\d+(?=[;m])", paper.sent)), (
                "bold, dim, reverse"
            )


async def test_an_empty_variable_is_none(rig: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert not wants_no_colour()
    async with shown(rig(play.running()), 80, 24) as it:
        await it.until(lambda: "step 29" in it.screen())
        async with papered(it) as paper:
            await it.press("2")
            await paper.settled()
            assert COLOURED.search(paper.sent)
