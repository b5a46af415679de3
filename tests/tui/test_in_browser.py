"""The cockpit in a browser: whoever sees it can look at this run, and do nothing on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import scripted as play
from conftest import Rig, Start, shown

from distui.runners.run.errors import LaunchError
from distui.runners.run.model import CommandDone
from distui.tui.app import CockpitApp
from distui.tui.keys import ACTIONS
from distui.tui.permissions import OF_ACCOUNT
from distui.tui.screens.live_keys import live_keys
from distui.tui.screens.run import RunScreen
from distui.tui.shared_source import SharedSource

REFUSED = "read-only: a browser can only look at the run"


def in_browser(rig: Start, tmp_path: Path) -> Rig:
    """A running run, as a page shows it."""
    made = rig(play.running(), link_readonly=True)
    made.link.answers["Dump"] = CommandDone("", False, "this connection is read-only")
    made.app = CockpitApp(
        made.source,
        "r-1a2b3c4d",
        readonly=True,
        in_browser=True,
        clock=lambda: made.now,
        keys=tmp_path / "keys.toml",
    )
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_no_key_changes_the_run_or_writes_a_file(
    rig: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key of every table is pressed, each followed by y, which would confirm a question."""
    lent: list[object] = []
    monkeypatch.setattr(CockpitApp, "suspend", lambda app: lent.append("suspended"))
    monkeypatch.setattr("subprocess.run", lambda *words, **_: lent.append(words))
    it = in_browser(rig, tmp_path)
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        before = files(tmp_path)
        for action in ACTIONS:
            if action.id == "leave":
                continue
            for key in action.key.split(","):
                await it.press(key)
                await it.press("y")
                while len(it.app.screen_stack) > 2:
                    it.app.pop_screen()
            assert isinstance(it.app.screen, RunScreen), action
    assert files(tmp_path) == before
    assert not lent
    assert {type(command).__name__ for command in it.link.commands} <= {"Dump"}, "which the server refuses"
    assert not it.source.launched
    assert not it.source.saved
    assert not it.source.shells


LINES = ("restart", "stop", "nccl INFO", "signal KILL", "profile", "launch", "runs", "compare other")


@pytest.mark.parametrize("line", [*LINES, "down", "autostop 5"])
async def test_a_typed_line_is_refused_with_a_sentence(rig: Start, tmp_path: Path, line: str) -> None:
    it = in_browser(rig, tmp_path)
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        it.app.commands.run_line(line)
        await it.pilot.pause()
        refusal = "this run has no cluster" if line in ("down", "autostop 5") else REFUSED
        assert refusal in it.told().lower(), line
        assert isinstance(it.app.screen, RunScreen)
    assert not it.link.commands


async def test_keys_of_the_account_are_absent(rig: Start, tmp_path: Path) -> None:
    it = in_browser(rig, tmp_path)
    names = {action.name for action in ACTIONS} | {"compare"}
    assert names >= set(OF_ACCOUNT), "each of them exists"
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        allowed = it.app.permissions.allowed
        assert not any(allowed(action.name) for action in ACTIONS if action.mutates)
        assert not any(allowed(name) for name in OF_ACCOUNT)
        offered = {key.text for key in live_keys(it.app.screen)}
        gone = {action.text for action in ACTIONS if not allowed(action.name)}
        assert offered
        assert not offered & gone
        assert not [place for place in ("Runs", "New run") if place in it.screen()]


async def test_a_theme_is_not_kept(rig: Start, tmp_path: Path) -> None:
    for kept in (True, False):
        settings = tmp_path / f"settings-{kept}.toml"
        it = rig(play.running())
        it.app = CockpitApp(
            it.source, "r-1a2b3c4d", in_browser=not kept, clock=lambda: play.NOW, settings=settings,
            keys=tmp_path / "keys.toml",
        )  # fmt: skip
        async with shown(it):
            await it.press("t")
            assert it.app.theme != "textual-dark"
        assert settings.exists() == kept


async def test_the_source_of_a_page_has_no_other_run(tmp_path: Path) -> None:
    """Its id is a path, so nothing that looks for a run of this account finds one."""
    path = tmp_path / "run.sock"
    source = SharedSource(path)
    assert source.runs() == source.measured_runs() == []
    assert source.places(str(path)) == {}
    assert source.kept_at(str(path)) == (None, True)
    assert "no run" in source.mark("note", "x", str(path))
    assert source.remove([str(path)])[:2] == ([], 0)
    with pytest.raises(LaunchError, match="no run"):
        source.form_of(str(path))
    assert os.listdir(tmp_path) == []
