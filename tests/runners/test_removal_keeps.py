"""What removal leaves alone: unknown means keep, and a record of somebody else's making decides nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from each import for_each
from patience import HANG_S
from test_run_removal import NOW, left, made, state_home, untouched

from distui.runners.removal import retention, run_removal
from distui.runners.removal.retention import Retention
from distui.runners.run import file_io, journal, run_directories, run_notes
from distui.runners.run.model import (
    AttemptStarted,
    PlanSummary,
    RankPlace,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from distui.runners.run.run_directories import Entry
from distui.tui.cli import main

__all__ = ["state_home"]
DAY = 86400.0


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a verb prints with --json."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def would_go(capsys: pytest.CaptureFixture[str], *conditions: str) -> list[str]:
    """Names of the runs that `prune` names."""
    return [run["name"] for run in printed(capsys, "prune", "--dry-run", *conditions)["would_remove"]]


def rewrite(entry: Entry, **fields: Any) -> None:
    path = entry.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def lost(name: str, began: float, heard: float) -> Entry:
    """A run that nobody saw end, with the time of its last event; its files are from its first day."""
    entry = made(name, ended=None, began=began)
    created = RunCreated(
        entry.record.run, name, entry.record.host, PlanSummary("ddp", "ddp", "torchrun", "t")
    )
    events = [Stamped(NOW - began, created, 1), Stamped(NOW - heard, created, 2)]
    (entry.path / journal.NAME).write_bytes(
        b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    )
    return untouched(entry, began)


# --- age ---


def test_a_lost_run_is_as_old_as_its_newest_event_or_file(capsys: pytest.CaptureFixture[str]) -> None:
    lost("died-just-now", 40 * DAY, 3600.0)
    lost("died-long-ago", 60 * DAY, 50 * DAY)
    writes = lost("still-writes", 60 * DAY, 50 * DAY)
    (writes.path / "node-0/rank-0.out").write_text("a rank that nobody sees")
    assert would_go(capsys, "--older-than", "30d") == ["died-long-ago"]
    assert main(["prune", "--older-than", "30d", "--dry-run"]) == 0
    assert "last written 50d ago" in capsys.readouterr().out


def test_the_age_of_a_run_with_files_that_cannot_be_read_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    deep = lost("deep", 60 * DAY, 50 * DAY)
    (deep.path / Path(*["d"] * 150)).mkdir(parents=True)
    untouched(deep, 50 * DAY)
    assert would_go(capsys, "--older-than", "30d") == []
    assert would_go(capsys, "--keep", "1") == []
    assert would_go(capsys, "--failed") == ["deep"], "who asks for no age gets it"


def test_retention_never_takes_a_lost_run_and_names_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SECONDS", 60.0)
    kept = lost("lost", 90 * DAY, 80 * DAY)
    made("old", 80 * DAY)
    for rule in (Retention(30 * DAY), Retention(None, 1)):
        said = retention.retire(rule, "")
        assert kept.path.is_dir()
        if rule.keep is None:
            assert "removed 1 run (old), " in said


def clocked(name: str, created: float, began: float, ended: float) -> Entry:
    """A run with these times, in unix seconds; its files are new."""
    entry = made(name)
    rewrite(entry, created=created)
    started = RunCreated(
        entry.record.run, name, entry.record.host, PlanSummary("ddp", "ddp", "torchrun", "t")
    )
    events = [
        Stamped(began, started, 1),
        Stamped(ended, RunEnded(RunPhase.SUCCEEDED, 0, "succeeded"), 2),
    ]
    (entry.path / journal.NAME).write_bytes(
        b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    )
    return entry


@for_each(
    "created, began, ended",
    [
        (NOW - 2200, 100.0, 160.0),  # a clock that was not set
        (100.0, 100.0, 160.0),
        (NOW - 2200, NOW - 2200, NOW - 60 * DAY),  # one that was set back
        (NOW - 60 * DAY, NOW - 60 * DAY, NOW + 60 * DAY),
        (NOW - 60 * DAY, NOW - 60 * DAY, 1e300),
        (1e300, 1e300, 1e300),
    ],
)
def test_a_clock_that_jumped_makes_no_run_old(created: float, began: float, ended: float) -> None:
    entry = clocked("jumped", created, began, ended)
    try:
        removal = run_removal.examine(entry)
        age = removal.age(time.time())
        assert age is None or age < 3600, age
        assert run_removal.pruned([removal], time.time(), older_than_s=30 * DAY) == []
    finally:
        shutil.rmtree(entry.path)


def test_ls_and_prune_have_the_same_end(capsys: pytest.CaptureFixture[str]) -> None:
    made("sound", 40 * DAY)
    clocked("backwards", NOW - 2200, NOW - 2200, NOW - 60 * DAY)
    ended = {run["name"]: run["ended"] for run in printed(capsys, "ls")}
    assert ended == {"sound": NOW - 40 * DAY, "backwards": None}
    (row,) = (
        run
        for run in printed(capsys, "prune", "--dry-run", "--keep", "0")["would_remove"]
        if run["name"] == "sound"
    )
    assert row["why"] == "succeeded, ended 40d ago"
    assert main(["ls", "--columns", "name,ended"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["backwards", "n/a"],
        ["sound", "40d"],
    ]


# --- records ---


def node(hub: Entry, number: int, **fields: Any) -> Entry:
    run, run8 = hub.record.run, hub.record.run8
    return made(
        hub.record.name,
        run=f"{run}.n{number}",
        run8=f"{run8}n{number}",
        kind="node",
        node=number,
        whole=run,
        **fields,
    )


def test_a_copy_of_a_part_goes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    hub = made("job", kind="hub")
    first, second = node(hub, 0), node(hub, 1)
    shutil.rmtree(hub.path)
    shutil.copytree(first.path, first.path.with_name("mycopy"))
    assert {run["name"] for run in printed(capsys, "ls")} == {"job", "mycopy"}
    document = printed(capsys, "rm", "mycopy", "--yes")
    assert document["removed"][0]["folders"] == [str(first.path.with_name("mycopy"))]
    assert left() == sorted([first.record.run, second.record.run])
    shutil.copytree(hub.path.with_name(first.record.run), hub.path.with_name("again"))
    folders = printed(capsys, "rm", "job", "--yes")["removed"][0]["folders"]
    assert sorted(folders) == [str(first.path), str(second.path)]
    assert left() == ["again"]


@for_each("kind", ["local", "node", "hub"])
def test_a_record_that_names_another_run_removes_nothing_of_it(kind: str) -> None:
    hub = made("victim", kind="hub")
    parts = [node(hub, 0), node(hub, 1)]
    evil = made("evil")
    rewrite(evil, whole=hub.record.run, kind=kind, node=1)
    try:
        assert main(["rm", "evil", "--yes"]) == 0
        assert left() == sorted(entry.record.run for entry in (hub, *parts))
    finally:
        shutil.rmtree(run_directories.runs_dir())


def bound(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


@for_each("run8", ["*", "../other/deadbeef", "deadbeef", "", "[a-z0-9]*"])
def test_sockets_of_others_stay(run8: str) -> None:
    base = Path(os.environ["DISTUI_SOCKET_DIR"])
    theirs, outside = base / "deadbeef.sock", base.with_name("other") / "deadbeef.sock"
    evil = made("evil")
    own = base / f"{evil.record.run8}.sock"
    try:
        for path in (theirs, outside, own):
            bound(path).close()
        rewrite(evil, run8=run8)
        assert main(["rm", "evil", "--yes"]) == 0
        assert [path.exists() for path in (theirs, outside, own)] == [True, True, False]
        assert left() == []
    finally:
        theirs.unlink()
        outside.unlink()


def test_the_socket_of_a_living_run_with_the_same_id_stays() -> None:
    """That of another state directory, of which this one is a copy."""
    copy = made("copied")
    with bound(Path(os.environ["DISTUI_SOCKET_DIR"]) / f"{copy.record.run8}.sock") as listener:
        listener.listen()
        run_removal.remove(copy)
        assert Path(listener.getsockname()).exists()


def test_the_folder_of_a_colleague_is_shown_and_has_no_other_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = made("theirs")
    rewrite(entry, name="../../etc", host="elsewhere")
    (run,) = printed(capsys, "ls")
    assert run["name"] == "theirs"
    assert "run.json has name '../../etc'" in run["problems"][0]
    assert main(["rm", "theirs", "--yes"]) == 0
    assert left() == []


def test_the_ended_run_of_another_host_is_refused_with_what_to_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = made("theirs")
    who = file_io.Identity(1, 1, "another boot", "another-host")
    (entry.path / "agent.json").write_bytes(msgspec.json.encode(who))
    assert main(["rm", "theirs", "--yes"]) == 2
    assert f"remove it there; remove a copy with `rm -r {entry.path}`" in capsys.readouterr().err


# --- parts ---


def old_cluster() -> tuple[Entry, Entry]:
    """A run on two nodes that ended long ago: its hub's record and its second part."""
    hub = made("job", 40 * DAY, kind="hub")
    first, second = (node(hub, number, ended=40 * DAY) for number in (0, 1))
    for entry in (hub, first, second):
        untouched(entry, 40 * DAY)
    return hub, second


