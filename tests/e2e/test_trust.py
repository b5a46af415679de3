"""A stranger's configuration on the command line: passed over, named, and taken once it is trusted."""

from __future__ import annotations

import json
import os
import pwd
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from .runs import World
from .written import without_agent

NOBODY = 65534
EVIL = '[preset.ddp]\nbase = "ddp"\ntitle = "\\u001b]0;x\\u0007"\nenv = { LD_PRELOAD = "/tmp/evil.so" }\n'

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def theirs(world: World) -> Iterator[Path]:
    """distui.toml of another user, in a sticky folder above the working directory."""
    world.root.chmod(0o1777)
    file = world.root / "distui.toml"
    file.write_text(EVIL)
    os.chown(file, NOBODY, NOBODY)
    assert file.stat().st_uid == NOBODY
    (world.work / "t.py").write_text("")
    yield file
    world.root.chmod(0o700)


def test_it_is_named_and_nothing_stops(world: World, theirs: Path) -> None:
    plan = ("plan", "ddp", "--nproc-per-node", "1", "--", "t.py")
    shown = world.distui(*plan).fine().out
    assert "LD_PRELOAD" not in shown
    assert f"  - {theirs} is passed over: it belongs to" in shown
    document = world.distui(*plan[:-2], "--json", "--", "t.py").fine().json()
    assert document["passed"][0].startswith(f"{theirs} is passed over")
    assert document["sources"] == []
    done = world.distui("presets").fine()
    assert f"`distui trust {shlex.quote(str(theirs))}`" in done.err
    world.distui("plan", "mine", "--", "t.py").refused(2, "no preset 'mine'", "is passed over")


def as_theirs(file: Path, text: str) -> None:
    """Another content, of the other user all the same; "" for a pipe that nobody writes to."""
    file.unlink()
    if text:
        file.write_text(text)
    else:
        os.mkfifo(file)
    os.chown(file, NOBODY, NOBODY)


@pytest.mark.parametrize(
    "text", [EVIL, "x = [", "x = 1", ""], ids=["preset", "no TOML", "no preset", "pipe"]
)
def test_a_launch_names_it_and_takes_nothing_of_it(world: World, theirs: Path, text: str) -> None:
    """Whatever is in it: the run has the preset of this name that is the user's own."""
    as_theirs(theirs, text)
    words = ("launch", "ddp", "--nproc-per-node", "1", "--detach", "--json", "--", "t.py")
    with without_agent():
        done = world.distui(*words).fine()
    owner = pwd.getpwuid(NOBODY).pw_name
    assert done.err.startswith(f"distui: {theirs} is passed over: it belongs to {owner}")
    assert len(done.err.splitlines()) == 1
    path = Path(done.json()["path"])
    plan = json.loads((path / "plan.json").read_text())
    assert (plan["preset"], plan["sources"]) == ("ddp", [])
    assert str(theirs) in plan["passed"][0]
    assert b"evil" not in (path / "plan.json").read_bytes() + (path / "environ").read_bytes()
    world.distui("launch", "mine", "--", "t.py").refused(2, "no preset 'mine'", f"{theirs} is passed over")


def test_trust_by_name_until_it_changes(world: World, theirs: Path) -> None:
    plan = ("plan", "ddp", "--nproc-per-node", "1", "--", "t.py")
    assert "LD_PRELOAD" in world.distui("trust").fine().out
    assert world.distui("trust", "--list").fine().out == f"as it was {theirs}\n"
    shown = world.distui(*plan).fine().out
    assert f"  LD_PRELOAD=/tmp/evil.so  # preset, project {theirs}" in shown
    assert f"preset       ddp (project {theirs})" in shown
    listed = world.distui("presets").fine().out
    assert "\x1b" not in shown + listed
    theirs.write_text(EVIL + "\n")
    os.chown(theirs, NOBODY, NOBODY)
    assert world.distui("trust", "--list", "--json").fine().json()[0]["state"] == "changed"
    assert "it has changed since you trusted it" in world.distui(*plan).fine().out
    assert world.distui("trust", "--remove", str(theirs), "--json").fine().json() == {"path": str(theirs)}
    world.distui("trust", "--remove", str(theirs)).refused(2, "is not trusted")
    assert world.distui("trust", "--list").fine().out == ""


def test_what_cannot_be_trusted_is_a_sentence(world: World, theirs: Path) -> None:
    (world.work / "deep.toml").write_text("a = " + "[" * 10_000)
    os.mkfifo(world.work / "pipe")
    world.distui("trust", "/dev/zero").refused(2, "must be a regular file")
    world.distui("trust", "pipe").refused(2, "must be a regular file")
    world.distui("trust", "nowhere").refused(2, "No such file")
    world.distui("trust", "deep.toml").refused(2, "nested more than")
    world.distui("trust", "--list", "x").refused(2, "--list takes no PATH")


@pytest.mark.real
def test_modules_of_the_working_directory_are_not_imported(world: World) -> None:
    """A stranger's email.py would be executed by whoever asks another interpreter for torch."""
    (world.work / "t.py").write_text("")
    for name in ("email", "csv", "zipfile", "json"):
        (world.work / f"{name}.py").write_text(
            f"open({str(world.root / 'marker')!r}, 'w')\nraise SystemExit(7)\n"
        )
    world.distui("plan", "ddp", "--nproc-per-node", "1", "--python", "/usr/bin/python3", "--", "t.py")
    assert not (world.root / "marker").exists()


def test_two_dashes_are_no_value(world: World) -> None:
    for word in ("--hosts=--", "--env=--", "--name=--", "--python=--", "--set=--"):
        world.distui("plan", "ddp", word, "--", "t.py").refused(2, "is not a value")


def test_words_that_are_no_text_are_refused(world: World) -> None:
    for words in (("plan", "ddp", "--env", "A=\udcff", "--", "t.py"), ("restart", "x", "--env", "A=\udcff"),
                  ("exec", "--", "true", "\udcfe")):  # fmt: skip
        world.distui(*words).refused(2, "is not UTF-8 text")
