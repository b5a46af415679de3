"""Logs of all nodes: windows from the nodes that answer, or from the kept pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable

from msgspec.structs import replace

from ..logs.kept_pieces import ask_anywhere
from ..run.commands import ReadLog
from ..run.log_files import parse_file_id, part_of, whole_id
from ..run.model import LogGrew
from ..run.wire.client import Link, LinkError, Window
from .kept_logs import Record
from .merged_run import MergedRun

TAIL_BYTES = 65536
"""Bytes at the end of each log that are kept when a part or an attempt ends."""
READ_SECONDS = 10.0
TAIL_SECONDS = 60.0
"""Maximum time for all tails of one node."""
AT_ONCE = 32
"""Maximum number of concurrent windows per viewer: a pane of all logs must not need one round trip per file."""
UNDER_WAY = 2
"""Maximum number of windows in flight per node, none larger than TAIL_BYTES. Other answers of the agent queue after
them, which is long on a slow line. Only one would leave the line idle for half of the time."""


class NodeLogs:
    def __init__(self, run: MergedRun) -> None:
        self._run = run
        self._kept = Record(run.run_dir)
        self.shifts: dict[int, float] = {}
        """Node → seconds to add to its times."""
        self._reading = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(UNDER_WAY))
        """Node → semaphore that each window in flight holds."""

    async def read(self, up: Callable[[int], Link | None], ask: ReadLog) -> Window:
        """One window, from the node that has the file; `up` returns the link to a node that answers."""
        place = part_of(ask.file)
        if place is None:
            return await ask_anywhere(self._run.run_dir, ask)
        node, name = place
        shift = self.shifts.get(node, 0.0)
        link = up(node)
        if link is not None:
            try:
                at = ask.at - shift if ask.at else 0.0
                of_node = replace(ask, file=name, limit=min(ask.limit, TAIL_BYTES), at=at)
                async with asyncio.timeout(READ_SECONDS), self._reading[node]:
                    window = await link.read_log(of_node)
            except (LinkError, OSError, TimeoutError):
                pass  # fall back to the kept data
            else:
                window = self._ours(window, node, whole_id(window.file, node))
                if not ask.grep:
                    self._kept.keep(window)
                return window
        return await self._read_kept(node, ask)

    def _ours(self, window: Window, node: int, file: str) -> Window:
        """Return a node's window with times by the hub's clock and with the file's id in the hub."""
        shift = self.shifts.get(node, 0.0)
        times = tuple((offset, at + shift) for offset, at in window.times) if shift else window.times
        return replace(window, file=file, times=times, shift=shift)

    async def _read_kept(self, node: int, ask: ReadLog) -> Window:
        file, window = ask.file, await ask_anywhere(self._run.run_dir, ask)
        if not window.error or parse_file_id(file) is None:
            return window
        if self._empty(node, file):
            return Window(file, 0, 0, 0, b"")
        nodes, name = self._run.nodes, file.partition("/")[2]
        why = "has ended" if nodes.ended(node) else "does not answer"
        return replace(window, error=f"{nodes.name(node)} {why}, and nothing of {name} was read before")

    def _empty(self, node: int, file: str) -> bool:
        """Whether the file had no bytes at the node's last report: an agent reports each log that grows."""
        sizes = self._run.state.log_sizes
        if file in sizes:
            return sizes[file] == 0
        return any((place := part_of(name)) is not None and place[0] == node for name in sizes)

    async def keep_tails(self, node: int, link: Link, attempt: int | None = None) -> None:
        """Keep the ends of a node's known logs, or of one attempt's, if the link stays up."""

        async def keep(file: str, name: str) -> None:
            async with self._reading[node]:
                at = self._kept.missing(file, self._run.state.log_sizes[file], TAIL_BYTES)
                while at is not None:
                    window = await link.read_log(ReadLog(name, at, TAIL_BYTES))
                    self._kept.keep(self._ours(window, node, file))
                    if window.error or window.next <= at:
                        return
                    at = window.next if window.next < window.size else None

        with contextlib.suppress(LinkError, OSError, TimeoutError):
            async with asyncio.timeout(TAIL_SECONDS):
                await asyncio.gather(*(keep(file, name) for file, name in self._files(node, attempt)))

    def _files(self, node: int, attempt: int | None) -> list[tuple[str, str]]:
        """Hub's ids and node's ids of a node's logs, the newest attempt's first."""
        logs = []
        for file in self._run.state.log_sizes:
            place, log = part_of(file), parse_file_id(file)
            if place is None or log is None or place[0] != node:
                continue
            if attempt is None or log.attempt in (attempt, None):
                logs.append((log, place[1]))
        logs.sort(key=lambda pair: pair[0].order, reverse=True)
        return [(log.id, name) for log, name in logs]

    def kept_sizes(self) -> dict[int, LogGrew]:
        """Node → sizes of the logs that an earlier hub read."""
        sizes: dict[int, dict[str, int]] = {}
        for file, size in self._kept.sizes().items():
            place = part_of(file)
            if place is not None:
                sizes.setdefault(place[0], {})[file] = size
        return {node: LogGrew(grown) for node, grown in sizes.items()}
