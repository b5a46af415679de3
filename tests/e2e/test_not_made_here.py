"""A run directory of somebody else, or a copy: its files are read, and nothing that they name is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from distui.runners.notify import delivery
from distui.runners.notify.unreported import unattended
from distui.runners.run import own_runs, run_directories
from distui.runners.run.run_directories import Condition, condition_of

from .runs import Run, World
from .written import Attempt, write

HUB = {"kind": "hub"}


@pytest.fixture
def foreign(world: World) -> Run:
    """A lost run on two hosts from another state directory, put among this account's runs under its own name.

    A guard fails these tests if anything is started: they are not marked as those that may start processes.
    """
    run = write(world, "exec", "--name", "theirs", "--", "true", attempts=(Attempt(None),))
    record = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(record | HUB))
    order = {"kind": "hosts", "hosts": ["localhost"], "options": ["-oProxyCommand=touch pwned"]}
    (run.path / "launch.json").write_text(json.dumps(order))
    (run.path / "nodes.json").write_text(json.dumps(order))
    (run.path.parent.parent / "fingerprint.key").unlink()
    return run


def test_reading_starts_nothing(foreign: Run) -> None:
    entry = run_directories.served(foreign.path)
    assert entry is not None
    assert condition_of(entry) is Condition.LOST
    assert foreign.distui("status", "--json").out
    assert "theirs" in foreign.distui("ls").out
    assert not own_runs.is_own(foreign.path)


def test_what_would_start_something_is_refused(foreign: Run) -> None:
    for words in (("restart", "theirs", "--yes"), ("doctor", "theirs")):
        done = foreign.world.distui(*words)
        done.refused(done.code, "belongs to another user, or is a copy")
        assert done.code != 0


def test_its_notices_are_not_sent(foreign: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(foreign.path.parents[2]))
    (foreign.path / delivery.FILE).write_text("{}\n")
    assert unattended() == []


def test_a_copy_under_another_name_is_not_this_runs(world: World) -> None:
    run = write(world, "exec", "--", "true")
    assert own_runs.is_own(run.path)
    copy = Path(shutil.copytree(run.path, run.path.with_name("copy")))
    assert not own_runs.is_own(copy)
