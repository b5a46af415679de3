"""What the cockpit does in the background may fail: a line on the screen names it, and the cockpit goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import scripted as play
from conftest import Start, shown

from distui import tui
from distui.runners.run.parts import AGAIN, ONCE, Parts
from distui.tui import background
from distui.tui.screens import panes

SOON = "it starts again in 1 s"
RUN_SCREEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "follow": (SOON, ()),
    "log": (SOON, ()),
    "places": (ONCE, ()),
    "send": (ONCE, ("r", "y")),
    "travel": (ONCE, ("[",)),
    "settings": (ONCE, ("t",)),
    "error": (ONCE, ("3", "e")),
    "stacks": (ONCE, ("w",)),
    "tick": (AGAIN, ()),
    "status": (AGAIN, ()),
    "curves": (AGAIN, ()),
    "ranks": (AGAIN, ()),
    "RunScreen": (AGAIN, ()),
}
"""Parts of the screen of a run: what follows a fault, and the keys that begin it."""
BESIDE: dict[str, tuple[str, tuple[str, ...]]] = {
    "filter": (ONCE, ("3", "slash", "x")),
    "filter-state": (SOON, ("3", "slash")),
    "comparison": (SOON, ("colon", *"compare", "space", "x", "enter")),
    "runs": (SOON, ("R",)),
    "hosts": (SOON, ("R",)),
    "plan": (ONCE, ("ctrl+n",)),
}
"""The same of what is over that screen, or beside it."""


class Fault(Exception):
    """What a broken part raises."""


class BreakingParts(Parts):
    """Each part of `broken` fails the first time."""

    broken: set[str]
    ran: set[str]
    """Parts that began and were not broken, or no longer."""

    async def guard(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        await super().guard(name, self._once_broken(name, work))

    async def keep_running(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await super().keep_running(name, lambda: self._once_broken(name, factory()))

    def call(self, name: str, function: Callable[..., object], *arguments: object) -> None:
        super().call(name, self._break, name)
        super().call(name, function, *arguments)

    async def _once_broken(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._break(name)
        except Fault:
            work.close()
            raise
        await work

    def _break(self, name: str) -> None:
        if name in self.broken:
            self.broken.remove(name)
            raise Fault(name)
        self.ran.add(name)


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> type[BreakingParts]:
    monkeypatch.setattr(BreakingParts, "broken", set(), raising=False)
    monkeypatch.setattr(BreakingParts, "ran", set(), raising=False)
    monkeypatch.setattr(background, "Parts", BreakingParts)
    return BreakingParts


@pytest.mark.parametrize("name", [*RUN_SCREEN, *BESIDE])
async def test_a_part_that_fails_is_named_on_the_screen_and_the_cockpit_goes_on(
    rig: Start,
    breaking: type[BreakingParts],
    capsys: pytest.CaptureFixture[str],
    said: list[str],
    name: str,
) -> None:
    breaking.broken.add(name)
    follows, keys = (RUN_SCREEN | BESIDE)[name]
    it = rig(play.running())
    async with shown(it, faults=True):
        await it.press(*keys)
        sentence = f"Internal error in {name} ({follows}): Fault: {name} (part-failed:{name}); "
        await it.until(lambda: any(text.startswith(sentence) for text in said))
        if follows != ONCE:
            await it.until(lambda: name in breaking.ran)
        if name in RUN_SCREEN:
            await it.until(lambda: "step 29" in it.screen())
            await it.press("7", "1")
        assert it.app.is_running
    it.app.work.print_tracebacks()
    assert f"Fault: {name}\n" in capsys.readouterr().err


async def test_the_tick_goes_on_by_itself_after_a_fault(
    rig: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a test that calls it."""
    it = rig(play.running())
    async with shown(it, faults=True) as it:
        calls: list[float] = []

        def ring(*_: object) -> None:
            calls.append(asyncio.get_running_loop().time())
            if len(calls) == 1:
                raise Fault("HF_TOKEN=x1y2z3")

        monkeypatch.setattr(it.app.alerts, "ring", ring)
        await asyncio.sleep(5)
        assert len(calls) > 2
        assert "Fault: HF_TOKEN=*** (part-failed:tick)" in it.told()
        assert "x1y2z3" not in "".join(it.app.work.tracebacks)


async def test_a_pane_that_fails_takes_no_other_with_it_and_is_named_once(
    rig: Start, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """Also where it fails in each frame, and as the terminal gets another size."""

    def broken(*_: object) -> None:
        raise Fault("no rows")

    monkeypatch.setattr(panes, "header_rows", broken)
    async with shown(rig(play.running()), faults=True) as it:
        await it.until(lambda: "step 29" in it.screen())
        for seconds in range(20):
            it.now += 1
            it.app.tick()
            await it.pilot.resize_terminal(80 + seconds, 24)
        assert [text for text in said if "no rows" in text] == [it.told()]
        assert len(it.app.work.tracebacks) < 4
        await asyncio.sleep(background.SHOWN_S)
        it.now += 1
        it.app.tick()
        assert it.told().count("no rows") == 2, (
            "the line has gone from the screen, and the fault is still there"
        )


async def test_a_callback_of_the_loop_that_fails_is_named(rig: Start) -> None:
    def broken() -> None:
        raise Fault("callback")

    async with shown(rig(play.running()), faults=True) as it:
        asyncio.get_running_loop().call_later(0.1, broken)
        await it.until(lambda: "Internal error in event-loop (Exception in callback " in it.told())
        assert "Fault: callback (part-failed:event-loop)" in it.told()


def test_everything_in_the_background_has_this_owner() -> None:
    tasks = re.compile(
        r"\.run_worker\(|create_task\(|ensure_future\(|set_timer\(|set_interval\(|Thread\(|PoolExecutor\(|= Signal\("
    )
    folder = Path(tui.__path__[0])
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if path.parts[-2] not in ("verbs", "mcp", "browser")
        and tasks.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"background.py"}
