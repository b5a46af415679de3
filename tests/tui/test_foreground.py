"""A launch without a terminal prints each event and the ranks' output, whatever its link does."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import scripted as play

from distui.presets.finding import Finding
from distui.runners.run.commands import ReadLog
from distui.runners.run.model import FindingRaised, RunEnded, RunPhase, Stamped
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import LinkError, Window
from distui.tui.verbs import foreground


async def test_events_are_printed_also_after_the_state_drops_old_ones() -> None:
    written = io.StringIO()
    lines, state = foreground.EventLines(foreground.Stream(written), None), RunState()
    for number in range(450):
        finding = Finding(id=f"f{number}", severity="warning", role="hint", text=f"finding {number}.")
        stamped = Stamped(play.BEGAN + number, FindingRaised(finding), seq=number + 1)
        state.apply(stamped)
        await lines.print_new(state, stamped)
    assert [text for number in range(450) if (text := f"finding {number}.") not in written.getvalue()] == []


class Silent(play.ScriptedLink):
    """Its events stay open, but no log of it can be read."""

    async def read_log(self, ask: ReadLog) -> Window:
        raise LinkError("the agent is stopped")


async def test_the_link_is_reopened_if_only_reading_the_output_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.write_logs(tmp_path)
    events = [*play.stamped(play.running()), Stamped(play.NOW, play.sizes(tmp_path))]
    end = Stamped(play.NOW, RunEnded(RunPhase.SUCCEEDED, 0, "every rank ended"), seq=len(events) + 1)
    links = [Silent(tmp_path, events), *(play.ScriptedLink(tmp_path, [*events, end]) for _ in range(2))]

    async def open_next(_: object) -> play.ScriptedLink:
        return links.pop(0)

    monkeypatch.setattr(foreground, "open_link", open_next)
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    monkeypatch.setattr(sys, "stderr", err := io.StringIO())
    entry = cast(Any, SimpleNamespace(record=SimpleNamespace(name="r"), path=tmp_path))
    plan = cast(Any, SimpleNamespace(launcher="torchrun", notes=()))
    async with asyncio.timeout(60):
        assert await foreground.stay(entry, plan, as_json=False, quiet=False) == 0
    assert "distui: the agent is stopped" in err.getvalue()
    assert "rank 0 ready" in out.getvalue()
    assert links == []
