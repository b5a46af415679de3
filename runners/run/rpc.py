"""Open requests of one connection, by number, until their answers arrive or the connection ends.

Each connection writes its requests and reads its lines itself. For use from one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, Generic, Self, TypeVar

Answer = TypeVar("Answer")
Number = int | str


def message(line: str | bytes) -> dict[str, Any]:
    """Decode a JSON line that is a message: an object with a number, a string or nothing as "id". Raises ValueError."""
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(found, dict) or not isinstance(found.get("id"), Number | None):
        raise ValueError("no message")
    return found


class OpenRequest(Generic[Answer]):
    """One request, held by its caller. Its context manager forgets it on exit: answered, cancelled or timed out."""

    def __init__(self, number: Number, requests: OpenRequests[Answer]) -> None:
        self.number, self._requests = number, requests
        self.done = False
        """Whether its last message has come, or no more will come."""
        # A queue instead of a future: parts may come faster than the caller reads, and asyncio must not warn about an
        # error that no caller collects.
        self._messages: asyncio.Queue[Answer | Exception] = asyncio.Queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.forget(self)

    def put(self, message: Answer | Exception, done: bool) -> None:
        """Queue a message for the caller; an exception is raised in `next`."""
        self.done = done
        self._messages.put_nowait(message)

    async def next(self, seconds: float | None = None) -> Answer:
        """Return the answer, or its next part. Raises TimeoutError, and the request's error."""
        async with asyncio.timeout(seconds):
            message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        return message


class OpenRequests(Generic[Answer]):
    """Table of open requests."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[Number, OpenRequest[Answer]] = {}

    def open(self, number: Number | None = None) -> OpenRequest[Answer]:
        """Open a request with the caller's number or the next free one."""
        request = OpenRequest(next(self._numbers) if number is None else number, self)
        self._open[request.number] = request
        return request

    def forget(self, request: OpenRequest[Answer]) -> None:
        """Close a request that no caller waits for; later messages for it are dropped."""
        if self._open.get(request.number) is request:  # the caller may have reopened its number
            del self._open[request.number]

    def answer(self, number: Number | None, message: Answer) -> None:
        """Deliver the whole answer, or its last part. Drop it for an unknown number: it came too late."""
        if number is not None and (request := self._open.pop(number, None)) is not None:
            request.put(message, done=True)

    def part(self, number: Number | None, message: Answer) -> None:
        """Deliver a part of an answer; more parts will follow, or the caller recognizes the last one."""
        if number is not None and (request := self._open.get(number)) is not None:
            request.put(message, done=False)

    def fail(self, error: Exception) -> None:
        """End all requests with an error, after the messages that came before: the connection has ended."""
        for request in self._open.values():
            request.put(error, done=True)
        self._open.clear()
