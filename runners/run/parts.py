"""Background tasks of a process: each has an owner that reports its exceptions and restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ...presets.finding import Finding
from ...presets.secrets import mask_text
from . import clock

BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds before a part restarts, by consecutive failures; one more failure ends it."""
STEADY_S = 600.0
"""Uptime in seconds that resets a part's back-off."""
FAILED = "part-failed"
"""Prefix of the finding's id; the name of the part follows."""
ONCE, AGAIN = "it is not tried again", "it is tried again"

T = TypeVar("T")
Report = Callable[[str, BaseException, str], None]
"""Report a failure: name of the part, exception, and consequence ("it starts again in 5 s")."""


def failure(name: str, error: BaseException, follows: str, node: int | None, remedy: str) -> Finding:
    """Return a finding about a part that raised; its text quotes the first exception of an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = mask_text(f"internal error in {name} ({follows}): {type(error).__name__}: {error}")
    return Finding(f"{FAILED}:{name}", "warning", text, node=node, remedy=remedy)


def printed(error: BaseException) -> str:
    """Format an exception's traceback, without secrets."""
    return mask_text("".join(traceback.format_exception(error)))


class Parts:
    """Owns the background tasks of one process: agent, hub, or viewer."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def start(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run a part until it returns; after an exception restart it with a pause, up to a number of failures."""
        return self.once(name, self.keep_running(name, factory))

    def once(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine without restarts; code that awaits the task gets its exception, too."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._ended)
        return task

    async def wait(self, name: str, seconds: float) -> None:
        """Wait until no part of that name runs, at most `seconds`."""
        tasks = [task for task, its_name in self._tasks.items() if its_name == name]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def stop(self, *parts: str | asyncio.Task[Any]) -> None:
        """Cancel these parts, by name or task, and wait until they end."""
        await _cancelled([task for task, name in self._tasks.items() if task in parts or name in parts])

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report exceptions of the loop's callbacks: timers, file readers, connections."""
        loop.set_exception_handler(self._callback_failed)

    async def guard(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in this task, and report its exception instead of raising it."""
        error = await _outcome(work)
        if error is not None:
            self._report(name, error, ONCE)

    def call(self, name: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a repeated function, and report its exception instead of raising it."""
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001  # the border of a part: whatever it raises is reported
            self._report(name, error, AGAIN)

    async def keep_running(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part in this task; see `start`."""
        failures = 0
        while True:
            began = clock.monotonic()
            error = await _outcome(factory())
            if error is None:
                return
            if _is_being_cancelled():
                self._report(name, error, ONCE)
                raise asyncio.CancelledError
            failures = 1 if clock.monotonic() - began >= STEADY_S else failures + 1
            if failures > len(BACKOFF_S):
                self._report(name, error, f"it is given up after {failures} consecutive failures")
                return
            pause = BACKOFF_S[failures - 1]
            self._report(name, error, f"it starts again in {pause:g} s")
            await asyncio.sleep(pause)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        name = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._report(name, error, ONCE)

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):  # a broken connection is normal
            self._report("event-loop", error, str(context["message"]))


async def _outcome(work: Coroutine[Any, Any, Any]) -> BaseException | None:
    """Return the exception of `work`, or None. Raises CancelledError if this task itself is cancelled."""
    try:
        await work
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return error  # an awaited task was cancelled
    except Exception as error:  # noqa: BLE001  # the border of a part: whatever it raises is reported
        return error
    return None


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines until the first ends, and cancel the others. Raises the first one's exception."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancelled(tasks)


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run a coroutine parallel to the body, which reads its result. It is cancelled at the end of the body.

    The loop reports an exception that the body does not read, unless the body itself raises.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    except BaseException:
        await _cancelled([task])
        if not task.cancelled():
            task.exception()
        raise
    finally:
        await _cancelled([task])


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they end. The loop reports exceptions that no code reads."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
