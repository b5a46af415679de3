"""Logs of several nodes through a hub: searched where they are, merged by one clock although the nodes' differ."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distui.runners.hub.kept_logs import Record
from distui.runners.hub.node_logs import NodeLogs
from distui.runners.logs.kept_pieces import read_piece
from distui.runners.logs.line_times import LineTimes
from distui.runners.logs.windows import ask_window, read_window
from distui.runners.run.commands import ReadLog
from distui.runners.run.log_files import LogFile, file_id, parse_file_id
from distui.runners.run.wire.client import Link, Window
from distui.tui.loaded_logs import LoadedLogs
from distui.tui.log_filter import LogFilter
from distui.tui.log_tail import LogTail
from distui.tui.rows.log import Jump

T = 1_700_000_000.0
SLOW = -40.0
"""What the clock of node 1 lacks."""


class Node:
    """A node's part of the run on disk, read as its agent reads it."""

    def __init__(self, path: Path, number: int, clock: float, stamps: bool) -> None:
        self.path, self.number, self.clock, self.stamps = path, number, clock, stamps
        self.name = file_id(number, 1, number, "out")
        (path / self.name).parent.mkdir(parents=True)
        (path / self.name).touch()
        self._times = LineTimes(path)

    def write(self, text: str, at: float) -> None:
        """`at`: by the clock of the hub."""
        now = at + self.clock
        with (self.path / self.name).open("a") as log:
            own = datetime.fromtimestamp(now - 0.02, UTC).isoformat(timespec="milliseconds")
            log.write(f"{f'{own} ' if self.stamps else ''}{text}\n")
        size = (self.path / self.name).stat().st_size
        self._times.note(self.name, size, now, now - 0.05, now)
        self._times.flush(self.name)

    async def read_log(self, ask: ReadLog) -> Window:
        return await ask_window(self.path, ask)


class Site:
    """Two nodes, of which one has a clock that is behind, and their hub."""

    def __init__(self, root: Path, clock: float = SLOW, stamps: bool = False) -> None:
        self.nodes = [Node(root / "a", 0, 0.0, stamps), Node(root / "b", 1, clock, stamps)]
        (root / "hub").mkdir(parents=True)
        self.logs = NodeLogs(cast(Any, SimpleNamespace(run_dir=root / "hub")))
        self.logs.shifts[1] = -clock
        self.up = True
        for second in range(60):
            self.nodes[second % 2].write(f"step {second} of node {second % 2}", T + second)

    async def read(self, ask: ReadLog) -> Window:
        return await self.logs.read(self._link, ask)

    def _link(self, number: int) -> Link | None:
        return cast(Link, self.nodes[number]) if self.up else None

    @property
    def files(self) -> list[LogFile]:
        return [log for node in self.nodes if (log := parse_file_id(node.name))]

    def tail(self) -> LogTail:
        return LogTail(self.read, self.files, clock=lambda: T + 100)

    async def searched(self, pattern: str) -> LogFilter:
        tail = LogFilter(self.read, self.files, pattern, clock=lambda: T + 100)
        for _ in range(20):
            if not tail.searching:
                break
            await tail.pull({node.name: (node.path / node.name).stat().st_size for node in self.nodes})
        assert not tail.searching
        return tail


def steps(tail: LoadedLogs) -> list[int]:
    return [int(line.text.split()[1]) for line in tail.lines]


async def test_lines_of_nodes_are_in_the_order_of_one_clock(tmp_path: Path) -> None:
    site = Site(tmp_path)
    tail = site.tail()
    await tail.begin()
    assert steps(tail) == list(range(60))
    assert [line.at for line in tail.lines] == [T + second for second in range(60)]
    site.logs.shifts.clear()  # as if nobody knew of the difference: node 1 would be 40 s too early
    alone = site.tail()
    await alone.begin()
    assert steps(alone) != list(range(60))


@pytest.mark.real
async def test_searches(tmp_path: Path) -> None:
    """Each is a process. Seven seconds are near enough to the time at which a line came to count as they stand."""
    for clock in (-7.0, 7.0, SLOW, 1800.0):
        await stamped(tmp_path / str(clock), clock)
    await ordered(tmp_path / "ordered")
    await gone(tmp_path / "gone")
    site = Site(tmp_path / "wrong")
    window = await site.read(ReadLog(site.nodes[1].name, grep="step("))
    assert "is not a regular expression" in window.error, "in one sentence of the node"
    node, hub = site.nodes[1], tmp_path / "kept"
    hub.mkdir()
    Record(hub).keep(read_window(node.path, ReadLog(node.name, -100, 65536)))
    found = read_piece(hub, ReadLog(node.name, 0, 65536, "step 5[79]"))
    assert found.data == b"step 57 of node 1\nstep 59 of node 1\n", "what is kept"


async def stamped(tmp_path: Path, clock: float) -> None:
    """What lines themselves say is moved to the one clock."""
    site = Site(tmp_path, clock, stamps=True)

    async def check(tail: LoadedLogs, numbers: Iterable[int]) -> None:
        assert [int(line.text.split()[2]) for line in tail.lines] == list(numbers)
        assert all(line.own for line in tail.lines)
        assert [line.at for line in tail.lines] == [
            pytest.approx(T + at - 0.02, abs=0.002) for at in numbers
        ]

    tail = site.tail()
    await tail.begin()
    await check(tail, range(60))
    await check(await site.searched("node 1"), range(1, 60, 2))
    site.logs, site.up = (
        NodeLogs(cast(Any, SimpleNamespace(run_dir=tmp_path / "hub"))),
        False,
    )  # another hub
    await check(await site.searched("node 1"), range(1, 60, 2))


async def ordered(tmp_path: Path) -> None:
    """Lines of all nodes are found in the order of one clock."""
    tail = await Site(tmp_path).searched("step .?[78] ")
    assert steps(tail) == [second for second in range(60) if second % 10 in (7, 8)]
    assert [line.at for line in tail.lines] == [T + second for second in steps(tail)]
    assert {line.label for line in tail.lines} == {"r0", "r1"}


async def test_a_time_of_the_hub_is_gone_to_on_each_node(tmp_path: Path) -> None:
    tail = Site(tmp_path).tail()
    await tail.begin_at(Jump(at=T + 30))
    first = next(line for line in tail.lines if line.at is not None and line.at >= T + 30)
    assert int(first.text.split()[1]) == 30
    assert steps(tail) == list(range(steps(tail)[0], 60))
    assert steps(tail)[0] >= 28


async def gone(tmp_path: Path) -> None:
    """What was read is searched when the nodes are gone."""
    site = Site(tmp_path)
    await site.tail().begin()
    site.up = False
    tail = await site.searched("of node 1$")
    assert steps(tail) == [second for second in range(60) if second % 2]
    assert [line.at for line in tail.lines] == [T + second for second in steps(tail)], "by our clock, once"
    assert (await site.searched("no such line")).lines == []
