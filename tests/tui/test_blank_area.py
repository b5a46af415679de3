"""A large screen is used: little of it is blank in a run of eight GPUs.

A cell is blank if it is in a rectangle of at least ROWS × COLUMNS spaces. Frames of panes are content.
"""

from __future__ import annotations

from collections.abc import Sequence

import scripted as play
from conftest import Start
from each import for_each
from looks import LARGE, settled
from test_looks_curves import curved

from distui.tui.rows.layouts import LAYOUTS, TRAIN

ROWS, COLUMNS = 3, 12
GOAL = 0.15
"""Share of blank cells of the overview that nobody has changed."""
OTHERS = {"cluster": 0.17, "log": 0.19, "profile": 0.19}


def blank_cells(lines: Sequence[str], width: int) -> int:
    """Count the cells in blank rectangles."""
    spaces = [[letter == " " for letter in line.ljust(width)] for line in lines]
    blank: set[tuple[int, int]] = set()
    for top in range(len(lines) - ROWS + 1):
        begin = 0
        for x in range(width + 1):
            if x < width and all(spaces[top + row][x] for row in range(ROWS)):
                continue
            if x - begin >= COLUMNS:
                blank.update((top + row, column) for row in range(ROWS) for column in range(begin, x))
            begin = x + 1
    return len(blank)


@for_each(
    ("lines", "cells"),
    [
        (["x" * 20] * 3, 0),
        (["x" * 8 + " " * 12] * 3, 36),
        (["x" * 9 + " " * 11] * 5, 0),
        (["x" * 8 + " " * 12] * 2, 0),
        (["", "", "", "", "x" * 20], 80),
        (["", " " * 10 + "x", "", ""], 0),
        (["", " " * 12 + "x", "", ""], 48),
    ],
)
def test_what_counts_as_blank(lines: list[str], cells: int) -> None:
    assert blank_cells(lines, 20) == cells


async def test_a_large_screen_of_eight_gpus_is_used(rig: Start) -> None:
    width, height = LARGE
    async with settled(curved(rig, lines=200), LARGE) as it:
        for layout in LAYOUTS:
            share = blank_cells(it.screen().split("\n"), width) / (width * height)
            assert it.app.view.layout == layout
            assert share < (GOAL if layout == TRAIN else OTHERS[layout]), f"{layout}: {share:.1%} is blank"
            await it.press("Z")
            it.app.clear_messages()


async def test_the_log_of_an_ended_run_gets_the_columns_that_its_lines_need(rig: Start) -> None:
    async with settled(rig(play.failed()), LARGE) as it:
        assert "NCCL INFO Init COMPLETE" in it.screen()
