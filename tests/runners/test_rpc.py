"""The open requests of a connection: who gets which answer, and what those get who get none."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from distui.runners.run.rpc import OpenRequests


@pytest.fixture
def requests() -> OpenRequests[str]:
    return OpenRequests()


async def test_each_gets_its_own_answer(requests: OpenRequests[str]) -> None:
    with requests.open() as first, requests.open() as second:
        assert first.number != second.number
        requests.answer(second.number, "second")
        assert (first.done, second.done) == (False, True)
        requests.answer(first.number, "first")
        assert (await first.next(), await second.next()) == ("first", "second")


async def test_an_answer_that_comes_while_it_is_waited_for(requests: OpenRequests[str]) -> None:
    with requests.open() as request:
        waiting = asyncio.create_task(request.next(10))
        await asyncio.sleep(0)
        requests.answer(request.number, "late")
        assert await waiting == "late"


async def test_a_number_of_the_callers_own(requests: OpenRequests[str]) -> None:
    with requests.open("stop-1") as request:
        requests.answer("stop-1", "stopped")
        assert await request.next() == "stopped"


async def test_parts_come_in_order_and_before_the_answer(requests: OpenRequests[str]) -> None:
    with requests.open() as request:
        requests.part(request.number, "1")
        requests.part(request.number, "2")
        assert not request.done
        requests.answer(request.number, "3")
        assert [await request.next() for _ in range(3)] == ["1", "2", "3"]


@pytest.mark.parametrize("number", [None, 0, 7, "7"])
async def test_a_number_that_nobody_waits_for(
    requests: OpenRequests[str], number: int | str | None
) -> None:
    with requests.open() as request:
        requests.answer(number, "whose?")
        requests.part(number, "whose?")
        assert not request.done
        with pytest.raises(TimeoutError):
            await request.next(0)


async def test_an_answer_that_comes_twice_counts_once(requests: OpenRequests[str]) -> None:
    with requests.open() as request:
        requests.answer(request.number, "first")
        requests.answer(request.number, "again")
        assert await request.next() == "first"
        with pytest.raises(TimeoutError):
            await request.next(0)


async def test_the_end_of_the_connection_fails_all_that_are_open(requests: OpenRequests[str]) -> None:
    with requests.open() as answered, requests.open() as streamed, requests.open() as silent:
        requests.answer(answered.number, "answer")
        requests.part(streamed.number, "part")
        requests.fail(OSError("it is gone"))
        assert await answered.next() == "answer"
        assert await streamed.next() == "part"
        for request in (streamed, silent):
            assert request.done
            with pytest.raises(OSError, match="it is gone"):
                await request.next()


async def test_the_next_connection_begins_with_a_new_number(requests: OpenRequests[str]) -> None:
    with requests.open() as before:
        requests.fail(OSError("it is gone"))
    with requests.open() as after:
        requests.answer(before.number, "late")
        assert not after.done
        requests.answer(after.number, "answer")
        assert await after.next() == "answer"


async def test_a_caller_that_was_cancelled_is_forgotten(requests: OpenRequests[str]) -> None:
    with requests.open("7") as request:
        waiting = asyncio.create_task(request.next())
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
    requests.answer("7", "too late")
    requests.fail(OSError("it is gone"))
    assert not request.done


async def test_a_part_that_comes_as_patience_ends_is_not_lost(requests: OpenRequests[str]) -> None:
    with requests.open() as request:
        with pytest.raises(TimeoutError):
            await request.next(0.001)
        requests.part(request.number, "late")
        assert await request.next() == "late"


async def test_who_leaves_forgets_its_own_request_alone(requests: OpenRequests[str]) -> None:
    """A viewer may use an id twice: the first to give up leaves the second its answer."""
    with requests.open("7"):
        second = requests.open("7")
    requests.answer("7", "answer")
    assert await second.next() == "answer"
