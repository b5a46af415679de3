"""Log windows of all nodes: read remotely, cached, served from the cache when a node is silent."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...presets.trusted_files import private_folder
from ..logs import follow
from ..logs.follow import ask_anywhere
from ..logs.log_files import parse_file_id, part_of, whole_id
from ..model import LogGrew
from ..wire.link import Link, LinkError, Window
from .merged_run import MergedRun

# -----------------------------------------------------------------------------------------------------------
# Log windows of all nodes: read where the file is, kept, and given from what was kept when its node is silent.


TAIL_BYTES = 65536
"""Of each log, kept when a part or an attempt ends."""
READ_SECONDS = 10.0
TAIL_SECONDS = 60.0
"""The most that all tails of one node may take."""
AT_ONCE = 32
"""Windows that one viewer is read at the same time: a pane of all logs must not wait for a round trip a file."""
UNDER_WAY = 2
"""Windows of one node that are on their way at the same time, none larger than TAIL_BYTES: what else its agent says
waits behind them, which on a slow line is long, and one alone would leave the line idle for half of the time."""


class NodeLogs:
    """The logs of all nodes of one run."""

    def __init__(self, run: MergedRun) -> None:
        self._run = run
        self._kept = Record(run.run_dir)
        self._reading = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(UNDER_WAY))
        """By node; held by each window that is on its way."""

    async def read(
        self,
        up: Callable[[int], Link | None],
        file: str,
        offset: int,
        limit: int = TAIL_BYTES,
        grep: str = "",
    ) -> Window:
        """One window, whoever has the file; `up`: the link to a node that answers."""
        place = part_of(file)
        if place is None:
            return await ask_anywhere(self._run.run_dir, file, offset, limit, grep)
        node, name = place
        link = up(node)
        if link is not None:
            try:
                async with asyncio.timeout(READ_SECONDS), self._reading[node]:
                    window = await link.read_log(name, offset, min(limit, TAIL_BYTES), grep)
            except (LinkError, OSError, TimeoutError):
                pass  # what was kept is better than nothing
            else:
                window = replace(window, file=whole_id(window.file, node))
                if not grep:
                    self._kept.keep(window)
                return window
        return await self._read_kept(node, file, offset, limit, grep)

    async def _read_kept(self, node: int, file: str, offset: int, limit: int, grep: str) -> Window:
        window = await ask_anywhere(self._run.run_dir, file, offset, limit, grep)
        if not window.error or parse_file_id(file) is None:
            return window
        if self._empty(node, file):
            return Window(file, 0, 0, 0, b"")
        nodes, name = self._run.nodes, file.partition("/")[2]
        why = "has ended" if nodes.ended(node) else "does not answer"
        return replace(window, error=f"{nodes.name(node)} {why}, and nothing of {name} was read before")

    def _empty(self, node: int, file: str) -> bool:
        """Whether nothing had been written there when the node was last heard of: it tells of every log that grows."""
        sizes = self._run.state.log_sizes
        if file in sizes:
            return sizes[file] == 0
        return any((place := part_of(name)) is not None and place[0] == node for name in sizes)

    async def keep_tails(self, node: int, link: Link, attempt: int | None = None) -> None:
        """Keep the ends of a node's logs: of all that are known, or of one attempt. Raises LinkError, TimeoutError."""

        async def keep(file: str, name: str) -> None:
            async with self._reading[node]:
                at = self._kept.missing(file, self._run.state.log_sizes[file], TAIL_BYTES)
                while at is not None:
                    window = await link.read_log(name, at, TAIL_BYTES)
                    self._kept.keep(replace(window, file=file))
                    if window.error or window.next <= at:
                        return
                    at = window.next if window.next < window.size else None

        async with asyncio.timeout(TAIL_SECONDS):
            await asyncio.gather(*(keep(file, name) for file, name in self._files(node, attempt)))

    def _files(self, node: int, attempt: int | None) -> list[tuple[str, str]]:
        """Ids here and there of a node's logs, the newest attempt's first."""
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
        """By node: sizes of the logs that were read before this hub came."""
        sizes: dict[int, dict[str, int]] = {}
        for file, size in self._kept.sizes().items():
            place = part_of(file)
            if place is not None:
                sizes.setdefault(place[0], {})[file] = size
        return {node: LogGrew(grown) for node, grown in sizes.items()}


# -----------------------------------------------------------------------------------------------------------
# Keeps what was read of the nodes' logs, for when the nodes are gone.


MOST_BYTES = 512 << 20
"""Of one run; what is read after that is shown and not kept."""


class Record:
    """The kept pieces of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / follow.FOLDER
        self._held = follow.pieces(run_dir)
        self._bytes = sum(end - at for held in self._held.values() for at, end in held.items())

    def sizes(self) -> dict[str, int]:
        """Bytes that each file had when it was last read."""
        return follow.sizes(self._held)

    def missing(self, file: str, size: int, tail: int) -> int | None:
        """Where to read on so that the last `tail` bytes of a file are kept; None when they are."""
        held = self._held.get(file, {})
        at = max(size - tail, 0)
        for begin, end in held.items():
            if begin <= at < end:
                at = end
        return at if at < size else None

    def keep(self, window: Window) -> None:
        """Add a window that was read without a pattern. What the disk refuses is not kept."""
        if window.error or not window.data or parse_file_id(window.file) is None:
            return
        held = self._held.setdefault(window.file, {})
        with contextlib.suppress(OSError):
            if held and window.size < max(held.values()):
                self._forget(window.file, held)  # the file was truncated and begins anew
            begin = next((at for at, end in held.items() if at <= window.offset <= end), window.offset)
            until = held.get(begin, begin)
            data = window.data[until - window.offset :]
            if data and self._bytes + len(data) <= MOST_BYTES:
                self._append(self._path(window.file, begin), data)
                held[begin] = until + len(data)
                self._bytes += len(data)
        self._held[window.file] = dict(sorted(held.items()))

    def _path(self, file: str, begin: int) -> Path:
        return self._root / f"{file}@{begin}"

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        private_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, data) < len(data):
                os.ftruncate(descriptor, before)
                raise OSError("no room")
        finally:
            os.close(descriptor)

    def _forget(self, file: str, held: dict[int, int]) -> None:
        for begin in list(held):
            self._path(file, begin).unlink(missing_ok=True)
            del held[begin]
