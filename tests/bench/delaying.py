"""A command and its answer over a slow line, idle and while logs flow: cockpit, hub, ssh, agent, a run of one node."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distui.runners.node import local_agent
from distui.runners.run.commands import Signal
from distui.runners.run.wire.client import LinkError, SocketLink, new_id

from . import machine
from .cockpits import SIZE
from .figures import Row, Sample, limit_row
from .options import Effort
from .place import BIN, NotReached, Place, wait_for
from .reached import Reached, Whole, reached
from .terminal import Terminal

LINE = Path(__file__).with_name("slow_link.py")
GOAL_MS = 200.0
DELAY_MS, MBIT = 40, 10
FLOOD = 4_000_000
"""Bytes of log a second: more than the line carries, compressed or not."""
QUIET = 50_000
"""Bytes a second that are no log."""
PAUSE_S = 0.31
"""Between two commands: they fall at every phase of what the viewers read."""
SETTLE_S = 3.0
FOLLOWERS = 3
JOB = """
import base64, os, sys, time
from pathlib import Path
flood, pause, number = Path(sys.argv[1]), 0.05, 0
due = time.monotonic()
while True:
    count = int(float(sys.argv[2]) * pause / 100) if flood.exists() else 0
    number += 1
    words = base64.b64encode(os.urandom(75 * count)).decode()
    lines = [words[at * 100 : at * 100 + 99] for at in range(count)] or [f"quiet {number}"] * (number % 20 == 0)
    sys.stdout.write("".join(f"{line}\\n" for line in lines))
    sys.stdout.flush()
    due = max(due + pause, time.monotonic())
    time.sleep(max(0.0, due - time.monotonic()))
"""


def start(far: Reached) -> Whole:
    """A run that is quiet until there is a file called flood; its hub and its agent are up."""
    place = far.place
    (place.root / "job.py").write_text(JOB)
    run = far.run(
        (sys.executable, str(place.root / "job.py"), str(place.root / "flood"), str(FLOOD)), 1, "slow"
    )
    line = f"ProxyCommand {sys.executable} {LINE} %h %p {DELAY_MS} {MBIT}"
    run.start(far.routes(run, line))
    local_agent.start_agent(run.entry)
    return run


async def trips(socket: Path, count: int) -> list[float]:
    """Milliseconds from sending a signal that nobody heeds to what the node's agent said to it."""
    found = []
    link = await SocketLink.connect(socket)
    for _ in range(count):
        await asyncio.sleep(PAUSE_S)
        began = time.monotonic()
        done = await link.send(Signal(new_id(), "WINCH", (0,)))
        found.append(1000 * (time.monotonic() - began))
        if not done.ok:
            raise LinkError(done.text)
    await link.close()
    return found


def answers(socket: Path) -> bool | None:
    """Whether rank 0 can be reached."""
    try:
        return bool(asyncio.run(trips(socket, 1)))
    except LinkError:
        return None


def carried(run: Whole) -> int:
    """Bytes that the hub's ssh has read so far: nearly all came over the line."""
    (ssh,) = machine.children(run.hub_pid())
    return int(Path(f"/proc/{ssh}/io").read_text().split()[1])  # rchar, see proc(5)


class Measured:
    """One state of the line."""

    def __init__(self, terminal: Terminal, run: Whole, socket: Path, count: int) -> None:
        terminal.rest(SETTLE_S)
        before, began = carried(run), time.monotonic()
        self._found: list[float] = []
        self._problem = ""
        thread = threading.Thread(target=self._ask, args=(socket, count), daemon=True)
        thread.start()
        while thread.is_alive():
            terminal.rest(0.2)
        if self._problem:
            raise NotReached(self._problem)
        self.trips = Sample(tuple(self._found), "ms", 0)
        self.rate = (carried(run) - before) / (time.monotonic() - began)

    def _ask(self, socket: Path, count: int) -> None:
        try:
            self._found = asyncio.run(asyncio.wait_for(trips(socket, count), 120))
        except (LinkError, TimeoutError) as error:
            self._problem = f"an answer over the slow line: {error or 'none'}"

    def row(self, what: str) -> Row:
        """With the slowest, and what else came."""
        note = f"The slowest of {len(self.trips.values)}: {max(self.trips.values):.0f} ms."
        if self.rate > QUIET:
            came, written = f"{self.rate / 1e6:.2f}", f"{FLOOD / 1e6:.0f}"
            note += f" {came} MB/s came over the line, compressed; {written} MB/s were written."
        title = f"line of {MBIT} Mbit/s and {2 * DELAY_MS} ms, command and answer: {what}"
        return limit_row(title, self.trips, GOAL_MS, "", (note,))


@contextmanager
def followers(place: Place, count: int) -> Iterator[None]:
    """`distui logs -f`, several times, into nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            process = place.start(["sh", "-c", "exec distui logs -f slow > /dev/null"])
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
        yield


def rows(effort: Effort) -> list[Row]:
    """A cockpit follows the log throughout; then others follow it, too."""
    with reached() as far:
        run, place = start(far), far.place
        socket = Path(json.loads((run.entry.path / "agent.json").read_text())["socket"])
        wait_for("an answer of rank 0", lambda: answers(socket), 60)
        with Terminal([str(BIN / "distui"), "attach", "slow"], place.env, SIZE) as terminal:
            terminal.until("the run", lambda text: "quiet" in text, 30)
            idle = Measured(terminal, run, socket, effort.trips)
            (place.root / "flood").touch()
            flood = Measured(terminal, run, socket, effort.trips)
            if flood.rate < QUIET:
                raise NotReached(f"the cockpit does not follow: {flood.rate:.0f} B/s came over the line")
            with followers(place, 1):
                beside = Measured(terminal, run, socket, effort.trips)
            with followers(place, FOLLOWERS):
                many = Measured(terminal, run, socket, effort.trips)
    return [
        idle.row("idle"),
        flood.row("a cockpit follows the log"),
        beside.row("`distui logs -f` does, too"),
        many.row(f"{FOLLOWERS} times `distui logs -f`"),
    ]
