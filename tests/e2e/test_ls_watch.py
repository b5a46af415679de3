"""`ls --watch`: a list in its place on a terminal, a list below the other elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyte
import pytest

from distui.runners.run.model import Outcome
from distui.tui.verbs import listing

from .runs import Text, World
from .written import Attempt, events_of, record, write

EVERY_S = 0.3


class Terminal(Text):
    """A terminal in memory, read back through a terminal emulator."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(terminal=True)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> int:
        self._stream.feed(text)
        return super().write(text)

    @property
    def shown(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens in the pauses between two lists. In the pause after these comes Ctrl-C."""
    calls: list[Callable[[], object]] = []

    def pause(seconds: float) -> None:
        assert seconds == EVERY_S
        if not calls:
            raise KeyboardInterrupt
        calls.pop(0)()

    monkeypatch.setattr(listing, "pause", pause)
    return calls


def test_a_run_appears_and_ends_in_its_place(world: World, pauses: list[Callable[[], object]]) -> None:
    screen = Terminal(110, 14)

    def begin() -> None:
        assert "no runs yet" in screen.shown
        write(world, "exec", "--name", "short", "--", "true", attempts=[Attempt(None)])

    def tag() -> None:
        assert "lost" in screen.shown
        world.distui("tag", "short", "+seen").fine()

    def stop() -> None:
        assert "seen" in screen.shown
        run = world.newest_run()
        record(run, events_of(run, [Attempt(Outcome.STOPPED)])[-3:])

    def look() -> None:
        assert "stopped" in screen.shown
        assert screen.shown.count("short") <= 2, "a name and an id, a line once"

    pauses += [begin, tag, stop, look]
    words = ("ls", "--watch", "--every", f"{EVERY_S}", "--sort", "name")
    done = world.distui(*words, out=screen, terminal=True, env={"COLUMNS": "110", "LINES": "14"})
    assert (done.code, done.err, pauses) == (130, "", [])


def test_a_pipe_gets_a_list_per_line(world: World, pauses: list[Callable[[], object]]) -> None:
    run = write(world, "exec", "--name", "done", "--", "true")
    pauses += [lambda: None] * 2
    done = world.distui("ls", "--watch", "--every", f"{EVERY_S}", "--json", "name:done")
    assert (done.code, done.err) == (130, "")
    lists = [json.loads(line) for line in done.out.splitlines()]
    assert [[each["run"] for each in one] for one in lists] == [[run.id]] * 3


def test_a_filter_that_nothing_fits_is_a_sentence(world: World) -> None:
    write(world, "exec", "--name", "done", "--", "true")
    assert world.distui("ls", "state:failed").fine().out == "no run of 1 fits the filter\n"
