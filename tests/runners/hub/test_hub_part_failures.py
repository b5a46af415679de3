"""Every background part of a hub and of its nodes' relays is broken on a live run: it is named, and starts again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from doubles.breakable import BreakableParts, install

from distui.runners.hub import on_hosts
from distui.runners.hub.__main__ import Hub
from distui.runners.hub.merged_run import LAUNCH_FILE
from distui.runners.run.host_processes import StartMode
from distui.runners.run.model import HUB, RunPhase
from distui.runners.run.parts import Parts

from .rehearsal import Rehearsed, Served

HUB_PARTS = {"cloud", "diagnosis", "link-0", "link-1", "own-logs", "socket", "verdict"}
"""All restartable parts of a hub; a launch is not repeated."""


async def broken(parts: Parts, names: set[str]) -> None:
    """Break each of these."""
    assert isinstance(parts, BreakableParts)
    assert names <= set(parts.starts)
    for name in sorted(names):
        await parts.fail(name)
        assert parts.starts[name] == 2, name


async def test_each_part_of_a_hub_that_fails_is_named_and_starts_again(
    run: Rehearsed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch)
    order = on_hosts.HostsRequest(on_hosts.KIND, ("a", "b"), ("a", "b"), ("a", "b"))
    (run.entry.path / LAUNCH_FILE).write_bytes(msgspec.json.encode(order))
    await run.begin()
    hub = Hub(run.entry, run.plan, StartMode.READ)
    run.hub = await Served.start(hub.serve, hub._server)
    run.hub.hub = hub
    async with run.viewer() as viewer:
        await viewer.until(lambda state: len(state.ranks) == 2)
        assert isinstance(hub.run.parts, BreakableParts)
        assert set(hub.run.parts.starts) == HUB_PARTS
        await broken(hub.run.parts, HUB_PARTS)
        for name in HUB_PARTS:
            finding = hub.run.state.findings[f"part-failed:{name}", None, None]
            assert finding.text == f"internal error in {name} (it starts again in 1 s): Fault: {name}"
        await viewer.until(lambda state: all(node.link == "up" for node in state.nodes.values()))
        for node in (0, 1):
            run.runner(node).finishes()
        state = await viewer.until(lambda state: state.phase.ended)
        assert state.phase is RunPhase.SUCCEEDED
    assert {each.node for each in state.findings.values() if each.id.startswith("part-")} <= {None, HUB}
    assert capsys.readouterr().err.count("doubles.breakable.Fault: ") == len(HUB_PARTS)


async def test_the_relay_of_a_node_that_fails_is_named_and_starts_again(
    run: Rehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(lambda state: len(state.ranks) == 2)
        agents = [served.server for served in run.agents.values()]
        for server in agents:
            await broken(server._parts, {"relay"})
        state = await viewer.until(lambda state: len(state.findings) == 2)
        assert {(each.id, each.node) for each in state.findings.values()} == {
            ("part-failed:relay", 0),
            ("part-failed:relay", 1),
        }
        await asyncio.sleep(1.0)
        await viewer.stop()
