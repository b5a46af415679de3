"""Frames between a viewer and an agent: one JSON object per line; after a LogWindow header, its raw bytes.

The agent sends first: a magic line, so that a login banner before it does no harm, then AgentHello.
"""

from __future__ import annotations

import asyncio

import msgspec

from ..answers import AgentHello, LogWindow, MetricsWindow
from ..commands import Command
from ..model import CommandDone, Stamped

MAGIC = b"DISTUI/1\n"
MOST_ID = 128
"""Maximum characters of a command's id, which the journal repeats."""
MAX_LINE = 4 << 20
"""Maximum bytes of a line; a longer one is from a broken or hostile peer."""
PIECE = 1 << 20
"""Bytes per read."""
MAX_BANNER = 64 << 10
VIA_ID = "via"
"""Id of the CommandDone that reports why an agent cannot relay, or no longer."""

Incoming = AgentHello | LogWindow | MetricsWindow
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_replies: msgspec.json.Decoder[Incoming] = msgspec.json.Decoder(Incoming)
_events = msgspec.json.Decoder(Stamped)


class FrameError(Exception):
    """The peer sent an invalid frame; the text has the reason."""


class NotRelayed(FrameError):
    """The agent refuses to relay; the text is its reason."""


def encode(frame: msgspec.Struct) -> bytes:
    return msgspec.json.encode(frame) + b"\n"


def decode_command(line: bytes) -> Command:
    """Decode a command. Raises FrameError."""
    try:
        command = _commands.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"not a command: {error}") from None
    if len(getattr(command, "id", "")) > MOST_ID:
        raise FrameError(f"not a command: its id has more than {MOST_ID} characters")
    return command


def decode_from_agent(line: bytes) -> Stamped | Incoming | None:
    """Decode an event or a reply; None for an event of a kind newer than this viewer. Raises FrameError."""
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
    """Read one complete line, b"" at the end. Raises FrameError for a too long line."""
    try:
        line = await reader.readline()
    except ValueError:
        raise FrameError(f"a line is longer than {MAX_LINE} bytes") from None
    return line if line.endswith(b"\n") else b""


class LineBuffer:
    """The frames of a stream, buffered as they arrive."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._data, self._at = b"", 0

    def next(self) -> bytes:
        """Return the next complete line in the buffer; b"" if there is none."""
        end = self._data.find(b"\n", self._at) + 1
        line = self._data[self._at : end] if end else b""
        self._at += len(line)
        return line

    async def more(self) -> bool:
        """Wait for more bytes; False at the end. Raises FrameError for a too long line."""
        self._data, self._at = self._data[self._at :], 0
        if len(self._data) > MAX_LINE:
            raise FrameError(f"a line is longer than {MAX_LINE} bytes")
        came = await self._reader.read(PIECE)
        self._data += came
        return bool(came)

    async def exactly(self, size: int) -> bytes:
        """Read this number of raw bytes. Raises IncompleteReadError."""
        data = self._data[self._at : self._at + size]
        self._at += len(data)
        return data + await self._reader.readexactly(size - len(data)) if len(data) < size else data


async def skip_to_magic(reader: asyncio.StreamReader) -> None:
    """Skip the output of a login shell. Raises FrameError, and NotRelayed for an agent's refusal."""
    skipped = 0
    while True:
        line = await read_line(reader)
        if line == MAGIC:
            return
        _heed_refusal(line)
        skipped += len(line)
        if not line or skipped > MAX_BANNER:
            raise FrameError("the other end is not a distui agent")


def _heed_refusal(line: bytes) -> None:
    """Raise NotRelayed if the line is an agent's refusal."""
    if line.startswith(b"{") and VIA_ID.encode() in line:
        try:
            event = _events.decode(line).event
        except msgspec.MsgspecError:
            return
        if isinstance(event, CommandDone) and event.id == VIA_ID:
            raise NotRelayed(event.text)
