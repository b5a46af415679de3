"""A run on several nodes calls once: its hub sends, no node does, and a hub that died says nothing twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from patience import HANG_S

from distui.presets.plan import Place, Plan
from distui.runners.notify import sending
from distui.runners.notify.delivery import FILE, records
from distui.runners.run.model import RunPhase

from .rehearsal import Rehearsed
from .site import Site
from .test_hub_run import running


class Calling(Rehearsed):
    """One that calls on the way `team`."""

    def planned(self, command: tuple[str, ...], name: str, place: Place, nodes: int) -> Plan:
        return replace(
            super().planned(command, name, place, nodes), notify=("team:first-step,succeeded,gave-up",)
        )

    async def sent(self, count: int) -> None:
        """Wait until so many notices have arrived, and the hub has written that down."""
        async with asyncio.timeout(HANG_S):
            while [each.state for each in records(self.entry.path)].count("sent") < count:
                await asyncio.sleep(0.1)


async def test_several_nodes_call_once_also_after_their_hub_died(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    async def answer(module: str, document: Mapping[str, Any], *more: object) -> dict[str, Any]:
        titles.append(json.loads(document["body"])["title"])
        return {"status": 204}

    monkeypatch.setattr(sending, "_answer", answer)
    folder = site.root / ".config" / "distui"
    folder.mkdir(mode=0o700, parents=True)
    (folder / "settings.toml").touch(mode=0o600)
    (folder / "settings.toml").write_text(
        '[notify.channels.team]\ntype = "webhook"\nurl = "http://127.0.0.1:9/hook"\n'
    )
    run = Calling(site)
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(running)
        for node in (0, 1):
            run.runner(node).writes(0, "step 1 loss 2.0\n")
        await run.sent(1)
        await run.kill_hub()
    async with run.viewer() as viewer:
        await viewer.until(running)
        for node in (0, 1):
            run.runner(node).exits(0)
        await viewer.until(lambda state: state.phase is RunPhase.SUCCEEDED)
        await run.sent(2)
    assert titles == ["many: it trains", "many: it has succeeded"]
    assert [(part.path / FILE).exists() for part in run.parts] == [False, False]
    await run.close()
