"""One JSON object a line; after a LogWindow header, its raw bytes.

The agent speaks first: a magic line (so that a login banner before it does no harm), then AgentHello.
"""

from __future__ import annotations

import asyncio

import msgspec

from ..model import AgentHello, Command, CommandDone, LogWindow, Stamped

MAGIC = b"DISTUI/1\n"
MAX_LINE = 4 << 20
"""Bytes; a longer line is a broken or hostile peer."""
MAX_BANNER = 64 << 10
VIA_ID = "via"
"""Id of the CommandDone by which an agent says why it cannot, or can no longer, relay."""

Incoming = AgentHello | LogWindow
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_replies: msgspec.json.Decoder[Incoming] = msgspec.json.Decoder(Incoming)
_events = msgspec.json.Decoder(Stamped)


class FrameError(Exception):
    """The peer sent what no frame is; the text says where."""


class NotRelayed(FrameError):
    """The agent that was asked to relay does not; the text is its reason, whole."""


def encode(frame: msgspec.Struct) -> bytes:
    return msgspec.json.encode(frame) + b"\n"


def decode_command(line: bytes) -> Command:
    """Raises FrameError."""
    try:
        return _commands.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"not a command: {error}") from None


def decode_from_agent(line: bytes) -> Stamped | Incoming | None:
    """An event or a reply; None for an event of a kind newer than this viewer. Raises FrameError."""
    try:
        if line.startswith(b'{"type":'):
            return _replies.decode(line)
        return _events.decode(line)
    except msgspec.ValidationError as error:
        if "Invalid value" in str(error) and "type" in str(error):
            return None
        raise FrameError(f"not an event: {error}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"not a frame: {error}") from None


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """One whole line, b"" at the end. Raises FrameError for one that is too long."""
    try:
        line = await reader.readline()
    except ValueError:
        raise FrameError(f"a line is longer than {MAX_LINE} bytes") from None
    return line if line.endswith(b"\n") else b""


async def skip_to_magic(reader: asyncio.StreamReader) -> None:
    """Read past whatever a login shell printed. Raises FrameError, and NotRelayed for an agent's refusal."""
    skipped = 0
    while True:
        line = await read_line(reader)
        if line == MAGIC:
            return
        _heed_refusal(line)
        skipped += len(line)
        if not line or skipped > MAX_BANNER:
            raise FrameError("the other end is no distui agent")


def _heed_refusal(line: bytes) -> None:
    """Raises NotRelayed."""
    if line.startswith(b"{") and VIA_ID.encode() in line:
        try:
            event = _events.decode(line).event
        except msgspec.MsgspecError:
            return
        if isinstance(event, CommandDone) and event.id == VIA_ID:
            raise NotRelayed(event.text)
