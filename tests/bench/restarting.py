"""From asking for a restart, or from the loss of a rank, to the first step of the next attempt."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from distui.runners.run.commands import Restart
from distui.runners.run.wire.client import LinkError, SocketLink, new_id

from . import machine
from .figures import Row, Sample, ratio_row
from .options import Effort
from .place import NotReached, Place, a_place, stamped, torchrun, wait_for

GOAL = 0.85
NPROC = 2
IDLE_S = "30"
"""Each rank sleeps this long after a step, so that neither run disturbs the other's measurement."""

SETTLE_S = 2.0
"""After the first step of an attempt, before the next measurement."""


def words(place: Place, folder: str) -> list[str]:
    """The example with checkpoints of its own."""
    return stamped(
        "--steps", "1000000", "--checkpoint-every", "0", "--step-delay", IDLE_S,
        "--checkpoint-dir", str(place.root / folder),
    )  # fmt: skip


def rank_pids(launcher: int) -> list[int]:
    """Processes under a launcher that know their rank."""
    found = []
    for pid in machine.tree(launcher)[1:]:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                env = file.read()
        except OSError:
            continue
        if b"\0LOCAL_RANK=" in env:
            found.append(pid)
    return found


class Pair:
    """One run under distui and one under torchrun, both idle between measurements."""

    def __init__(self, place: Place) -> None:
        self.place, self.seen = place, set[str]()
        options = ("--nproc-per-node", str(NPROC))
        env = place.same_env(words(place, "a"), options)
        place.launch("restarted", words(place, "a"), options).wait(60)
        place.new_stamps(self.seen, NPROC)
        self.bare = place.start(
            torchrun(
                NPROC, words(place, "b"), "--max-restarts", "100", "--rdzv-backend", "c10d",
                "--rdzv-endpoint", "127.0.0.1:0",
            ),
            **env,
        )  # fmt: skip
        place.new_stamps(self.seen, NPROC)

    def restart(self) -> float:
        """Seconds from the start of `distui restart` to the first step of every rank."""
        time.sleep(SETTLE_S)
        began = time.monotonic()
        asking = self.place.start(["distui", "restart", "restarted", "--yes"])
        took = self.place.new_stamps(self.seen, NPROC) - began
        if asking.wait(60):
            raise NotReached("distui restart failed")
        return took

    def restart_through_link(self) -> float:
        """The same from the key in the cockpit, whose link is open already."""
        time.sleep(SETTLE_S)
        socket = Path(json.loads((self.place.run_dir("restarted") / "agent.json").read_text())["socket"])
        began = asyncio.run(send_restart(socket))
        return self.place.new_stamps(self.seen, NPROC) - began

    def lose(self) -> float:
        """Seconds from SIGKILL of rank 1 to the first step of every rank of torchrun's next attempt."""
        time.sleep(SETTLE_S)
        victim = max(wait_for("two ranks", self._ranks))
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return self.place.new_stamps(self.seen, NPROC) - began

    def _ranks(self) -> list[int] | None:
        found = rank_pids(self.bare.pid)
        return found if len(found) == NPROC else None


async def send_restart(socket: Path) -> float:
    """Send it on an open link; the monotonic time just before."""
    try:
        link = await SocketLink.connect(socket)
        began = time.monotonic()
        done = await link.send(Restart(new_id()))
        await link.close()
    except LinkError as error:
        raise NotReached(str(error)) from None
    if not done.ok:
        raise NotReached(done.text)
    return began


def rows(effort: Effort) -> list[Row]:
    """In turns. A restart that does not come back is counted, and ends the measurement."""
    ours: list[float] = []
    linked: list[float] = []
    theirs: list[float] = []
    problem = ""
    with a_place() as place:
        pair = Pair(place)
        try:
            for _ in range(effort.restarts):
                ours.append(pair.restart())
                theirs.append(pair.lose())
                linked.append(pair.restart_through_link())
        except NotReached as error:
            problem = f"; {error}"
    came, asked = len(ours) + len(linked), 2 * effort.restarts
    back = Row(
        "restarts in place that came back", f"{came} of {asked}{problem}",
        value=float(asked - came), shown=f"{asked - came} lost", goal=0.0, goal_text="0 lost",
    )  # fmt: skip
    return [*compared(ours, linked, theirs), back] if theirs and linked else [back]


def compared(ours: list[float], linked: list[float], theirs: list[float]) -> list[Row]:
    """Both ways to ask, each against torchrun's own way back."""
    note = (
        "Without distui: from SIGKILL of one rank under `torchrun --max-restarts 100` with "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Both resume from a checkpoint that was written at the end."
    )
    peer = Sample(tuple(theirs), "s")
    return [
        ratio_row("`distui restart --yes` from its start to first step", Sample(tuple(ours), "s"), peer, GOAL, (note,)),
        ratio_row("restart from the cockpit's link to first step", Sample(tuple(linked), "s"), peer, GOAL, (note,)),
    ]  # fmt: skip
