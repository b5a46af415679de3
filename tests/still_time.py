"""An event loop whose time goes on only while nothing is to be done, and then at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Loop(asyncio.SelectorEventLoop):
    """What is measured by it is the same on every machine. Nothing outside of this thread may be waited for in it."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__()
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def at_once(timeout: float | None = None) -> Any:
            came = select(0)
            if not came:
                self._now += timeout or 0.0
            return came

        selector.select = at_once

    def time(self) -> float:
        return self._now


def played(of: Coroutine[Any, Any, None]) -> None:
    """A test on such a loop."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(of)
