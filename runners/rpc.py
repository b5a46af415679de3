"""The requests of one connection that wait for their answers: by number, until answered or the connection ends.

How a request is written and a line is read stays with each connection. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, Generic, Self, TypeVar

Answer = TypeVar("Answer")
Number = int | str


def message(line: str | bytes) -> dict[str, Any]:
    """A line of JSON that is a message: an object, whose "id" is a number or a word. Raises ValueError."""
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(found, dict) or not isinstance(found.get("id"), Number | None):
        raise ValueError("no message")
    return found


class OpenRequest(Generic[Answer]):
    """One request, as its caller holds it. Left as a context, it is forgotten: answered, cancelled or too late."""

    def __init__(self, number: Number, requests: OpenRequests[Answer]) -> None:
        self.number, self._requests = number, requests
        self.done = False
        """Whether its last message has come, or none comes any more."""
        # A queue and no future: parts that come faster than the caller reads must not get lost, and an error that
        # nobody collects is no warning of asyncio's.
        self._messages: asyncio.Queue[Answer | Exception] = asyncio.Queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.forget(self)

    def put(self, message: Answer | Exception, done: bool) -> None:
        """What came of it; an exception is raised where the caller waits."""
        self.done = done
        self._messages.put_nowait(message)

    async def next(self, seconds: float | None = None) -> Answer:
        """The answer, or its next part. Raises TimeoutError, and what the request has failed with."""
        async with asyncio.timeout(seconds):
            message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        return message


class OpenRequests(Generic[Answer]):
    """The table of them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[Number, OpenRequest[Answer]] = {}

    def open(self, number: Number | None = None) -> OpenRequest[Answer]:
        """A new request, under the caller's own number or the next one."""
        request = OpenRequest(next(self._numbers) if number is None else number, self)
        self._open[request.number] = request
        return request

    def forget(self, request: OpenRequest[Answer]) -> None:
        """Nobody waits any more; what still comes of it is passed over."""
        if self._open.get(request.number) is request:  # a caller's own number may be open anew
            del self._open[request.number]

    def answer(self, number: Number | None, message: Answer) -> None:
        """The whole answer, or its last part. A number that nobody waits for is passed over: it came too late."""
        if number is not None and (request := self._open.pop(number, None)) is not None:
            request.put(message, done=True)

    def part(self, number: Number | None, message: Answer) -> None:
        """A part of an answer of which more is to come, or which its caller recognises as the last."""
        if number is not None and (request := self._open.get(number)) is not None:
            request.put(message, done=False)

    def fail(self, error: Exception) -> None:
        """The connection has ended: raised to all who wait, behind what has come for them before."""
        for request in self._open.values():
            request.put(error, done=True)
        self._open.clear()
