"""For information: log windows and the replay of a journal."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from distui.runners.run.commands import ReadLog
from distui.runners.run.journal import Journal, read
from distui.runners.run.model import FindingCleared, Stamped
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import SocketLink

from .figures import Row, Sample
from .options import Effort
from .place import Place, a_place

LOG_BYTES = 128 << 20
WINDOW = 1 << 16
EVENTS = 10_000


def rows(effort: Effort) -> list[Row]:
    """Each a few times."""
    with a_place() as place:
        place.distui("exec", "--name", "logs", "--detach", "--", "sleep", "600")
        place.agent("logs")
        windows = Sample(tuple(asyncio.run(throughput(place)) for _ in range(3)), "MB/s", 0)
        replays = Sample(tuple(replay_ms(place) for _ in range(effort.helps)), "ms", 0)
    return [
        Row("log windows of 64 KiB through the agent's socket", str(windows)),
        Row(f"replay of a journal of {EVENTS:,} events", str(replays)),
    ]


async def throughput(place: Place) -> float:
    """Megabytes a second of a log read from one end to the other, window after window."""
    folder = place.run_dir("logs") / "node-0" / "attempt-001"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rank-9.out"
    if not path.exists():
        line = b"step 120 loss 2.314 3456 tok/s " + b"x" * 68 + b"\n"
        path.write_bytes(line * (LOG_BYTES // len(line)))
    socket = json.loads((place.run_dir("logs") / "agent.json").read_text())["socket"]
    link = await SocketLink.connect(Path(socket))
    began, offset, size = time.monotonic(), 0, path.stat().st_size
    while offset < size:
        window = await link.read_log(ReadLog("node-0/attempt-001/rank-9.out", offset, WINDOW))
        offset = window.next
    await link.close()
    return size / 1e6 / (time.monotonic() - began)


def replay_ms(place: Place) -> float:
    """Milliseconds to decode and fold a journal."""
    folder = place.root / "journal"
    if not folder.exists():
        folder.mkdir()
        journal = Journal(folder)
        for number in range(1, EVENTS + 1):
            journal.append(Stamped(time.time(), FindingCleared(f"id-{number % 7}", node=0), number))
        journal.close()
    began = time.perf_counter()
    RunState().apply_all(read(folder))
    return 1000 * (time.perf_counter() - began)
