"""The guard over a level of NCCL_DEBUG: what is a flood, and what runs make of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from doubles.fake_runner import FakeRunner
from doubles.served import Served, doubled
from inrank.conftest import own_directories as own_directories

from distui.presets.finding import Finding
from distui.presets.nccl import FLOOD_BYTES, NcclError, cost, flood_rate
from distui.runners.agent import nccl_flood
from distui.runners.agent.nccl_flood import FLOOD_ID, Flow, written
from distui.runners.run.commands import Restart, SetNccl
from distui.runners.run.machine import disk_reserve
from distui.runners.run.model import FindingRaised
from distui.runners.run.state import RunState

GIB = 1 << 30


# ---- what is a flood


def test_a_rate_over_some_seconds_is_one() -> None:
    flow = Flow(50e6)
    assert flow.check(0.0, 0, None, None) is None
    assert flow.check(1.0, 80_000_000, None, None) is None, "a second says little"
    found = flow.check(2.0, 160_000_000, None, None)
    assert found is not None
    assert (found.rate, found.free) == (80e6, None)
    assert found.text == "NCCL's logs on this node grow by 80 MB/s"


def test_a_burst_that_ends_is_none() -> None:
    flow = Flow(50e6)
    looks = [
        flow.check(float(at), size, None, None)
        for at, size in enumerate([0, 90_000_000] + [90_000_000] * 8)
    ]
    assert looks == [None] * 10


def test_files_that_go_away_are_no_rate() -> None:
    flow = Flow(50e6)
    for at, size in enumerate((900_000_000, 950_000_000, 0, 60_000_000)):
        assert flow.check(float(at), size, None, None) is None


@pytest.mark.parametrize(
    ("free", "total", "flood"),
    [
        (3 * GIB, 100 * GIB, True),
        (6 * GIB, 100 * GIB, False),
        (1 * GIB, 10 * GIB, True),
        (3 * GIB, 10 * GIB, False),
    ],
)
def test_little_room_is_a_flood_while_the_logs_grow(free: int, total: int, flood: bool) -> None:
    flow, quiet = Flow(50e6), Flow(50e6)
    found = [flow.check(float(at), at * 3_000_000, free, total) for at in range(4)][-1]
    assert (found is not None) == flood
    if found is not None:
        assert found.text == f"NCCL's logs on this node grow by 3 MB/s, and {free / GIB:.1f} GiB are free"
    assert [quiet.check(float(at), at * 1000, free, total) for at in range(4)] == [None] * 4


def test_only_nccl_s_own_files_count(tmp_path: Path) -> None:
    for name, size in (("rank-0.nccl", 5), ("rank-0.1.nccl", 7), ("rank-0.out", 100)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert written(tmp_path) == 12
    assert written(tmp_path / "gone") == 0


# ---- what it will cost


def test_a_cost_is_told_in_words() -> None:
    assert (
        cost("INFO", "COLL")
        == "COLL: a line per collective and rank; at 200 collectives/s × 8 ranks ≈ 0.3 MB/s"
    )
    assert cost("info", "coll,tuning,net", 2000, 128) == (
        "COLL, TUNING: 2 lines per collective and rank; at 2000 collectives/s × 128 ranks ≈ 97 MB/s"
    )
    assert cost("TRACE", "COLL,CALL", ranks=1).endswith("at 200 collectives/s × 1 rank ≈ 0.1 MB/s")
    assert cost("INFO", "COLL,CALL") == cost("INFO", "COLL"), "CALL says something at TRACE alone"
    assert cost("INFO", "^COLL").startswith("TUNING: a line")
    assert cost("INFO", "ALL,COLL").startswith("ALL: 2 lines")


@pytest.mark.parametrize(
    ("level", "subsys"), [("INFO", ""), ("INFO", "NET,GRAPH"), ("WARN", "COLL"), ("VERSION", "ALL")]
)
def test_what_writes_little_costs_nothing(level: str, subsys: str) -> None:
    assert cost(level, subsys) == ""
    assert flood_rate(level, subsys, 1e6, 1024) == 0.0


def test_what_nccl_does_not_know_has_no_cost() -> None:
    with pytest.raises(NcclError, match="LOUD"):
        cost("LOUD", "COLL")
    with pytest.raises(NcclError, match="CPU"):
        cost("INFO", "CPU")


def test_what_is_to_stay_free() -> None:
    assert [disk_reserve(size * GIB) for size in (10, 1000)] == [2 * GIB, 50 * GIB]
    assert flood_rate("INFO", "COLL", 200, 8) < FLOOD_BYTES < flood_rate("INFO", "ALL", 20_000, 8)


# ---- runs with fake ranks


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of which 2 kB/s are a flood: the rigs call ten times as much."""
    monkeypatch.setattr(nccl_flood, "FLOOD_BYTES", 2000.0)


