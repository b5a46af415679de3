"""The background tasks of a process: each has an owner, which reports what it raises and starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ..presets.finding import Finding
from ..presets.secrets import mask_text
from . import clock

BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Pauses before a part starts again, by failures in a row; after one more failure it is given up."""
STEADY_S = 600.0
"""A part that has run for so long begins its back-off anew."""
FAILED = "part-failed"
"""How the id of the finding begins; the name of the part follows."""
ONCE, AGAIN = "it is not tried again", "it is tried again"

T = TypeVar("T")
Report = Callable[[str, BaseException, str], None]
"""Reports a failure: the name of the part, what it raised, and what follows ("it starts again in 5 s")."""


def failure(name: str, error: BaseException, follows: str, node: int | None, remedy: str) -> Finding:
    """The finding about a part that raised. Of an exception group it has the first exception."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = mask_text(f"internal error in {name} ({follows}): {type(error).__name__}: {error}")
    return Finding(f"{FAILED}:{name}", "warning", text, node=node, remedy=remedy)


def printed(error: BaseException) -> str:
    """Its traceback, without secrets."""
    return mask_text("".join(traceback.format_exception(error)))


class Parts:
    """Owns the background tasks of one process: agent, hub, or viewer."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def start(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run a part until it returns; one that raises is started again after a pause, and given up in the end."""
        return self.once(name, self.keep_running(name, factory))

    def once(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine that is not started again; who awaits the task gets its exception, too."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._ended)
        return task

    async def wait(self, name: str, seconds: float) -> None:
        """Wait until no part of that name runs any more, at most `seconds`."""
        tasks = [task for task, its_name in self._tasks.items() if its_name == name]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def stop(self, *parts: str | asyncio.Task[Any]) -> None:
        """Cancel these parts, by name or by task, and wait for their ends."""
        await _cancelled([task for task, name in self._tasks.items() if task in parts or name in parts])

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report exceptions of the loop's callbacks: timers, readers of files, connections."""
        loop.set_exception_handler(self._callback_failed)

    async def guard(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in this task; what it raises is reported, and not raised."""
        error = await _outcome(work)
        if error is not None:
            self._report(name, error, ONCE)

    def call(self, name: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a function that has its turn again and again; what it raises is reported, and not raised."""
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
                self._report(name, error, f"it is given up after {failures} failures in a row")
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
        if error is not None and not isinstance(error, OSError):  # a connection may break
            self._report("event-loop", error, str(context["message"]))


async def _outcome(work: Coroutine[Any, Any, Any]) -> BaseException | None:
    """What it raised; None if it returned. Raises CancelledError if this task itself is cancelled."""
    try:
        await work
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return error  # it awaited something that was cancelled
    except Exception as error:  # noqa: BLE001  # the border of a part: whatever it raises is reported
        return error
    return None


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run these until the first of them has ended, and cancel the others. Raises what the first has raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancelled(tasks)


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run a coroutine next to the body, which asks for its result. It is cancelled at the end.

    The loop reports an exception that the body does not ask for, unless the body itself raises.
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
    """Cancel tasks and wait for their ends. The loop reports an exception that nobody asks for."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
