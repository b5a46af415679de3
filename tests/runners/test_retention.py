"""Retention: off unless it is written, acts after a launch alone, and leaves what lives, is a link, damaged or kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path

import pytest
from test_run_removal import NOW, left, made, state_home

from distui.runners.removal import retention
from distui.runners.removal.retention import Retention
from distui.runners.run import run_directories, run_notes
from distui.tui.cli import main
from distui.tui.source import LocalSource

__all__ = ["state_home"]
DAY = 86400.0


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(retention, "SECONDS", 60.0)  # a slow machine removes no less
    path = tmp_path / "config/distui/settings.toml"
    path.parent.mkdir(parents=True, mode=0o700)
    return path


def old(name: str, days: float, ended: float | None = None) -> run_directories.Entry:
    """A run that began so many days ago, and ended on the same day unless `ended` has another."""
    entry = made(name, (days if ended is None else ended) * DAY)
    document = (
        (entry.path / "run.json").read_text().replace(f"{entry.record.created}", f"{NOW - days * DAY}")
    )
    (entry.path / "run.json").write_text(document)
    again = run_directories.at(entry.path)
    assert again is not None
    return again


def names() -> list[str]:
    return sorted(name.split("-", 2)[2].rpartition("-")[0] for name in left() if name != "start.lock")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", Retention()),
        ('theme = "dark"', Retention()),
        ("[retention]", Retention()),
        ('[retention]\nolder_than = "30d"', Retention(30 * DAY)),
        ('[retention]\nolder_than = "2w"\nkeep = 5', Retention(14 * DAY, 5)),
        ("[retention]\nkeep = 1", Retention(None, 1)),
    ],
)
def test_what_the_settings_mean(settings: Path, text: str, rule: Retention) -> None:
    settings.write_text(text)
    assert retention.load() == rule


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[retention]\nolder_than = "30"', "must be a time"),
        ('[retention]\nolder_than = "0d"', "above 0"),
        ("[retention]\nolder_than = 30", "must be a time"),
        ("[retention]\nkeep = 0", "from 1 on"),
        ("[retention]\nkeep = true", "from 1 on"),
        ('[retention]\nolder = "1d"', "did you mean older_than?"),
        ("retention = 5", "must be a section"),
        ("[retention", "TOML"),
    ],
)
def test_a_mistake_removes_nothing(settings: Path, text: str, says: str) -> None:
    old("ancient", 900)
    settings.write_text(text)
    rule = retention.load()
    assert not rule.acts
    assert says in retention.retire(rule, "") or "TOML" in says
    assert names() == ["ancient"]


def test_it_takes_what_both_say_and_leaves_all_that_is_not_its_own(state_home: Path) -> None:
    for days in (50, 40, 35, 2, 1):
        old(f"d{days}", days)
    old("long", 55, ended=5)
    precious, live, damaged, moved = (
        old("precious", 60),
        old("live", 61),
        old("damaged", 62),
        old("moved", 63),
    )
    run_notes.tag(precious.path, ["keep"], [])
    (damaged.path / "journal.jsonl").write_bytes(b"\xff garbage\n")
    target = state_home / "target"
    moved.path.rename(target)
    moved.path.symlink_to(target)
    (run_directories.runs_dir() / "my-thesis").mkdir()
    copied = shutil.copytree(old("d45", 45).path, run_directories.runs_dir() / "copy-of-mine")
    lock = os.open(live.path / "agent.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        said = retention.retire(Retention(30 * DAY, 3), "")
    finally:
        os.close(lock)
    assert "removed 3 runs" in said
    assert (target / "run.json").exists()
    here = {path.name.rpartition("-")[0][16:] for path in run_directories.runs_dir().iterdir()}
    assert {"precious", "live", "damaged", "moved", "long", "d35", "d2", "d1"} <= here
    assert not {"d50", "d45", "d40"} & here
    assert copied.is_dir()
    assert (run_directories.runs_dir() / "my-thesis").is_dir()
    log = (run_directories.runs_dir().parent / retention.LOG).read_text().splitlines()
    assert [line.split()[2].split("-")[2] for line in log] == ["d50", "d45", "d40"]


def test_the_newest_are_those_that_ended_last_as_with_prune() -> None:
    old("long", 35, ended=0.1)
    old("longer", 36, ended=1.5)
    for days in (1.4, 1.3, 1.2):
        old(f"d{days:.0f}{days * 10:.0f}", days)
    retention.retire(Retention(keep=3), "")
    assert "long" in names()
    assert "longer" not in names()


def test_the_cockpit_has_what_went_in_a_sentence(settings: Path) -> None:
    old("ancient", 900)
    source = LocalSource()
    assert source.retire("") == ""
    settings.write_text("[retention]\nkeep = 1\n")
    newer = old("newer", 800)
    assert source.retire(newer.record.run).startswith("retention removed 1 run (ancient), ")
    assert names() == ["newer"]
    settings.write_text("[retention]\nkeep = 0\n")
    assert "from 1 on" in source.retire("")


def test_reading_removes_nothing(settings: Path) -> None:
    old("ancient", 900)
    settings.write_text("[retention]\nkeep = 1\n")
    old("newer", 800)
    for words in (["ls"], ["ls", "--json"], ["status", "ancient"], ["prune", "--keep", "0", "--dry-run"]):
        assert main(words) == 0
    assert names() == ["ancient", "newer"]


@pytest.mark.real
def test_a_launch_acts_and_the_new_run_stays(settings: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old("ancient", 900)
    words = ["exec", "--detach", "--name", "fresh", "--", sys.executable, "-c", "pass"]
    assert main(["exec", "--dry-run", *words[2:]]) == 0
    assert "retention" not in capfd.readouterr().out
    settings.write_text('[retention]\nolder_than = "30d"\n')
    assert main(["exec", "--dry-run", *words[2:]]) == 0
    assert "retention: after the start ended runs that ended 30" in capfd.readouterr().out
    assert names() == ["ancient"]
    assert main(words) == 0
    assert "retention removed 1 run" in capfd.readouterr().err.lower()
    assert names() == ["fresh"]
    assert main(["wait", "fresh"]) == 0
