"""Removal of runs: only ended ones, only below the runs' own directory, through no link."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from distui.runners.removal import directory_removal, run_removal
from distui.runners.removal.directory_trees import size_of
from distui.runners.run import host_processes, journal, own_runs, run_directories, run_notes
from distui.runners.run.errors import RunError
from distui.runners.run.host_processes import Living
from distui.runners.run.model import CommandReceived, PlanSummary, RunCreated, RunEnded, RunPhase, Stamped
from distui.runners.run.run_directories import Entry
from distui.tui.cli import main

NOW = time.time()


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DISTUI_SOCKET_DIR", str(socket_folder))
    monkeypatch.setattr(run_removal, "LEAVING_S", 0.2)
    return tmp_path


def made(
    name: str,
    ended: float | None = 60.0,
    phase: RunPhase = RunPhase.SUCCEEDED,
    began: float | None = None,
    **fields: Any,
) -> Entry:
    """A run that began and ended so many seconds ago; None: its files do not say that it has ended.

    `fields`: of its record.
    """
    began = (ended or 0.0) + 1000.0 if began is None else began
    record = structs.replace(run_directories.new_record(name), created=NOW - began, **fields)
    path = run_directories.runs_dir() / record.run
    path.mkdir(parents=True, mode=0o700)
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o700)
    (path / "run.json").write_bytes(msgspec.json.encode(record))
    own_runs.write_mark(path)
    if record.kind == "hub":
        (path / "nodes.json").write_text("{}")
    (path / "node-0").mkdir()
    (path / "node-0/rank-0.out").write_text("step\n" * 5000)
    plan = {"run": record.run, "launcher": "torchrun", "cwd": "/", "argv": [], "env": {}}
    (path / "plan.json").write_text(json.dumps(plan))
    created = RunCreated(record.run, name, record.host, PlanSummary("ddp", "ddp", "torchrun", "train.py"))
    events = [Stamped(time=NOW - began, event=created, seq=1)]
    if ended is not None:
        events.append(Stamped(time=NOW - ended, event=RunEnded(phase, 0, str(phase)), seq=2))
    (path / journal.NAME).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    entry = run_directories.at(path)
    assert entry is not None
    return entry


def untouched(entry: Entry, seconds: float) -> Entry:
    """The run as if no file of it had changed for so long."""
    for path in (*entry.path.rglob("*"), entry.path):
        os.utime(path, (NOW - seconds, NOW - seconds))
    return entry


def left() -> list[str]:
    return sorted(os.listdir(run_directories.runs_dir()))


def test_the_checkpoints_of_a_demo_go_with_its_last_run(state_home: Path) -> None:
    """Only from distui's own folder for them: where a user's training saves is the user's."""
    base = run_directories.checkpoints_dir()
    demo, theirs = base / "demo-20261126-120000", state_home / "mine"
    for folder in (demo, theirs, base / "demo-other"):
        folder.mkdir(parents=True)
        (folder / "step-00000100.pt").write_bytes(b"w" * 100_000)
    first, again, other = made("demo"), made("demo-again"), made("train")
    for entry, folder in ((first, demo), (again, demo), (other, theirs)):
        plan = json.loads((entry.path / "plan.json").read_text())
        plan["command"] = ["chargpt.py", "--checkpoint-dir", str(folder)]
        (entry.path / "plan.json").write_text(json.dumps(plan))
    run_removal.remove(first)
    assert demo.is_dir(), "another run goes on from them"
    assert run_removal.remove(again).size > 100_000
    assert not demo.exists()
    run_removal.remove(other)
    assert (theirs / "step-00000100.pt").exists()
    assert sorted(os.listdir(base)) == ["demo-other"]


def test_an_ended_run_is_removed_whole(state_home: Path) -> None:
    gone, stays = made("gone"), made("stays")
    socket = state_home / "sockets" / f"{gone.record.run8}.sock"
    socket.parent.mkdir(mode=0o700)
    socket.write_text("no socket: it stays")
    assert run_removal.remove(gone).size >= 20_000
    assert left() == [stays.record.run]
    assert socket.exists()


