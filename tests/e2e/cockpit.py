"""The cockpit that a verb opens, in the test process: Textual's pilot presses its keys and reads its screen."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

import pytest
from patience import HANG_S
from textual._context import visible_screen_stack
from textual.pilot import Pilot

from distui.tui import orientation
from distui.tui.app import CockpitApp

from .runs import Done, World


class Cockpit:
    """An open cockpit."""

    def __init__(self, app: CockpitApp, pilot: Pilot[None]) -> None:
        self._app, self._pilot = app, pilot

    @property
    def text(self) -> str:
        """What the screen shows, a line per row."""
        visible_screen_stack.set(self._app._background_screens)
        strips = self._app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    async def until(self, wanted: str | Callable[[str], object]) -> str:
        """Wait until the screen shows `wanted`, a text or what a function accepts. Return the screen then."""
        end = time.monotonic() + HANG_S
        while not (wanted in self.text if isinstance(wanted, str) else wanted(self.text)):
            assert time.monotonic() < end, f"no {wanted!r}:\n{self.text}"
            assert self._app.is_running, "the cockpit has ended"
            await asyncio.sleep(0.05)
        return self.text

    async def press(self, *keys: str) -> None:
        """Press keys by Textual's names, such as `shift+tab`."""
        await self._pilot.press(*keys)

    async def leave(self) -> None:
        """Press q and wait for the end."""
        await self.press("q")
        end = time.monotonic() + HANG_S
        while self._app.is_running:
            assert time.monotonic() < end, self.text
            await asyncio.sleep(0.05)


def in_cockpit(
    world: World, *words: str, use: Callable[[Cockpit], Awaitable[None]], width: int = 120, height: int = 40
) -> Done:
    """Run `distui WORDS…` on a terminal of this size. `use` works in the cockpit; q leaves it afterwards."""

    async def used(app: CockpitApp) -> None:
        async with app.run_test(size=(width, height)) as pilot:
            cockpit = Cockpit(app, pilot)
            await use(cockpit)
            await cockpit.leave()

    async def type_ahead(*_: float) -> None:
        """In place of Textual's wait until the process uses no CPU time: `until` waits for the screen."""
        await asyncio.sleep(0)

    threshold = gc.get_threshold()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CockpitApp, "run", lambda app: asyncio.run(used(app)))
            patch.setattr("textual.app.wait_for_idle", type_ahead)
            patch.setattr("textual.pilot.wait_for_idle", type_ahead)
            env = {"TERM": "xterm-256color", orientation.VARIABLE: "off"}  # it takes the first key
            return world.distui(*words, env=env, terminal=True)
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
