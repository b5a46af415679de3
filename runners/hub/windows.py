"""Log windows of all nodes: read where the file is, kept, and given from what was kept when its node is silent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from ..logs.files import parse_file_id, part_of, whole_id
from ..logs.pieces import ask_anywhere
from ..model import LogGrew
from ..wire.link import Link, LinkError, Window

if TYPE_CHECKING:
    from .hub import Hub

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


async def read(hub: Hub, file: str, offset: int, limit: int = TAIL_BYTES, grep: str = "") -> Window:
    """One window, whoever has the file."""
    place = part_of(file)
    if place is None:
        return await ask_anywhere(hub.run_dir, file, offset, limit, grep)
    node, name = place
    link = hub.links.up(node)
    if link is not None:
        try:
            async with asyncio.timeout(READ_SECONDS), hub.links.by_node[node].reading:
                window = await link.read_log(name, offset, min(limit, TAIL_BYTES), grep)
        except (LinkError, OSError, TimeoutError):
            pass  # what was kept is better than nothing
        else:
            window = replace(window, file=whole_id(window.file, node))
            if not grep:
                hub.kept.keep(window)
            return window
    return await _kept(hub, node, file, offset, limit, grep)


async def _kept(hub: Hub, node: int, file: str, offset: int, limit: int, grep: str) -> Window:
    window = await ask_anywhere(hub.run_dir, file, offset, limit, grep)
    if not window.error or parse_file_id(file) is None:
        return window
    if _empty(hub, node, file):
        return Window(file, 0, 0, 0, b"")
    why = "has ended" if hub.ended(node) else "does not answer"
    name = file.partition("/")[2]
    return replace(window, error=f"{hub.name(node)} {why}, and nothing of {name} was read before")


def _empty(hub: Hub, node: int, file: str) -> bool:
    """Whether nothing had been written there when the node was last heard of: it tells of every log that grows."""
    sizes = hub.state.log_sizes
    if file in sizes:
        return sizes[file] == 0
    return any((place := part_of(known)) is not None and place[0] == node for known in sizes)


async def keep_tails(hub: Hub, node: int, link: Link, attempt: int | None = None) -> None:
    """Keep the ends of a node's logs: of all that are known, or of one attempt. Raises LinkError, TimeoutError."""
    gate = hub.links.by_node[node].reading

    async def keep(file: str, name: str) -> None:
        async with gate:
            at: int | None = hub.kept.missing(file, hub.state.log_sizes[file], TAIL_BYTES)
            while at is not None:
                window = await link.read_log(name, at, TAIL_BYTES)
                hub.kept.keep(replace(window, file=file))
                if window.error or window.next <= at:
                    return
                at = window.next if window.next < window.size else None

    async with asyncio.timeout(TAIL_SECONDS):
        await asyncio.gather(*(keep(file, name) for file, name in _files(hub, node, attempt)))


def _files(hub: Hub, node: int, attempt: int | None) -> list[tuple[str, str]]:
    """Ids here and there of a node's logs, the newest attempt's first."""
    found = []
    for file in hub.state.log_sizes:
        place, known = part_of(file), parse_file_id(file)
        if place is None or known is None or place[0] != node:
            continue
        if attempt is None or known.attempt in (attempt, None):
            found.append((known, place[1]))
    found.sort(key=lambda pair: pair[0].order, reverse=True)
    return [(known.id, name) for known, name in found]


def kept_sizes(hub: Hub) -> dict[int, LogGrew]:
    """By node: sizes of the logs that were read before this hub came."""
    sizes: dict[int, dict[str, int]] = {}
    for file, size in hub.kept.sizes().items():
        place = part_of(file)
        if place is not None:
            sizes.setdefault(place[0], {})[file] = size
    return {node: LogGrew(known) for node, known in sizes.items()}
