"""An event loop whose clock jumps to the next timer as soon as nothing else is ready.

The tests of `make test` run on it: a wait of an hour takes no time, and a busy machine changes nothing.
asyncio.sleep, call_later and asyncio.timeout follow the loop; distui's own parts do by distui.runners.run.clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

BEGIN = 1_000.0
"""Seconds on the loop's clock when it is made."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while a callback is ready or a thread of the executor works, and jumps otherwise.

    Other threads and processes are not waited for: a test that needs them is marked `real`.
    """

    def __init__(self) -> None:
        self._now = BEGIN
        self._epoch = time.time() - BEGIN
        self._threads_at_work = 0
        super().__init__()
        selector: Any = self._selector  # type: ignore[attr-defined]
        self._really_select = selector.select
        selector.select = self._select

    def time(self) -> float:
        return self._now

    def wall_time(self) -> float:
        """Unix seconds; those of the system when the loop was made, as files have times, too."""
        return self._epoch + self._now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        future = super().run_in_executor(executor, func, *args)
        self._threads_at_work += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, future: Any) -> None:
        self._threads_at_work -= 1

    def _select(self, timeout: float | None = None) -> Any:
        ready = self._really_select(0)
        if ready or timeout == 0:
            return ready
        if self._threads_at_work or timeout is None:
            return self._really_select(None)
        self._now += timeout
        return ready


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a loop of its own with virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(coroutine)