LINE = "h:1:2 [0] NCCL INFO AllReduce: opCount 1f count 1024 datatype 7 op 0 root 0 comm 0x55 [nranks=2]\n"


class Calls(FakeRunner):
    """Ranks whose NCCL writes a line for each collective at INFO."""

    async def _live(self) -> None:
        writing = asyncio.create_task(self._write())
        try:
            await super()._live()
        finally:
            writing.cancel()

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for rank, hook in self.hooks.items():
                if hook.env.get("NCCL_DEBUG") == "INFO":
                    self.writes(rank, 20 * LINE, "1.nccl")


class CallsLive(Calls):
    nccl_version = "2.27.3"


class CallsOld(Calls):
    nccl_version = "2.21.5"


def flooded(state: RunState) -> Finding | None:
    return state.findings.get((FLOOD_ID, None, 0))


async def lowered(run: Served) -> str:
    """Wait until the guard has acted; what it says of it."""
    await run.until(lambda s: flooded(s) is not None)
    one = flooded(run.state)
    assert one is not None
    assert (one.severity, "at most 0.002 MB/s" in one.evidence[0]) == ("warning", True)
    return one.text


@pytest.mark.usefixtures("low")
async def test_a_level_that_somebody_set_is_taken_back() -> None:
    async with doubled(CallsLive) as (run, runners):
        await run.hooked()
        assert (await run.send(SetNccl("n", "INFO", "COLL"))).ok
        text = await lowered(run)
        assert text.startswith("NCCL's logs on this node grow by 0.0")
        assert text.endswith("MB/s at INFO COLL: NCCL_DEBUG is back at WARN")
        assert run.state.nccl is not None
        assert (run.state.nccl.level, run.state.nccl.until, run.state.nccl.text) == ("WARN", None, text)
        assert {rank.nccl_debug for rank in run.state.ranks.values()} == {"WARN"}

        # What was set to last for the next start, too, lasts no longer.
        assert (await run.send(Restart("r"))).ok
        assert {hook.env["NCCL_DEBUG"] for hook in runners.newest.hooks.values()} == {"WARN"}

        # The next wish is heard, and the finding of the last one goes.
        await run.hooked()
        assert (await run.send(SetNccl("m", "INFO", "COLL", ranks=(1,), seconds=60.0))).ok
        assert flooded(run.state) is None
        await lowered(run)
        assert [rank.nccl_debug for rank in run.state.ranks.values()] == ["WARN", "WARN"]
        assert len(run.all_of(FindingRaised)) == 2


@pytest.mark.usefixtures("low")
async def test_what_the_launch_asks_for_is_left_alone_and_said() -> None:
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"}
    async with doubled(CallsLive, nccl=env) as (run, _):
        assert (await lowered(run)).endswith("the launch itself asks for INFO COLL, which is left as it is")
        assert run.state.ranks[0].nccl_debug == "INFO"


@pytest.mark.usefixtures("low")
async def test_an_old_library_cannot_be_told() -> None:
    async with doubled(CallsOld) as (run, _):
        await run.hooked()
        assert (await run.send(SetNccl("n", "INFO", "COLL", restart=True))).ok
        assert (await lowered(run)).endswith(
            "at INFO COLL, and NCCL 2.21.5 cannot change that live: only a restart can"
        )
