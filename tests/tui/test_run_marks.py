"""What the cockpit shows of a run that verbs wrote: its notes, tags and variables are those of the files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from conftest import Rig, shown
from e2e.runs import World
from e2e.runs import world as world
from e2e.written import write

from distui.tui.app import CockpitApp
from distui.tui.source import LocalSource


def marks(world: World, name: str) -> tuple[str | None, list[str]]:
    note = json.loads(world.distui("note", name, "--json").out)["note"]
    return note, json.loads(world.distui("tag", name, "--json").out)["tags"]


@pytest.fixture
def night(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """The cockpit on one of two runs that have ended."""
    for name in ("night", "morning"):
        write(world, "exec", "--name", name, "--", "true")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "DISTUI_SOCKET_DIR"):
        monkeypatch.setenv(name, world.env[name])
    source = LocalSource()
    it = Rig(world.runs, source)  # type: ignore[arg-type]
    it.app = CockpitApp(source, "night", clock=time.time, keys=tmp_path / "keys.toml")
    return it


async def test_the_card_lists_the_variables_that_the_user_set(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--env", "SKIP_BAD_SHARD=1", "--env", "MY_TOKEN=hidden")
    write(world, "exec", "--name", "again", *flags, "--", "true")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "DISTUI_SOCKET_DIR"):
        monkeypatch.setenv(name, world.env[name])
    assert LocalSource().places("again")["environment"] == "MY_TOKEN=*** SKIP_BAD_SHARD=1"
    source = LocalSource()
    it = Rig(world.runs, source)  # type: ignore[arg-type]
    it.app = CockpitApp(source, "again", clock=time.time, keys=tmp_path / "keys.toml")
    async with shown(it, 200, 60) as it:
        await it.until(lambda: "environment MY_TOKEN=*** SKIP_BAD_SHARD=1" in it.screen())


async def test_the_list_writes_notes_and_tags_of_the_marked_runs(world: World, night: Rig) -> None:
    async with shown(night, 120, 40) as it:
        await it.until(lambda: "succeeded" in it.screen().lower())
        await it.press("R")
        await it.until(lambda: "distui · runs" in it.screen())
        await it.press("/", *"name:night", "enter")
        await it.until(lambda: "1 of 2" in it.screen())
        await it.press("n")
        await it.until(lambda: "no note" in it.screen())
        await it.press(*"lr too high; (try 3e-4)", "enter")
        await it.until(lambda: marks(world, "night")[0] == "lr too high; (try 3e-4)")
        await it.press("T")
        await it.until(lambda: "no tags" in it.screen())
        await it.press(*"good /bad", "enter")
        await it.until(lambda: "no tag can be" in it.screen())
        await it.press(*("backspace",) * 4, *"keep", "enter")
        await it.until(lambda: marks(world, "night")[1] == ["good", "keep"])
        await it.press("n")
        await it.until(lambda: "note: lr too high" in it.screen())
        await it.press("ctrl+u", "enter")
        await it.until(lambda: marks(world, "night")[0] is None)
        assert marks(world, "morning") == (None, [])
