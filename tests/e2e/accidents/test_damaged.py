"""One damaged run: it costs what was in the file, the file is named, and no other run is hidden by it."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from distui.runners.run import journal
from distui.runners.run.model import AttemptStarted, Outcome, RankChanged, RunEnded, RunnerStarted
from distui.tui.cli import main

from ..runs import Run, World, kill, removed
from ..written import Attempt, write

DEEP = b'{"a":' * 5000
HUGE = 72 << 20
"""Bytes: more than a document may have."""
COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"
OF_RUNNER = (RunnerStarted, AttemptStarted, RankChanged, RunEnded)
"""Events that a runner reports in a file of its own."""
FILES = ("run.json", "plan.json", "journal.jsonl", "runner.jsonl", "agent.json", "runner.json", "end.json")


def written(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def sparse(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b'{"a":"')
        file.truncate(HUGE)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def newer(path: Path) -> None:
    event = b'{"time":1.0,"seq":7,"event":{"type":"FromTheFuture","x":{}},"more":1}\n'
    path.write_bytes(path.read_bytes() + event * 3)


def reordered(path: Path) -> None:
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": written(b""),
    "zeros": written(bytes(4096)),
    "garbage": written(b"\xff\xfe\x00garbage\n{]\n"),
    "list": written(b"[]\n"),
    "wrong": written(b'{"run":1,"time":"x","event":{"type":"RunEnded"}}\n'),
    "deep": written(DEEP + b"\n"),
    "huge": sparse,
    "folder": as_folder,
    "pipe": as_pipe,
    "loop": as_loop,
    "newer": newer,
    "reordered": reordered,
    "doubled": lambda path: path.write_bytes(path.read_bytes() * 2),
}


@pytest.fixture
def two(world: World) -> tuple[Run, Run]:
    """Two runs that have ended."""
    good, hurt = (
        write(world, "exec", "--name", name, "--", "true", attempts=[Attempt(out=f"said by {name}\n")])
        for name in ("good", "hurt")
    )
    report = [stamped for stamped in journal.read(hurt.path) if isinstance(stamped.event, OF_RUNNER)]
    (hurt.path / "runner.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in report))
    return good, hurt


@pytest.mark.parametrize("file", FILES)
def test_every_damage(world: World, two: tuple[Run, Run], file: str) -> None:
    good, hurt = two
    whole = world.root / "kept"  # beside the run it would be listed as another
    shutil.copytree(hurt.path, whole)
    if not (whole / file).exists():
        (whole / file).write_text("{}\n")
    for name, damage in DAMAGES.items():
        shutil.rmtree(hurt.path)
        shutil.copytree(whole, hurt.path)
        damage(hurt.path / file)
        listed = {one["name"]: one for one in world.distui("ls", "--json").fine().json()}
        assert set(listed) == {"good", "hurt"}, name
        assert {one["state"] for one in listed.values()} == {"succeeded"}, (name, listed)
        assert not listed["good"]["problems"]
        names_it = file in ("run.json", "plan.json", "journal.jsonl") and name != "reordered"
        if names_it and not (file == "run.json" and name in ("newer", "doubled")):
            assert file in " ".join(listed["hurt"]["problems"]), (name, listed["hurt"])
        said = [
            world.distui(*words).fine().out
            for words in (
                ["status", good.id],
                ["status", hurt.id, "--json"],
                ["events", hurt.id],
                ["logs", hurt.id],
                ["status"],  # the newest of all
            )
        ]
        assert "hurt" in "".join(said), name


def test_a_log_that_is_no_file_stops_no_verb(world: World, two: tuple[Run, Run]) -> None:
    """Nothing waits for a pipe that nobody writes into; the log is named."""
    _, hurt = two
    (log,) = hurt.path.glob("node-0/attempt-001/*.out")
    for damage in (as_pipe, as_loop):
        damage(log)
        for verb in ("status", "logs", "diff"):
            assert "hurt" in hurt.distui(verb).fine().out or verb == "logs", (verb, damage)
        done = hurt.distui("diagnose").fine()
        assert log.name in done.out + done.err


def appended(path: Path) -> None:
    """A line behind those that are whole."""
    with path.open("ab") as file:
        file.write(DEEP + b"\n")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (appended, "journal.jsonl has 1 line that cannot be read"),
        (as_folder, "journal.jsonl is not a regular file"),
    ],
)
def test_one_damaged_journal_breaks_no_verb(
    world: World, two: tuple[Run, Run], damage: Callable[[Path], object], sentence: str
) -> None:
    """Verbs of all runs, of another run, of none, of a new one; and of the damaged one itself."""
    _, hurt = two
    damage(hurt.path / "journal.jsonl")
    listed = world.distui("ls").fine()
    assert f"{hurt.id}: damaged: {sentence}" in listed.out
    assert {line.split()[0]: line.split()[1] for line in listed.out.splitlines()[1:3]} == {
        "good": "succeeded",
        "hurt": "succeeded",
    }
    assert world.distui("status").fine().out.split()[1] == "succeeded"
    for words, wanted in (
        (["status", "good"], "good  succeeded"),
        (["events", "good"], "RunEnded"),
        (["logs", "good"], "said by good"),
        (["wait", "good"], ""),
        (["diagnose", "good"], ""),
        (["export", "good", "good.tgz"], "holds good as it ended"),
        (["demo", "--help"], "usage: distui demo"),
        (["exec", "--dry-run", "--", "true"], "true"),
    ):
        done = world.distui(*words).fine()
        assert wanted in done.out, (words, done.out)
        assert sentence not in done.out + done.err, words
    for words in (["status", "hurt"], ["events", "hurt"], ["export", "hurt", "hurt.tgz"]):
        done = world.distui(*words).fine()
        assert sentence in done.out + done.err, (words, done.out, done.err)
    assert "said by hurt" in world.distui("logs", "hurt").fine().out
    assert world.distui("wait", "hurt").fine()
    write(world, "exec", "--name", "new", "--", "true")
    assert {one["name"] for one in world.distui("ls", "--json").fine().json()} == {"good", "hurt", "new"}
    assert f"{hurt.id}: damaged" in world.distui("ls").fine().out


@pytest.mark.real
def test_a_journal_that_may_not_be_read(
    world: World, two: tuple[Run, Run], capfd: pytest.CaptureFixture[str]
) -> None:
    """As another user than root, whom permissions do not stop."""
    if os.getuid():
        pytest.skip("needs root to become another user")
    _, hurt = two
    with world.shell(("ls", "--json"), {}, world.work, io.StringIO()):
        assert main(["ls", "--json"]) == 0  # what it imports may lie where only root can read
        capfd.readouterr()
        for path in (world.root, *world.root.rglob("*")):
            os.chown(path, 65534, 65534)
        (hurt.path / "journal.jsonl").chmod(0)
        child = os.fork()
        if not child:
            os.setgid(65534)
            os.setuid(65534)
            code = main(["ls", "--json"])
            sys.stdout.flush()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    listed = {one["name"]: one for one in json.loads(capfd.readouterr().out)}
    assert {one["state"] for one in listed.values()} == {"succeeded"}
    assert "Permission denied" in " ".join(listed["hurt"]["problems"])


def live(world: World) -> Run:
    run = world.execute(COUNT, "--grace", "1", name="live")
    assert run.wait("running") == 0
    assert run.prints()
    return run


@pytest.mark.real
def test_a_folder_that_is_gone_while_the_run_lives(world: World) -> None:
    run = live(world)
    removed(run.path, world.root)
    assert "its directory is gone" in world.distui("ls").fine().out
    (listed,) = world.distui("ls", "--json").fine().json()
    assert (listed["run"], listed["state"]) == (run.id, "running")
    assert run.status()["state"] == "running", "its agent lives, and knows"
    world.distui("stop", "live", "--yes").fine()
    assert not run.marked()


@pytest.mark.real
def test_a_live_run_whose_files_are_damaged(world: World) -> None:
    """What is damaged is named. The run is read and stopped all the same; what nobody knows is not 0."""
    run = live(world)
    processes = set(run.marked()) - {run.agent_pid()}
    (run.path / "plan.json").write_bytes(b"null")
    assert "plan.json is damaged" in run.distui("status").fine().out
    assert "plan.json is damaged" in run.distui("export", "served.tgz").fine().out
    kill(run.agent_pid())
    (run.path / "plan.json").write_bytes(DEEP)
    (finding,) = [one for one in run.status()["findings"] if one["id"] == "no-agent"]
    assert "plan.json" in finding["text"]
    run.distui("wait", "--timeout", "5").refused(4, "plan.json")
    run.distui("restart", "--yes").refused(1, "plan.json")
    assert run.distui("logs").fine().out
    assert set(run.marked()) == processes

    (run.path / "run.json").write_bytes(b"\xff" * 300)
    for file in ("journal.jsonl", "runner.jsonl", "runner.json"):
        (run.path / file).write_bytes(b"")
    (run.path / "agent.json").unlink()
    (listed,) = world.distui("ls", "--json").fine().json()
    status = run.status()
    assert listed["state"] == status["state"] == "running"
    assert (listed["attempt"], listed["ranks"], status["attempt"], status["plan"]) == (None,) * 4
    assert world.distui("ls").fine().out.splitlines()[1].split()[1:4] == ["running", "n/a", "n/a"]
    said = run.distui("status").fine().out.splitlines()
    assert "live  running  attempt n/a  n/a ranks" in said[0]
    assert ": " not in said
    run.distui("export", "q.tgz").fine()
    said = world.distui("status", "q.tgz").fine().out.splitlines()
    assert "attempt n/a  n/a ranks" in said[0]
    assert said[-1].startswith("it was running when it was exported")
    assert set(run.marked()) == processes
    assert "no process of the run is left" in run.stop().fine().out
    assert not run.marked()


def test_a_bundle_of_a_damaged_run_opens(world: World, two: tuple[Run, Run]) -> None:
    _, hurt = two
    whole = world.root / "kept"
    shutil.copytree(hurt.path, whole)
    before = hurt.status()
    for name, damage in (
        ("run.json", "list"),
        ("run.json", "missing"),
        ("run.json", "loop"),
        ("journal.jsonl", "missing"),
    ):
        shutil.rmtree(hurt.path)
        shutil.copytree(whole, hurt.path)
        DAMAGES[damage](hurt.path / name)
        assert f"not in it: {name} " in hurt.distui("export", "z.tgz", "--force").fine().out
        said = "".join(world.distui(verb, "z.tgz").fine().out for verb in ("logs", "diagnose", "events"))
        assert "hurt" in said
        found = world.distui("status", "z.tgz", "--json").fine().json()
        for key in ("run", "name", "state", "attempt", "exit_code"):
            assert found[key] == before[key], (name, damage, key)
        assert len(found["ranks"]) == len(before["ranks"]), (name, damage)
        assert abs(found["ended"] - before["ended"]) < 5.0, "it does not grow"


def test_a_bundle_says_where_its_own_files_are(world: World, two: tuple[Run, Run]) -> None:
    """And no folder that is gone when it is read; curves that are damaged are named."""
    _, hurt = two
    (hurt.path / "plan.json").write_bytes(b"null")
    (hurt.path / "metrics").mkdir(exist_ok=True)
    (hurt.path / "metrics/1s.jsonl").write_bytes(b"\xff\n" * 9)
    said = hurt.distui("export", "z.tgz").fine().out
    assert "not in it: plan.json is damaged" in said
    assert "not in it: metrics/1s.jsonl has lines that are damaged" in said
    said = world.distui("status", "z.tgz", "--json").fine().out
    assert "plan.json is damaged" in said
    assert "distui-replay" not in said


def test_lines_that_cannot_be_read_are_counted(two: tuple[Run, Run]) -> None:
    _, hurt = two
    journal = hurt.path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"xx\n", *lines[3:]]))
    for words in (["--json"], ["--json", "--follow"]):
        done = hurt.distui("events", *words).fine()
        assert len([json.loads(line) for line in done.out.splitlines()]) == len(lines) - 1
        assert "journal.jsonl has 1 line that cannot be read" in done.err
    journal.unlink()
    done = hurt.distui("events").fine()
    assert (done.out, done.err) == ("", "distui: hurt: journal.jsonl is missing\n")


def test_binary_bytes_in_a_log_do_not_hide_the_findings(world: World) -> None:
    failed = Attempt(Outcome.FAILED, err="ValueError: boom\n", text="rank 0 raised ValueError: boom")
    run = write(world, "exec", "--name", "bad", "--", "true", attempts=[failed])
    (log,) = run.path.glob("node-0/attempt-001/*.out")
    log.write_bytes(bytes(range(256)) * 2)
    done = run.distui("diagnose")
    assert (done.code, done.err) == (1, ""), done.err
    assert "ValueError" in done.out
    assert "diagnose.json" not in run.distui("export", "z.tgz").fine().out
    done = world.distui("diagnose", "z.tgz")
    assert (done.code, done.err) == (1, ""), done.err
    world.distui("diagnose", str(log)).refused(2, "is not text")


def test_a_lost_run_is_diagnosed_as_lost(world: World) -> None:
    run = write(world, "exec", "--name", "live", "--", "true", attempts=[Attempt(outcome=None)])
    done = run.distui("diagnose")
    assert done.code == 1
    assert done.out.startswith("live is lost: neither agent nor runner lives")
    assert "`distui restart live`" in done.out.splitlines()[0]
    assert run.distui("diagnose", "--json").json()["live"]["state"] == "lost"
    run.distui("export", "z.tgz").fine()
    assert world.distui("status", "z.tgz").fine().out.startswith("live  lost  attempt 1")
    assert world.distui("diagnose", "z.tgz").out.startswith("live is lost: ")
    run.stop().fine()