def test_a_live_run_is_refused_with_what_to_type() -> None:
    live = made("live")
    lock = os.open(live.path / "agent.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(RunError, match=r"still serves run live|is live"):
            run_removal.remove(live)
    finally:
        os.close(lock)
    assert left() == [live.record.run]


def test_a_run_that_starts_or_stops_is_refused() -> None:
    """Also while no process of it is here: the agent comes in a moment, or the ranks are on other nodes."""
    starting = made("starting", ended=None)
    with run_directories.start_lock(), pytest.raises(RunError, match=r"is live \(starting\)"):
        run_removal.remove(starting)
    stopping = made("stopping", ended=None, kind="hub")
    stop = Stamped(NOW, CommandReceived("s", "stop requested", "stop"), seq=2)
    with (stopping.path / journal.NAME).open("ab") as file:
        file.write(msgspec.json.encode(stop) + b"\n")
    with pytest.raises(RunError, match=r"is live \(stopping\)"):
        run_removal.remove(stopping)
    assert starting.path.is_dir()
    assert stopping.path.is_dir()


def test_a_lost_run_is_refused_while_one_of_its_ranks_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = made("lost", ended=None)
    living = {lost.path.name: Living(marked=[4_000_000_000])}
    monkeypatch.setattr(host_processes, "survey", lambda base: living)
    with pytest.raises(RunError, match="1 process of run lost still live"):
        run_removal.remove(lost)
    assert left() == [lost.record.run]


def test_the_parts_of_a_run_on_several_nodes_go_with_it() -> None:
    hub = made("job", kind="hub")
    run, run8 = hub.record.run, hub.record.run8
    for node in (0, 1):
        made("job", run=f"{run}.n{node}", run8=f"{run8}n{node}", kind="node", node=node, whole=run)
    assert run_removal.remove(hub).size >= 60_000
    assert left() == []


def test_what_a_link_points_at_stays(state_home: Path) -> None:
    outside = state_home / "precious"
    outside.mkdir()
    (outside / "model.pt").write_text("weights")
    entry = made("linked")
    (entry.path / "checkpoints").symlink_to(outside)
    run_removal.remove(entry)
    assert (outside / "model.pt").read_text() == "weights"
    kept = made("moved")
    elsewhere = state_home / "elsewhere"
    kept.path.rename(elsewhere)
    kept.path.symlink_to(elsewhere)
    with pytest.raises(RunError, match="is a link"):
        run_removal.remove(kept)
    assert (elsewhere / "run.json").exists()


def test_a_size_counts_no_link(state_home: Path) -> None:
    big = state_home / "big"
    big.write_bytes(b"x" * 1_000_000)
    entry = made("small")
    (entry.path / "link").symlink_to(big)
    (entry.path / "loop").symlink_to(entry.path)
    assert size_of(entry.path) < 500_000


def test_a_removal_that_was_cut_off_is_no_run_and_is_finished() -> None:
    entry = made("half")
    (run_directories.runs_dir() / f".removed-{entry.path.name}-1").mkdir()
    entry.path.rename(run_directories.runs_dir() / f".removed-{entry.path.name}")
    assert run_directories.entries() == []
    assert [line.partition(": ")[0] for line in directory_removal.sweep()] == [
        "finished a removal that was cut off"
    ] * 2
    assert left() == []


def test_a_file_that_cannot_be_removed_is_named_once_and_all_else_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with a bind mount on it or `chattr +i`; what to do about it depends on the reason."""
    one, two = made("one"), made("two")
    for rank in range(1, 3):
        shutil.copy(two.path / "node-0/rank-0.out", two.path / f"node-0/rank-{rank}.out")
    stuck = {"plan.json": errno.EPERM}
    unlink = os.unlink

    def take(name: str, *, dir_fd: int | None = None) -> None:
        if name in stuck:
            raise OSError(stuck[name], os.strerror(stuck[name]))
        unlink(name, dir_fd=dir_fd)

    def said(*words: str) -> str:
        assert main([*words, "--yes"]) == 1
        out, err = capsys.readouterr()
        assert out == "removed 0 runs, 0B freed\n"
        return err

    monkeypatch.setattr(os, "unlink", take)
    err = said("rm", "one")
    (trash,) = (path for path in run_directories.runs_dir().iterdir() if path != two.path)
    assert trash.name.startswith(f".removed-{one.path.name}")
    assert [path.name for path in trash.rglob("*")] == ["plan.json"]
    assert err == (
        f"distui: {trash}/plan.json cannot be removed (Operation not permitted); the rest of the run was removed: "
        "`chattr -i` it, then the next `distui rm` or `distui prune` removes it, too\n"
    )
    stuck.clear()
    stuck.update({"rank-1.out": errno.EBUSY, "rank-2.out": errno.EBUSY})
    err = said("rm", "two")
    assert f"Finished a removal that was cut off: {trash}" in err
    assert "/node-0/rank-" in err
    assert "and 1 other file cannot be removed (Device or resource busy)" in err
    assert ": `umount` it, then" in err
    stuck.clear()
    assert main(["prune", "--failed", "--yes"]) == 0
    assert left() == []


def test_pruning_takes_what_every_condition_names(capsys: pytest.CaptureFixture[str]) -> None:
    day = 86400.0
    made("d1", day, RunPhase.FAILED)
    made("d5", 5 * day)
    made("d40", 40 * day, RunPhase.FAILED)
    untouched(made("d50", ended=None, began=60 * day), 50 * day)
    made("d60", 60 * day, RunPhase.STOPPED)

    def names(*conditions: str) -> list[str]:
        capsys.readouterr()
        assert main(["prune", "--dry-run", "--json", *conditions]) == 0
        return [run["name"] for run in json.loads(capsys.readouterr().out)["would_remove"]]

    assert names("--older-than", "30d") == ["d40", "d50", "d60"]
    assert names("--keep", "3") == ["d50", "d60"]
    assert names("--failed") == ["d1", "d40", "d50"]
    assert names("--older-than", "30d", "--keep", "3", "--failed") == ["d50"]
    assert names("--keep", "0") == ["d1", "d5", "d40", "d50", "d60"]
    assert names("--keep", "99") == []


def test_rm_and_prune_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    made("old", 40 * 86400.0, RunPhase.FAILED)
    made("new", 60.0)
    assert main(["rm", "old"]) != 0
    assert "add --yes" in capsys.readouterr().err
    assert main(["prune"]) == 2
    assert "add --older-than 30d, --keep 20 or --failed" in capsys.readouterr().err
    assert main(["prune", "--older-than", "30d", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "would remove 1 run" in text
    assert "old" in text
    assert len(left()) == 2
    assert main(["prune", "--older-than", "30d", "--yes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in document["removed"]] == ["old"]
    assert document["freed_bytes"] > 20_000
    assert main(["rm", "new", "--yes"]) == 0
    assert left() == []
    assert main(["rm", "new", "--yes"]) == 3
    for wrong in ("30", "d", "-1d", "30x", "nand"):
        with pytest.raises(SystemExit):
            main(["prune", f"--older-than={wrong}"])


def test_one_live_run_keeps_all_that_were_named(capsys: pytest.CaptureFixture[str]) -> None:
    ended, live = made("ended"), made("live")
    lock = os.open(live.path / "runner.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert main(["rm", "ended", "live", "--yes"]) == 2
    finally:
        os.close(lock)
    assert "run live" in capsys.readouterr().err
    assert ended.record.run in left()


def test_a_damaged_run_is_listed_and_can_be_removed(capsys: pytest.CaptureFixture[str]) -> None:
    entry = made("damaged")
    (entry.path / "run.json").write_bytes(b"\xff\x00garbage")
    assert main(["ls"]) == 0
    assert "damaged" in capsys.readouterr().out
    assert main(["rm", entry.record.run, "--yes"]) == 0
    assert left() == []


def test_pruning_passes_over_links_and_what_is_tagged_keep(
    state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious, moved, gone, copied = made("precious"), made("moved"), made("gone"), made("copied")
    renamed = run_directories.runs_dir() / "20260102-030405-other-0123abcd"
    for target in (run_directories.runs_dir() / "backup-of-copied", renamed):
        shutil.copytree(copied.path, target)
    named = run_directories.runs_dir() / "20260102-030405-thesis-0123abcd"
    named.mkdir()
    (named / "thesis.tex").write_text("x")
    run_notes.tag(precious.path, ["keep"], [])
    elsewhere = state_home / "elsewhere"
    moved.path.rename(elsewhere)
    moved.path.symlink_to(elsewhere)
    before = sorted(os.listdir(elsewhere))
    (run_directories.runs_dir() / "a-folder-of-mine").mkdir()
    (run_directories.runs_dir() / "a-folder-of-mine/thesis.tex").write_text("x")
    assert main(["prune", "--keep", "0", "--yes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert ({run["name"] for run in document["removed"]}, document["failed"]) == ({"copied", "gone"}, [])
    assert sorted(os.listdir(elsewhere)) == before, "a lock was made in the target of a link"
    assert left() == sorted(
        [
            precious.record.run,
            moved.record.run,
            "a-folder-of-mine",
            "backup-of-copied",
            named.name,
            renamed.name,
        ]
    )
    assert gone.record.run not in left()
    assert main(["rm", "precious", "--yes"]) == 0, "who names a run means it"


def test_a_run_that_comes_to_life_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent takes its lock between the last look and the removal."""
    entry = made("lazarus")
    check, held = directory_removal.removable_size, list[int]()

    def late(path: Path) -> int:
        held.append(os.open(entry.path / "agent.lock", os.O_RDWR | os.O_CREAT))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
        return check(path)

    monkeypatch.setattr(run_removal, "removable_size", late)
    with pytest.raises(RunError, match="has just started"):
        run_removal.remove(entry)
    assert left() == [entry.record.run]
    os.close(held[0])


@pytest.mark.real
def test_two_prunes_at_once_remove_each_run_once() -> None:
    for number in range(12):
        made(f"run{number}")
    words = [sys.executable, "-m", "distui.tui", "prune", "--keep", "0", "--yes", "--json"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    documents = [json.loads(out) for out, _ in outputs]
    assert [err for _, err in outputs] == [b"", b""]
    assert [document["failed"] for document in documents] == [[], []]
    names = [run["name"] for document in documents for run in document["removed"]]
    assert sorted(names) == sorted({f"run{number}" for number in range(12)})
    assert left() == []


@pytest.mark.real
def test_what_is_mounted_in_a_run_is_not_emptied(state_home: Path) -> None:
    entry, theirs = made("mounted"), state_home / "theirs"
    theirs.mkdir()
    (theirs / "model.pt").write_text("weights")
    (entry.path / "data set").mkdir()
    script = f'mount --bind "{theirs}" "{entry.path}/data set" && "{sys.executable}" -m distui.tui rm mounted --yes'
    words = ["unshare", "-rm", "sh", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mounts of one's own here")
    assert "would be emptied" in done.stderr
    assert (theirs / "model.pt").exists()
    assert left() == [entry.record.run]
