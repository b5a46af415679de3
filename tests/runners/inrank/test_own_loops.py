"""In which loop a frame is, and whether it has an end: scripts that are run up to a call, and asked there."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from distui.runners.inrank.own_loops import LoopLine, endless_loop, state_of

NUMBERS = range(3)


class _AskedError(Exception):
    pass


def run(script: str, folder: Path) -> tuple[LoopLine | None, str | None]:
    """Run a script until it calls ask(), and return what is known of the loop there."""
    file = folder / "job.py"
    file.write_text(textwrap.dedent(script))
    answers: list[tuple[LoopLine | None, str | None]] = []

    def ask() -> None:
        frame = sys._getframe(1)
        loop = endless_loop(frame)
        answers.append((loop, None if loop is None else state_of(frame, loop)))
        raise _AskedError

    with pytest.raises(_AskedError):
        exec(compile(file.read_text(), str(file), "exec"), {"ask": ask})
    return answers[0]


ENDLESS = {
    "while True:\n    ask()": (1, ""),
    "done = False\nwhile not done:\n    ask()": (2, "False"),
    "def check():\n    ask()\ndef hold(left):\n    while left:\n        check()\nhold([1, 2])": (
        4,
        "2 items",
    ),
    "class Job:\n    ready = 0\njob = Job()\njob.ready = 3\nwhile job.ready < 9:\n    ask()": (5, "3 Job"),
    "import itertools\nfor number in itertools.count():\n    ask()": (2, ""),
    "while not any(value for value in (0, ask())):\n    pass": (1, "function"),
    "for step in range(3):\n    while True:\n        ask()": (2, ""),
}


@pytest.mark.parametrize(("script", "expected"), ENDLESS.items(), ids=range(len(ENDLESS)))
def test_a_loop_without_an_end_is_found_with_what_its_condition_reads(
    script: str, expected: tuple[int, str], tmp_path: Path
) -> None:
    line, state = expected
    assert run(script, tmp_path) == (LoopLine(str(tmp_path / "job.py"), line), state)


@pytest.mark.parametrize(
    "script",
    [
        "ask()",
        "for step in range(3):\n    ask()",
        "while True:\n    for step in range(3):\n        ask()",
        "while True:\n    values = [ask() for _ in range(3)]",
        "def work():\n    for part in (1, 2):\n        ask()\nwhile True:\n    work()",
    ],
)
def test_a_loop_that_ends_is_none(script: str, tmp_path: Path) -> None:
    assert run(script, tmp_path) == (None, None)


def test_a_frame_in_another_loop_has_no_state(tmp_path: Path) -> None:
    assert state_of(sys._getframe(), LoopLine(str(tmp_path / "job.py"), 1)) is None
