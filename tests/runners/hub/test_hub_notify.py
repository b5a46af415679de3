"""A run on several nodes calls once: its hub sends, no node does, and a hub that died says nothing twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from web_sink import sink

from distui.presets.plan import Place, Plan
from distui.runners.model import RunPhase
from distui.runners.notify.delivery import FILE, records

from .site import Site, Whole, kill, until

pytestmark = pytest.mark.long

ENDS = """
import os, time
print("step 1 loss 2.0", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


class Calling(Whole):
    """One that calls on the way `team`."""

    def planned(self, command: tuple[str, ...], name: str, place: Place, nodes: int) -> Plan:
        return replace(
            super().planned(command, name, place, nodes), notify=("team:first-step,succeeded,gave-up",)
        )


async def test_several_nodes_call_once_also_after_their_hub_died(site: Site) -> None:
    with sink() as server:
        folder = site.root / ".config" / "distui"
        folder.mkdir(mode=0o700, parents=True)
        (folder / "settings.toml").touch(mode=0o600)
        (folder / "settings.toml").write_text(
            f'[notify.ways.team]\ntype = "webhook"\nurl = "{server.url()}"\n'
        )
        run = Calling(site, site.script(ENDS), name="both")
        run.start()
        async with run.viewer():
            await asyncio.to_thread(server.wait, 1)
            assert await asyncio.to_thread(until, lambda: records(run.entry.path)[-1].state == "sent")
            await kill(run.hub_pid())
        async with run.viewer() as viewer:
            (site.root / "go").touch()
            await viewer.until(lambda state: state.phase is RunPhase.SUCCEEDED)
            await asyncio.to_thread(server.wait, 2)
        assert await asyncio.to_thread(until, lambda: records(run.entry.path)[-1].state == "sent")
        assert server.titles() == ["both: it trains", "both: it has succeeded"]
    assert [(part.path / FILE).exists() for part in run.parts] == [False, False]
