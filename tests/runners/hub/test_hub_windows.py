"""Log windows through a hub leave room on the line for what else a node says."""

from __future__ import annotations

import asyncio
import contextlib

from distui.runners.hub.node_logs import TAIL_BYTES, UNDER_WAY
from distui.runners.node.routes import Route
from distui.runners.run.commands import ReadLog

from .rehearsal import Rehearsed
from .test_hub_run import OUT, running

LINES = 20_000


class Overheard:
    """Passes on what a hub and an agent say to each other, and counts the windows that are on their way."""

    def __init__(self, run: Rehearsed) -> None:
        self.path = str(run.site.root / "s" / "overheard.sock")
        self.most = 0
        self.ended, self._full = asyncio.Event(), asyncio.Event()
        self._agent, self._now = run.socket(0), 0

    async def start(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(self._agent)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pass_on(reader, there[1]), self._pass_on(there[0], writer))
        self.ended.set()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self._now += line.startswith(b'{"type":"ReadLog"')
            self.most = max(self.most, self._now)
            if self.most == UNDER_WAY:
                self._full.set()
            if line.startswith(b'{"type":"LogWindow"'):
                await self._full.wait()  # however slow the hub is to ask for the next
            self._now -= line.startswith(b'{"type":"LogWindow"')
            writer.write(line)
        writer.close()


async def test_few_windows_of_a_node_are_on_their_way_and_none_is_large(run: Rehearsed) -> None:
    heard = Overheard(run)
    await run.begin([Route(0, "host0", "unix", heard.path), run.unix()[1]])
    file = OUT.format(0, 1)
    async with await heard.start(), run.viewer() as viewer:
        await viewer.until(running)
        run.runner(0).writes(0, ("x" * 99 + "\n") * LINES)
        await viewer.until(lambda state: state.log_sizes.get(file, 0) > LINES * 100)
        windows = await asyncio.gather(
            *(viewer.link.read_log(ReadLog(file, at << 16, 1 << 20)) for at in range(6))
        )
        assert [window.error for window in windows] == [""] * 6
        assert all(60_000 < len(window.data) <= TAIL_BYTES for window in windows)
        assert heard.most == UNDER_WAY
        assert await viewer.stop() == "stopped: no process of the run is left"
    await heard.ended.wait()
