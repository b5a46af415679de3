"""What is known of hosts that the user named, from the first event on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from distui.runners.hub import cluster_launch, on_hosts
from distui.runners.hub.merged_run import LAUNCH_FILE
from distui.runners.model import HUB, LinkChanged, LinkState, Stage

from .test_launching import Desk


def desk_of(folder: Path) -> Desk:
    """A desk that orders a launch on two hosts, and is told to stop it before it begins."""
    order = on_hosts.HostsRequest(
        on_hosts.KIND, ("me@10.0.0.1", "me@10.0.0.2"), ("alpha", "beta"), ("a", "b")
    )
    (folder / LAUNCH_FILE).write_bytes(msgspec.json.encode(order))
    desk = Desk(folder)
    desk.stop_asked.set()
    return desk


@pytest.mark.real
async def test_hosts_have_their_names_before_anything_else_is_known(tmp_path: Path) -> None:
    desk = desk_of(tmp_path)
    await cluster_launch.launch(desk, desk.set_routes)
    desk.chronicle.journal.close()
    assert {number: node.host for number, node in desk.state.nodes.items()} == {0: "alpha", 1: "beta"}
    assert (Stage.SYNC, HUB) in desk.state.stages
    assert (Stage.SYNC, 0) not in desk.state.stages, "nothing was done there"


async def test_a_launch_that_goes_on_takes_no_link_back(tmp_path: Path) -> None:
    desk = desk_of(tmp_path)
    desk.emit(LinkChanged(LinkState.UP, "alpha"), node=0)
    await cluster_launch.launch(desk, desk.set_routes)
    desk.chronicle.journal.close()
    assert [desk.state.nodes[node].link for node in (0, 1)] == [LinkState.UP, LinkState.CONNECTING]
