"""From asking for another NCCL_DEBUG to the first line that NCCL writes because of it, on every rank."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from distui.runners.run.commands import SetNccl
from distui.runners.run.wire.client import LinkError, SocketLink, new_id

from .figures import Row, Sample, limit_row
from .options import Effort
from .place import NotReached, Place, a_place, wait_for

GOAL = 200.0
NPROC = 2
RIG = Path(__file__).parents[1] / "rigs" / "nccl"
PAUSE_S = 0.4
"""Between two changes."""


def start(place: Place) -> Path:
    """Two ranks that call the fake NCCL every 10 ms; the directory of their files. Raises NotReached."""
    made = subprocess.run(
        [sys.executable, RIG / "build_nccl.py", place.root / "nccl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise NotReached(f"the fake NCCL: {made.stderr.strip()}")
    words = [str(RIG / "calls_nccl.py"), made.stdout.strip()]
    place.launch("switched", words, ("--nproc-per-node", str(NPROC))).wait(60)

    def look() -> bool | None:
        ranks = place.status("switched")["ranks"]
        return True if len(ranks) == NPROC and all(rank["nccl_debug"] for rank in ranks) else None

    wait_for("two ranks with a hook", look, 60)
    return place.run_dir("switched") / "node-0" / "attempt-001"


def written(folder: Path) -> set[str]:
    """NCCL's files that hold a line."""
    return {path.name for path in folder.glob("*.nccl") if path.stat().st_size}


def first_lines(folder: Path, before: set[str]) -> float | None:
    """The monotonic time, once every rank has written into a file that was empty or not there before."""
    return time.monotonic() if len(written(folder) - before) >= NPROC else None


async def through_link(link: SocketLink, folder: Path) -> float:
    """Milliseconds from `send` to the last rank's first line."""
    before = written(folder)
    began = time.monotonic()
    sending = asyncio.create_task(link.send(SetNccl(new_id(), "INFO", "COLL")))
    while (arrived := first_lines(folder, before)) is None:
        if time.monotonic() - began > 10:
            raise NotReached("no line of NCCL after 10 s")
        await asyncio.sleep(0.001)
    await sending
    return 1000 * (arrived - began)


async def all_through_link(socket: Path, folder: Path, count: int) -> list[float]:
    """Up and down again, `count` times."""
    found = []
    try:
        link = await SocketLink.connect(socket)
        for _ in range(count):
            found.append(await through_link(link, folder))
            await link.send(SetNccl(new_id(), "WARN"))
            await asyncio.sleep(PAUSE_S)
        await link.close()
    except LinkError as error:
        raise NotReached(str(error)) from None
    return found


def through_process(place: Place, folder: Path) -> float:
    """Milliseconds from the start of `distui nccl` to the last rank's first line."""
    before = written(folder)
    began = time.monotonic()
    asking = place.start(["distui", "nccl", "switched", "INFO", "--subsys", "COLL"])
    arrived = wait_for("a line of NCCL", lambda: first_lines(folder, before), 10)
    if asking.wait(10):
        raise NotReached("distui nccl failed")
    place.distui("nccl", "switched", "WARN")
    time.sleep(PAUSE_S)
    return 1000 * (arrived - began)


def rows(effort: Effort) -> list[Row]:
    """Through a link that is open, as from the cockpit; then as a command of its own."""
    with a_place() as place:
        folder = start(place)
        socket = Path(json.loads((place.run_dir("switched") / "agent.json").read_text())["socket"])
        linked = asyncio.run(all_through_link(socket, folder, effort.toggles))
        alone = [through_process(place, folder) for _ in range(effort.toggles)]
    note = "Against a stand-in for libnccl that is called every 10 ms; 2 ranks, until both have written."
    return [
        limit_row("NCCL_DEBUG live, from the cockpit's link", Sample(tuple(linked), "ms", 0), GOAL,
                  "a restart of the job", (note,)),
        limit_row("NCCL_DEBUG live, `distui nccl` from its start", Sample(tuple(alone), "ms", 0), GOAL,
                  "a restart of the job", (note,)),
    ]  # fmt: skip