def test_what_keeps_a_part_keeps_its_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hub, part = old_cluster()
    assert would_go(capsys, "--older-than", "30d") == ["job"]
    third = part.path.with_name(f"{hub.record.run}.n2")
    run_notes.tag(part.path, ["keep"], [])  # before there was a hub
    assert would_go(capsys, "--older-than", "30d") == []
    run_notes.tag(part.path, [], ["keep"])
    third.mkdir()
    (third / "thesis.txt").write_text("mine")
    assert would_go(capsys, "--older-than", "30d") == []
    shutil.rmtree(third)
    shutil.copytree(part.path, third)
    assert would_go(capsys, "--older-than", "30d") == []


def test_a_run_is_as_old_as_its_youngest_part(capsys: pytest.CaptureFixture[str]) -> None:
    _, part = old_cluster()
    rule = Retention(30 * DAY)
    assert [entry.record.name for entry in retention.due(rule, "", NOW)] == ["job"]
    events = (part.path / journal.NAME).read_bytes().splitlines(keepends=True)
    (part.path / journal.NAME).write_bytes(events[0])  # nobody saw its end
    assert would_go(capsys, "--older-than", "30d") == []
    assert list(retention.due(rule, "", NOW)) == []
    untouched(part, 35 * DAY)
    assert would_go(capsys, "--older-than", "30d") == ["job"]
    assert list(retention.due(rule, "", NOW)) == [], "a part may be restarted"


