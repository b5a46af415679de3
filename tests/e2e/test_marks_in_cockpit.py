"""Notes and tags written in the cockpit, in a real pseudo-terminal, are what `distui note` and `distui tag` read."""

from __future__ import annotations

import json

import pytest

from .runs import DISTUI, World, until
from .screen import Screen
from .written import write


@pytest.fixture
def night(world: World) -> World:
    """Two runs that have ended."""
    for name in ("night", "morning"):
        write(world, "exec", "--name", name, "--", "true")
    return world


def marks(world: World, name: str) -> tuple[str | None, list[str]]:
    note = json.loads(world.distui("note", name, "--json").out)["note"]
    return note, json.loads(world.distui("tag", name, "--json").out)["tags"]


@pytest.mark.real
def test_the_list_writes_notes_and_tags_of_the_marked_runs(night: World) -> None:
    screen = Screen((DISTUI, "attach", "night"), night.env, night.work)
    try:
        screen.until("succeeded")
        screen.press("R")
        screen.until("distui · runs")
        screen.press("/", *"name:night", "enter")
        screen.until("1 of 2")
        screen.press("n")
        screen.until("no note")
        screen.press(*"lr too high; (try 3e-4)", "enter")
        screen.until(lambda text: "lr too" in text and "note:" not in text)
        assert until(lambda: marks(night, "night")[0] == "lr too high; (try 3e-4)")
        screen.press("T")
        screen.until("no tags")
        screen.press(*"good /bad", "enter")
        screen.until("no tag can be")
        screen.press(*("\x7f",) * 4, *"keep", "enter")
        assert until(lambda: marks(night, "night")[1] == ["good", "keep"]), screen.text
        screen.press("n")
        screen.until("note: lr too high")
        screen.press("\x15", "enter")
        assert until(lambda: marks(night, "night")[0] is None)
        assert marks(night, "morning") == (None, [])
    finally:
        screen.close()


@pytest.mark.long
def test_the_command_line_writes_them_of_the_run(night: World) -> None:
    screen = Screen((DISTUI, "attach", "night"), night.env, night.work)
    try:
        screen.until("succeeded")
        screen.press(":")
        screen.until("Tab lists")
        screen.press(*"note it's the one; $HOME stays", "enter")
        assert until(lambda: marks(night, "night")[0] == "it's the one; $HOME stays"), screen.text
        screen.until("note written")
        screen.press(":")
        screen.until("Tab lists")
        screen.press(*"tag good -bad", "enter")
        assert until(lambda: marks(night, "night")[1] == ["good"]), screen.text
        screen.until("tags written")
        screen.press(":")
        screen.until("Tab lists")
        screen.press(*"tag /x", "enter")
        screen.until("No tag can be")
    finally:
        screen.close()
