"""What the cockpit does in the background may fail: a line on the screen names it, and the cockpit goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import scripted as play
from conftest import Start, shown

from distui import tui
from distui.runners.parts import Parts
from distui.tui import background
from distui.tui.background import BackgroundApp

LOOPS = {"follow", "log"}
"""Parts that start again."""
ONCE = {"places": (), "send": ("r", "y"), "travel": ("[",)}
"""Others, each with the keys that begin it."""


class Fault(Exception):
    """What a broken part raises."""


class BreakingParts(Parts):
    """Each part of `broken` fails the first time."""

    broken: set[str]

    async def guard(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        await super().guard(name, self._once_broken(name, work))

    async def keep_running(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await super().keep_running(name, lambda: self._once_broken(name, factory()))

    async def _once_broken(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        if name in self.broken:
            self.broken.remove(name)
            work.close()
            raise Fault(name)
        await work


@pytest.mark.parametrize("name", [*sorted(LOOPS), *ONCE])
async def test_a_part_that_fails_is_named_on_the_screen_and_the_cockpit_goes_on(
    rig: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(BreakingParts, "broken", {name}, raising=False)
    monkeypatch.setattr(background, "Parts", BreakingParts)
    async with shown(rig(play.running())) as it:
        await it.press(*ONCE.get(name, ()))
        follows = "it starts again in 1 s" if name in LOOPS else "it is not tried again"
        sentence = f"internal error in {name} ({follows}): Fault: {name}"
        await it.until(lambda: any(said.startswith(sentence) for said in it.app.said))
        await it.until(lambda: "step 29" in it.screen())
        await it.press("7", "1")
        assert it.app.is_running
    assert isinstance(it.app, BackgroundApp)
    it.app.print_tracebacks()
    assert f"Fault: {name}\n" in capsys.readouterr().err


def test_everything_in_the_background_has_this_owner() -> None:
    tasks = re.compile(r"\.run_worker\(|create_task\(|ensure_future\(")
    folder = Path(tui.__path__[0])
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if path.parts[-2] not in ("verbs", "mcp") and tasks.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"background.py"}
