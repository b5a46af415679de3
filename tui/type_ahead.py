"""Keys that arrive together act one after the other, as if they had been typed slowly.

Over a slow link "/error" arrives at once. Textual hands every key to the widget that has the focus at that moment, and
the prompt that the first key opens has it only some messages later: the others would be lost, or would be commands.
"""

from __future__ import annotations

import asyncio
from collections import deque

from textual.events import Event, Key
from textual.screen import Screen
from textual.widget import Widget

from .background import BackgroundApp

READY_S = 1.0
"""Longest wait for a key to act, and for what it opened to take keys: then the next one acts all the same."""
POLL_S = 0.01
"""Between two looks whether a screen that was opened has the focus: Textual has no event for that."""


class TypeAheadApp(BackgroundApp):
    """Hands out the next key when the one before it has acted and what that opened has the focus."""

    _waiting: deque[Key] | None = None
    """Keys behind the one that is acting; None while none is."""

    async def on_event(self, event: Event) -> None:
        if not isinstance(event, Key) or event.is_forwarded:
            await super().on_event(event)
        elif self._waiting is not None:
            self._waiting.append(event)
        else:
            self._waiting = deque()
            await self._act(event)

    async def _act(self, key: Key) -> None:
        """Hand out a key; in the app's own task, as Textual does it."""
        screen, target = self.screen, self.focused or self.screen
        await super().on_event(key)
        self.parts.once("type-ahead", self._acted(target, screen))

    async def _acted(self, target: Widget, before: Screen[object]) -> None:
        """Wait until the key has acted, and until a screen that it opened takes keys."""
        try:
            async with asyncio.timeout(READY_S):
                await _bubbled(target)
                await _bubbled(target)  # a message that the key made, as that of a submitted line
                while self.is_running and self.screen is not before and not self._takes_keys():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass  # the next key acts all the same
        finally:
            self.call_later(self._go_on)

    def _takes_keys(self) -> bool:
        return self.screen.is_mounted and (self.focused is not None or not self.screen.focus_chain)

    async def _go_on(self) -> None:
        if self._waiting:
            await self._act(self._waiting.popleft())
        else:
            self._waiting = None


async def _bubbled(target: Widget) -> None:
    """Wait until what `target` was sent has passed it and all that it is in, up to the app."""
    for pump in target.ancestors_with_self:
        passed = asyncio.Event()
        if pump.call_later(passed.set):
            await passed.wait()
