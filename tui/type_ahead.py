"""Handles keys that arrive together one after the other, as if the user typed them slowly.

Over a slow link "/error" arrives at once. Textual sends every key to the currently focused widget, but the prompt that
the first key opens gets the focus only some messages later. Without this module the other keys would be lost, or would
run commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from textual.app import App
from textual.events import Event, Key
from textual.screen import Screen
from textual.widget import Widget

from ..runners.run.parts import Parts

READY_S = 1.0
"""Maximum seconds to wait for a key's action and for the focus of a screen that it opened."""
POLL_S = 0.01
"""Poll interval in seconds for the focus of an opened screen: Textual has no event for it."""


class TypeAhead:
    """Delivers the next key after the previous key's action is complete and the opened screen has the focus."""

    def __init__(
        self, app: App[None], parts: Parts, deliver: Callable[[Event], Coroutine[Any, Any, None]]
    ) -> None:
        """Create the queue; `deliver` handles an event in the app's own task, as Textual does."""
        self._app, self._parts, self._deliver = app, parts, deliver
        self._waiting: deque[Key] | None = None
        """Keys that wait for the current one; None if no key is being handled."""

    @property
    def busy(self) -> bool:
        """Whether a key is being handled."""
        return self._waiting is not None

    async def take(self, event: Event) -> None:
        """Deliver an event of the app now, or, if it is a key, after the earlier keys."""
        if not isinstance(event, Key) or event.is_forwarded:
            await self._deliver(event)
        elif self._waiting is not None:
            self._waiting.append(event)
        else:
            self._waiting = deque()
            await self._act(event)

    async def _act(self, key: Key) -> None:
        screen, target = self._app.screen, self._app.focused or self._app.screen
        await self._deliver(key)
        self._parts.once("type-ahead", self._acted(target, screen))

    async def _acted(self, target: Widget, before: Screen[object]) -> None:
        """Wait until the key's action is complete, and until an opened screen has the focus."""
        app = self._app
        try:
            async with asyncio.timeout(READY_S):
                await _bubbled(target)
                await _bubbled(target)  # also a message of the action, such as that of a submitted line
                while app.is_running and app.screen is not before and not self._takes_keys():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass  # deliver the next key anyway
        finally:
            app.call_later(self._go_on)

    def _takes_keys(self) -> bool:
        screen = self._app.screen
        return screen.is_mounted and (self._app.focused is not None or not screen.focus_chain)

    async def _go_on(self) -> None:
        if self._waiting:
            await self._act(self._waiting.popleft())
        else:
            self._waiting = None


async def _bubbled(target: Widget) -> None:
    """Wait until messages sent to `target` have passed it and all its ancestors, up to the app."""
    for pump in target.ancestors_with_self:
        passed = asyncio.Event()
        if pump.call_later(passed.set):
            await passed.wait()