# --- checkpoints ---


def with_checkpoints(name: str, folder: Path | str) -> Entry:
    """A run whose plan names a folder for checkpoints."""
    entry = made(name)
    plan = json.loads((entry.path / "plan.json").read_text())
    plan["command"] = ["chargpt.py", "--checkpoint-dir", str(folder)]
    (entry.path / "plan.json").write_text(json.dumps(plan))
    return entry


@pytest.fixture
def folder(state_home: Path) -> Path:
    made_ = run_directories.checkpoints_dir() / "demo-20261126-120000"
    made_.mkdir(parents=True)
    (made_ / "step-00000100.pt").write_bytes(b"w" * 100_000)
    return made_


def torn(entry: Entry) -> None:
    plan = entry.path / "plan.json"
    plan.write_text(plan.read_text()[:40])


def removed_plan(entry: Entry) -> None:
    (entry.path / "plan.json").unlink()


def reads_it(entry: Entry) -> None:
    plan = json.loads((entry.path / "plan.json").read_text())
    at = f"{run_directories.checkpoints_dir()}/demo-20261126-120000/step-00000100.pt"
    (entry.path / "plan.json").write_text(json.dumps({**plan, "command": ["eval.py", at]}))


@for_each("damage", [torn, removed_plan, reads_it])
def test_checkpoints_stay_while_a_plan_is_unknown_or_names_them(folder: Path, damage: Any) -> None:
    first, second = with_checkpoints("demo", folder), with_checkpoints("demo-again", folder)
    damage(second)
    run_removal.remove(first)
    assert (folder / "step-00000100.pt").exists()
    shutil.rmtree(second.path)


