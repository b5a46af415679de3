"""The five lines of a first start: once, closed by any key, and never where somebody else is the viewer."""

from __future__ import annotations

from pathlib import Path

import pytest
import scripted as play
from conftest import Start, shown
from each import for_each

from distui.tui import app as app_module
from distui.tui.app import CockpitApp
from distui.tui.orientation import is_due, remember
from distui.tui.screens.key_dialogs import OrientationScreen


async def test_any_key_closes_them_for_good(rig: Start, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('stacks = "K"\n')
    it = rig(play.running())
    it.app._orients = True
    async with shown(it):
        await it.until(lambda: isinstance(it.app.screen, OrientationScreen))
        for line in (
            "1–7         switch panes",
            "K           show where each rank is",
            "[ ]         travel",
        ):
            assert line in it.screen()
        assert is_due()
        await it.press("x")
        await it.until(lambda: "RUNNING" in it.screen() and not is_due())
        assert not it.link.commands


def test_they_are_shown_once(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert is_due(environ)
    assert not is_due({**environ, "DISTUI_ORIENTATION": "off"})
    remember(environ)
    assert not is_due(environ)
    (tmp_path / "file").touch()
    remember({"XDG_STATE_HOME": str(tmp_path / "file")})  # a folder that cannot be written costs nothing


@for_each(("options", "wanted"), [({}, True), ({"readonly": True}, False), ({"readonly": False}, True)])
def test_readonly_views_have_none(
    options: dict[str, bool], wanted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "unused"))
    monkeypatch.setattr(CockpitApp, "run", lambda app: None)
    made: list[bool] = []
    begin = CockpitApp.__init__

    def record(app: CockpitApp, *args: object, orientation: bool, **more: object) -> None:
        made.append(orientation)
        begin(app, *args, orientation=orientation, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(CockpitApp, "__init__", record)
    app_module.run_cockpit(play.ScriptedSource(None, []), None, **options)
    assert made == [wanted]
