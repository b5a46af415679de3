"""Logs of a node that does not answer, as a hub gives them."""

from __future__ import annotations

from distui.runners.hub.__main__ import Hub
from distui.runners.run.commands import ReadLog
from distui.runners.run.model import LinkChanged, LinkState, LogGrew

from .site import Site, Whole

WRITTEN = "node-1/attempt-001/rank-1.out"
EMPTY = "node-1/runner.log"


async def test_what_cannot_be_read_is_said_only_where_something_was_written(site: Site) -> None:
    run = Whole(site, ("true",))
    run.parts[1].path.rename(site.root / "elsewhere")
    hub = Hub(run.entry, run.plan)
    hub.run.emit(LinkChanged(LinkState.LOST, "gpu-3", "no way"), node=1)
    unheard = await hub.logs.read(hub.links.up, ReadLog(EMPTY))
    assert unheard.error == "node 1 (gpu-3) does not answer, and nothing of runner.log was read before"
    hub.run.emit(LogGrew({WRITTEN: 20}), node=1)
    assert (await hub.logs.read(hub.links.up, ReadLog(WRITTEN))).error == (
        "node 1 (gpu-3) does not answer, and nothing of attempt-001/rank-1.out was read before"
    )
    empty = await hub.logs.read(hub.links.up, ReadLog(EMPTY))
    assert (empty.error, empty.data, empty.size) == ("", b"", 0)
    hub.run.chronicle.journal.close()
