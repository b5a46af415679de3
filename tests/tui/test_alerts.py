"""The cockpit rings its terminal for the run on the screen while the terminal has lost the focus."""

from __future__ import annotations

from pathlib import Path

import pytest
import scripted as play
from conftest import Start, shown
from textual.events import AppBlur, AppFocus, Event

from distui.runners.run.model import RunEnded, RunPhase


@pytest.mark.parametrize(
    ("focus", "send", "rings"),
    [(AppBlur(), '"terminal:gave-up"', 1), (AppFocus(), '"terminal:gave-up"', 0), (AppBlur(), "", 0)],
    ids=["lost", "kept", "not-to"],
)
async def test_a_run_that_fails_rings_a_terminal_without_the_focus(
    rig: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, focus: Event, send: str, rings: int
) -> None:
    for name in ("TMUX", "STY", "VTE_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM_PROGRAM", "WezTerm")
    folder = tmp_path / "config/distui"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "settings.toml").write_text(f"[notify]\nsend = [{send}]\n")
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        assert it.app._driver is not None
        written: list[str] = []
        monkeypatch.setattr(it.app._driver, "write", written.append)
        it.app.post_message(focus)
        await it.pilot.pause()
        it.link.play(RunEnded(RunPhase.FAILED, 1, "gave up"), time=it.now, seq=100)
        await it.until(lambda: "failed" in it.screen().lower())
        it.app.tick()
        rung = "".join(written)
        assert rung.count("\x1b]9;distui: minigpt: it failed, and nothing restarts it. ") == rings
        assert rung.count("\a") == rings
