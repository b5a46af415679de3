"""What is known of hosts that the user named, from the first event on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from distui.runners.hub import cluster_launch, on_hosts
from distui.runners.hub.merged_run import LAUNCH_FILE
from distui.runners.run.model import HUB, LinkChanged, LinkState, Stage

from .children import Pipes, Programs
from .test_launching import Desk


async def refuse(words: tuple[str, ...], pipes: Pipes) -> int:
    pipes.stderr.write(b"ssh: connect to host x port 22: Connection refused\n")
    return 255


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A desk that orders a launch on two hosts, and is told to stop it before it begins."""
    Programs(monkeypatch).put("ssh", refuse)
    order = on_hosts.HostsRequest(
        on_hosts.KIND, ("me@10.0.0.1", "me@10.0.0.2"), ("alpha", "beta"), ("a", "b")
    )
    (tmp_path / LAUNCH_FILE).write_bytes(msgspec.json.encode(order))
    desk = Desk(tmp_path)
    desk.stop_asked.set()
    yield desk
    desk.chronicle.journal.close()


async def test_hosts_have_their_names_before_anything_else_is_known(desk: Desk) -> None:
    await cluster_launch.launch(desk, desk.set_routes)
    assert {number: node.host for number, node in desk.state.nodes.items()} == {0: "alpha", 1: "beta"}
    assert (Stage.SYNC, HUB) in desk.state.stages
    assert (Stage.SYNC, 0) not in desk.state.stages, "nothing was done there"


async def test_a_launch_that_goes_on_takes_no_link_back(desk: Desk) -> None:
    desk.emit(LinkChanged(LinkState.UP, "alpha"), node=0)
    await cluster_launch.launch(desk, desk.set_routes)
    assert [desk.state.nodes[node].link for node in (0, 1)] == [LinkState.UP, LinkState.CONNECTING]