@pytest.mark.parametrize("name", ["d\u00e9mo", 'a "demo"', "back\\slash"])
def test_checkpoints_of_any_name_stay_while_a_plan_names_them(name: str) -> None:
    folder = run_directories.checkpoints_dir() / name
    folder.mkdir(parents=True, mode=0o700)
    with_checkpoints("demo", folder)
    with_checkpoints("demo-again", folder)
    assert main(["rm", "demo", "--yes"]) == 0
    assert folder.is_dir()
    assert main(["rm", "demo-again", "--yes"]) == 0
    assert not folder.exists()


def test_checkpoints_stay_while_a_restart_of_another_run_named_them(folder: Path) -> None:
    first, second = with_checkpoints("demo", folder), made("other")
    restarted = AttemptStarted(2, "restart", 1, (RankPlace(0, 0),), {"RESUME": str(folder)})
    with (second.path / journal.NAME).open("ab") as file:
        file.write(msgspec.json.encode(Stamped(NOW, restarted, 9)) + b"\n")
    run_removal.remove(first)
    assert (folder / "step-00000100.pt").exists()


def test_a_copy_takes_no_checkpoints(folder: Path) -> None:
    entry = with_checkpoints("demo", folder)
    entry.path.rename(entry.path.with_name("mycopy"))
    assert main(["rm", "mycopy", "--yes"]) == 0
    assert folder.is_dir()


@for_each("named", ["..", ".", "", "../runs", "demo-link"])
def test_only_a_folder_of_their_own_is_removed(folder: Path, named: str) -> None:
    base = folder.parent
    if not (base / "demo-link").is_symlink():
        (base / "demo-link").symlink_to(folder)
    entry = with_checkpoints("demo", f"{base}/{named}")
    run_removal.remove(entry)
    assert (folder / "step-00000100.pt").exists()
    assert run_directories.runs_dir().is_dir()


# --- what is printed, and what is only read ---


def test_every_removal_prints_names_and_directories(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = made("job", kind="hub")
    part = node(hub, 0)
    demo = with_checkpoints("demo", folder)
    assert main(["prune", "--keep", "0", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert main(["rm", "job", "demo", "--yes"]) == 0
    said = capsys.readouterr().out
    for path in (hub.path, part.path, demo.path, folder):
        assert str(path) in shown
        assert str(path) in said
        assert not path.exists()
    assert "removed 2 runs, " in said


def test_a_removal_that_was_cut_off_is_finished_by_the_next_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made("other")
    half = run_directories.runs_dir() / ".removed-half-1"
    (half / "node-0").mkdir(parents=True)
    assert main(["prune", "--keep", "0", "--dry-run"]) == 0
    assert half.is_dir(), "who only asks changes nothing"
    capsys.readouterr()
    assert main(["rm", "other", "--yes"]) == 0
    assert f"Finished a removal that was cut off: {half}" in capsys.readouterr().err
    assert not half.exists()


@pytest.mark.real
def test_what_is_mounted_stays_wherever_it_is(state_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a run and below what is left of a cut removal; also where a path is not ASCII."""
    state = state_home / "sté te"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    entry, theirs = made("mounted"), state_home / "thèse"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years")
    cut = run_directories.runs_dir() / ".removed-cut-1"
    for folder in (entry.path / "data/deep", cut / "data"):
        folder.mkdir(parents=True)
    verb = f'"{sys.executable}" -m distui.tui'
    script = (
        f'mount --bind "{theirs}" "{entry.path}/data/deep" && mount --bind "{theirs}" "{cut}/data" && '
        f"{verb} rm mounted --yes; {verb} prune --keep 0 --yes; test -e '{theirs}/thesis.txt'"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mounts of one's own here")
    assert (
        done.stderr.count(
            f"{entry.path}/data/deep is mounted there, and would be emptied: `umount` it first"
        )
        == 2
    )
    assert f"{cut}/data is mounted there" in done.stderr
    assert done.returncode == 0
    assert (theirs / "thesis.txt").exists()
    assert left() == [".removed-cut-1", entry.record.run]
