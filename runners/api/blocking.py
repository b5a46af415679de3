"""Blocking forms of asynchronous calls: each runs its call in a new event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..run.errors import RunError
from .async_run import AsyncRun, RunFacts

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


def blocking(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the blocking form of a function of `aio`."""

    @functools.wraps(call)
    def form(*args: P.args, **kwargs: P.kwargs) -> T:
        _refuse_in_a_loop(f"api.{call.__name__}", f"await api.aio.{call.__name__}(…)")
        return asyncio.run(call(*args, **kwargs))

    return _described(form, call)


def blocking_method(
    call: Callable[Concatenate[AsyncRun, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RunFacts, P], T]:
    """Return the blocking form of a method of AsyncRun."""

    @functools.wraps(call)
    def form(self: RunFacts, /, *args: P.args, **kwargs: P.kwargs) -> T:
        _refuse_in_a_loop(f"run.{call.__name__}", f"await run.aio.{call.__name__}(…)")
        return asyncio.run(call(AsyncRun(self.entry), *args, **kwargs))

    return _described(form, call)


def blocking_stream(
    call: Callable[Concatenate[AsyncRun, P], AsyncGenerator[T]],
) -> Callable[Concatenate[RunFacts, P], Generator[T]]:
    """Return the blocking form of a method of AsyncRun that returns a generator."""

    @functools.wraps(call)
    def form(self: RunFacts, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        _refuse_in_a_loop(f"run.{call.__name__}", f"async for … in run.aio.{call.__name__}(…)")
        return _iterated(call(AsyncRun(self.entry), *args, **kwargs))

    return _described(form, call)


F = TypeVar("F", bound=Callable[..., Any])


def _described(form: F, call: Callable[..., Any]) -> F:
    """Return the form with the signature of its call: it returns a Run for AsyncRun, a Generator for AsyncGenerator."""
    signature = inspect.signature(call)
    returned = str(signature.return_annotation).replace("Async", "")
    form.__dict__["__signature__"] = signature.replace(return_annotation=returned)
    return form


def _refuse_in_a_loop(name: str, instead: str) -> None:
    """Raise RunError in a running event loop, which a blocking call would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunError(f"{name} blocks, and an event loop is running here, as in a notebook: write `{instead}`")


def _iterated(stream: AsyncGenerator[T]) -> Generator[T]:
    """Yield the items of an asynchronous generator. Its event loop runs only while an item is waited for."""
    with asyncio.Runner() as runner:
        try:
            while (item := runner.run(_next(stream))) is not _END:
                yield item
        finally:
            runner.run(_close(stream))


async def _next(stream: AsyncGenerator[T]) -> Any:
    return await anext(stream, _END)


async def _close(stream: AsyncGenerator[Any]) -> None:
    await stream.aclose()
