"""A hub with a link through ssh to each of many nodes, and a cockpit on it."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distui.runners.hub import links
from distui.runners.node import local_agent, routes
from distui.runners.run.model import LinkChanged, LinkState

from . import machine
from .cockpits import LARGE, TITLES
from .counting import Cost, cpu_percents, together, watched
from .figures import Row, Sample, limit_row
from .options import Effort
from .place import BIN, NotReached, Place, wait_for
from .reached import Whole, reached
from .terminal import Terminal

SCRIPT = Path(__file__).with_name("ssh_nodes.py")
CONNECT_GOAL_S, CPU_GOAL, COCKPIT_GOAL = 60.0, 15.0, 1.5
SETTLE_S = 5.0
LOOK_S = 0.5
WRITERS = 1
"""Ranks that write a line a second: as in the rows on the cockpit before one node, only rank 0 does."""


@dataclass(frozen=True, slots=True)
class Connected:
    """How the links came up. Seconds from the hub's start."""

    each: tuple[float, ...]
    lost: int
    """Tries that failed."""


def connected(run: Whole, began: float) -> Connected | None:
    """None while a link is still to come up."""
    time.sleep(LOOK_S)  # reading the journal must not slow down what writes it
    up: dict[int, float] = {}
    lost = 0
    for told in run.journal():
        if isinstance(told.event, LinkChanged):
            lost += told.event.state is LinkState.LOST
            if told.event.state is LinkState.UP:
                up.setdefault(told.node, told.time - began)
    return Connected(tuple(sorted(up.values())), lost) if len(up) == len(run.parts) else None


def simulate(place: Place, run: Whole) -> None:
    """Start the nodes, and wait until each has its socket. Raises NotReached."""
    nodes = len(run.parts)
    process = place.start([sys.executable, str(SCRIPT), run.record.run, str(nodes), str(WRITERS)])

    def look() -> bool | None:
        if process.poll() is not None:
            raise NotReached(f"the simulated nodes: {(place.root / 'output').read_text()[-500:]}")
        return True if len(list((place.root / "s").glob("*n*.sock"))) == nodes else None

    wait_for("the simulated nodes", look)


@contextmanager
def counted(pids: list[int], seconds: float) -> Iterator[list[list[list[float]]]]:
    """CPU of processes while something else is done, which must take as long; there at the end."""
    found: list[list[list[float]]] = []
    thread = threading.Thread(target=lambda: found.append(cpu_percents(pids, seconds)))
    thread.start()
    yield found
    thread.join()


@dataclass(frozen=True, slots=True)
class Load:
    """What hub, ssh and cockpit used in the same time."""

    alone: Sample
    """The hub before anybody looked."""
    hub: Sample
    ssh: Sample
    cockpit: Cost
    journal: float
    """Bytes a second by which the hub's journal grew."""


def painted(text: str) -> bool:
    """Content: the run's state, and the GPUs."""
    return "RUNNING" in text and TITLES[0] in text


def load(place: Place, run: Whole, seconds: float) -> Load:
    """Nobody looks; then a cockpit does."""
    hub, journal = run.hub_pid(), run.entry.path / "journal.jsonl"
    ssh = machine.children(hub)
    alone = together(cpu_percents([hub], seconds / 2))
    with Terminal([str(BIN / "distui"), "attach", run.record.name], place.env, LARGE) as terminal:
        terminal.until("the run", painted, 60)
        terminal.rest(SETTLE_S)
        before, began = journal.stat().st_size, time.monotonic()
        with counted([hub, *ssh], seconds) as found:
            cost = watched(terminal, seconds)
        grown = (journal.stat().st_size - before) / (time.monotonic() - began)
    return Load(alone, together(found[0][:1]), together(found[0][1:]), cost, grown)


def measure(effort: Effort) -> tuple[Connected, Load, machine.Memory, machine.Memory]:
    """Connecting, looking, and the memory of the hub and of all its ssh."""
    with reached() as far:
        run = far.run(("train.py",), effort.nodes, "many")
        simulate(far.place, run)
        routes.write(run.entry.path, far.routes(run))
        began = time.time()
        local_agent.start_agent(run.entry)
        came = wait_for(f"{effort.nodes} links", lambda: connected(run, began), 240)
        time.sleep(SETTLE_S)
        used = load(far.place, run, effort.watch_s)
        ssh = [machine.memory(pid) for pid in machine.children(run.hub_pid())]
        return came, used, machine.memory(run.hub_pid()), sum(ssh[1:], ssh[0])


def rows(effort: Effort) -> list[Row]:
    """One run."""
    came, used, hub, ssh = measure(effort)
    nodes, cockpit = effort.nodes, used.cockpit
    linked = (
        f"{links.AT_ONCE} at once, on one machine with the sshd and all nodes; half of the links after "
        f"{statistics.median(came.each):.1f} s; {came.lost} tries failed."
    )
    costs = (
        f"With a cockpit on it; without, {used.alone.median:.1f} %. Hub: {hub}. Its {nodes} ssh together: "
        f"{used.ssh.median:.1f} % of a core, {ssh}. The hub's journal grew by {used.journal:.0f} B/s."
    )
    seen = f"{cockpit.memory}; {cockpit.bytes.median:.1f} kB/s to the terminal."
    ranks = nodes * 8
    return [
        limit_row(f"ssh, {nodes} nodes: hub's start to all links", Sample((came.each[-1],), "s", 1), CONNECT_GOAL_S,
                  "", (linked,)),
        limit_row(f"ssh, {nodes} nodes at 1 Hz: CPU of the hub", used.hub, CPU_GOAL, "", (costs,)),
        limit_row(f"cockpit, {ranks} GPUs, {ranks} ranks on {nodes} nodes: CPU", cockpit.cpu, COCKPIT_GOAL, "", (seen,)),
    ]  # fmt: skip
