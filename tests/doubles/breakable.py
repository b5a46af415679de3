"""An owner of background tasks whose parts a test breaks from the inside, by their names."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from distui.runners.run import daemon_run
from distui.runners.run.parts import Parts, Report, in_background


class Fault(Exception):
    """What a broken part raises."""


class BreakableParts(Parts):
    """`fail` has a part raise Fault wherever it is just waiting."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.starts = Counter[str]()
        """How often each part has started."""
        self._broken = defaultdict[str, asyncio.Event](asyncio.Event)

    def start(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        async def fragile() -> None:
            self.starts[name] += 1
            self._broken[name].clear()
            async with in_background(factory()) as work, in_background(self._broken[name].wait()) as broken:
                await asyncio.wait({work, broken}, return_when=asyncio.FIRST_COMPLETED)
                if broken.done():
                    raise Fault(name)
                work.result()

        return super().start(name, fragile)

    async def fail(self, name: str) -> None:
        """Break a part, and wait until it has started again."""
        before = self.starts[name]
        self._broken[name].set()
        while self.starts[name] == before:
            await asyncio.sleep(0.1)


def install(patch: pytest.MonkeyPatch) -> None:
    """Have each agent and hub own its parts by a BreakableParts."""
    patch.setattr(daemon_run, "Parts", BreakableParts)
