"""Frames at the border: whatever a peer sends, one clear error or a valid command."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distui.runners.run.answers import AgentHello
from distui.runners.run.commands import Command, Hello, ReadLog, Restart
from distui.runners.run.model import RunnerLost, Stamped
from distui.runners.run.wire.frames import (
    MAGIC,
    FrameError,
    decode_command,
    decode_from_agent,
    encode,
    read_line,
    skip_to_magic,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_line_does_more_than_be_refused(line: bytes) -> None:
    for decode in (decode_command, decode_from_agent):
        try:
            decode(line)
        except FrameError:
            continue


@pytest.mark.parametrize(
    "command",
    [
        Hello(after=3),
        Restart("a", {"K": "v"}, ("U",)),
        ReadLog("node-0/attempt-001/rank-0.out", -10, id="b"),
    ],
)
def test_commands_travel(command: Command) -> None:
    assert decode_command(encode(command)) == command


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(FrameError, match="env"):
        decode_command(b'{"type":"Restart","id":"a","env":{"K":1}}')
    with pytest.raises(FrameError, match="type"):
        decode_command(b'{"type":"Explode","id":"a"}')
    with pytest.raises(FrameError):
        decode_command(b"[" * 100_000)


def test_an_event_of_a_newer_agent_is_passed_over() -> None:
    assert decode_from_agent(b'{"time":1.0,"event":{"type":"FromTheFuture"}}') is None
    event = Stamped(1.0, RunnerLost(3, "x"), 7)
    assert decode_from_agent(msgspec.json.encode(event)) == event
    hello = AgentHello((1, 1), "0.1.0", "r", 7)
    assert decode_from_agent(encode(hello)) == hello


def reader(data: bytes) -> asyncio.StreamReader:
    stream = asyncio.StreamReader(limit=1024)
    stream.feed_data(data)
    stream.feed_eof()
    return stream


async def test_a_login_banner_does_no_harm() -> None:
    stream = reader(b"Welcome to node7!\nLast login: today\n" + MAGIC + b"next\n")
    await skip_to_magic(stream)
    assert await read_line(stream) == b"next\n"
    with pytest.raises(FrameError, match="not a distui agent"):
        await skip_to_magic(reader(b"bash: distui: command not found\n"))
    with pytest.raises(FrameError):
        await skip_to_magic(reader(b"x" * 100 + b"\n" + b"y" * 4096 + b"\n"))


async def test_half_a_line_at_the_end_is_no_line() -> None:
    assert await read_line(reader(b'{"type":"Hel')) == b""
