"""One damaged run: it costs what was in the file, the file is named, and no other run is hidden by it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distui.tui.cli import main

from ..runs import EXAMPLES, Run, World, gone, kill, removed

DEEP = b'{"a":' * 5000
HUGE = 200 << 20
COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"
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
def two(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """Two runs that have ended; verbs are called in this process, for there are many of them."""
    runs = [world.execute(f"print('{name}')\n", name=name) for name in ("good", "hurt")]
    for run in runs:
        assert run.wait() == 0
        assert gone(run.agent_pid())
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "DISTUI_SOCKET_DIR"):
        monkeypatch.setenv(name, world.env[name])
    return runs[0], runs[1]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.long
def test_every_damage(two: tuple[Run, Run], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    good, hurt = two
    whole = hurt.world.root / "kept"  # beside the run it would be listed as another
    shutil.copytree(hurt.path, whole)
    for name, damage in DAMAGES.items():
        damage(hurt.path / file)
        assert main(["ls", "--json"]) == 0, name
        listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
        assert set(listed) == {"good", "hurt"}, name
        assert {one["state"] for one in listed.values()} == {"succeeded"}, (name, listed)
        assert not listed["good"]["problems"]
        if file in ("run.json", "plan.json", "journal.jsonl") and not (
            file == "run.json" and name in ("newer", "doubled")
        ):
            assert file in " ".join(listed["hurt"]["problems"]) or name == "reordered", (
                name,
                listed["hurt"],
            )
        for words in (
            ["status", good.id],
            ["status", hurt.id, "--json"],
            ["events", hurt.id],
            ["logs", hurt.id],
            ["status"],  # the newest of all
        ):
            assert main(words) == 0, (name, words)
        assert "hurt" in capsys.readouterr().out, name
        assert not hurt.marked(), f"{name}: an agent was started"
        shutil.rmtree(hurt.path)
        shutil.copytree(whole, hurt.path)


@pytest.mark.real
@pytest.mark.timeout(120)
def test_a_log_that_is_no_file_stops_no_verb(
    two: tuple[Run, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing waits for a pipe that nobody writes into; the log is named."""
    _, hurt = two
    (log,) = hurt.path.glob("node-0/attempt-001/*.out")
    for damage in (as_pipe, as_loop):
        damage(log)
        for verb in ("status", "logs", "diff"):
            assert main([verb, hurt.id]) == 0, (verb, damage)
            assert "hurt" in capsys.readouterr().out or verb == "logs"
        assert main(["diagnose", hurt.id]) == 0
        assert log.name in "".join(capsys.readouterr())


def appended(path: Path) -> None:
    """A line behind those that are whole."""
    with path.open("ab") as file:
        file.write(DEEP + b"\n")


@pytest.mark.real
@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (appended, "journal.jsonl has 1 line that cannot be read"),
        pytest.param(as_folder, "journal.jsonl is no regular file", marks=pytest.mark.long),
    ],
)
def test_one_damaged_journal_breaks_no_verb(
    world: World, damage: Callable[[Path], object], sentence: str
) -> None:
    """As they are typed: of all runs, of another run, of none, of a new one; and of the damaged one itself."""
    good, hurt = (world.execute(f"print('said by {name}')\n", name=name) for name in ("good", "hurt"))
    for run in (good, hurt):
        assert run.wait() == 0
        assert gone(run.agent_pid())
    damage(hurt.path / "journal.jsonl")
    listed = world.distui("ls").fine()
    assert f"{hurt.id}: damaged: {sentence}" in listed.out
    assert {line.split()[0]: line.split()[1] for line in listed.out.splitlines()[1:3]} == {
        "good": "succeeded",
        "hurt": "succeeded",
    }
    assert world.distui("status").fine().out.split()[1] == "succeeded"
    script = str(EXAMPLES / "plain_ddp.py")
    for words, wanted in (
        (["status", "good"], "good  succeeded"),
        (["events", "good"], "RunEnded"),
        (["logs", "good"], "said by good"),
        (["wait", "good"], ""),
        (["diagnose", "good"], ""),
        (["export", "good", "good.tgz"], "holds good as it ended"),
        (["demo", "--help"], "usage: distui demo"),
        (["plan", "ddp", "--nproc-per-node", "1", "--", script], "strategy ddp"),
    ):
        done = world.distui(*words).fine()
        assert wanted in done.out, (words, done.out)
        assert sentence not in done.out + done.err, words
    for words in (["status", "hurt"], ["events", "hurt"], ["export", "hurt", "hurt.tgz"]):
        done = world.distui(*words).fine()
        assert sentence in done.out + done.err, (words, done.out, done.err)
    assert "said by hurt" in world.distui("logs", "hurt").fine().out
    assert world.distui("wait", "hurt").fine()
    done = world.distui("demo", "--detach", "--nproc-per-node", "1").fine()
    assert sentence not in done.out + done.err
    (new,) = {one["run"] for one in world.distui("ls", "--json").fine().json()} - {good.id, hurt.id}
    demo = Run(world, new, "demo", world.runs / new).healthy()
    assert f"{hurt.id}: damaged" in world.distui("ls").fine().out
    demo.stop().fine()


@pytest.mark.real
def test_a_journal_that_may_not_be_read(two: tuple[Run, Run], capfd: pytest.CaptureFixture[str]) -> None:
    """As another user than root, whom permissions do not stop."""
    if os.getuid():
        pytest.skip("needs root to become another user")
    good, hurt = two
    assert main(["ls", "--json"]) == 0  # what it imports may lie where only root can read
    capfd.readouterr()
    for path in (good.world.root, *good.world.root.rglob("*")):
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


@pytest.mark.parametrize("file", ["plan.json", "run.json", "agent.json", "runner.json", "journal.jsonl"])
@pytest.mark.parametrize("damage", ["missing", "deep", "folder"])
@pytest.mark.parametrize("served", [True, False], ids=["agent", "no-agent"])
@pytest.mark.long
def test_a_live_run_is_seen_and_stopped(world: World, file: str, damage: str, served: bool) -> None:
    run = live(world)
    pids = run.marked()
    agent = run.agent_pid()
    if not served:
        kill(agent)
    DAMAGES[damage](run.path / file)
    (listed,) = world.distui("ls", "--json").fine().json()
    assert (listed["name"], listed["state"]) == ("live", "running"), listed
    status = run.status()
    assert status["state"] == "running", status
    assert run.distui("logs").fine().out
    assert set(run.marked()) == set(pids)
    done = run.stop()
    assert "no process of the run is left" in done.out, done.err
    assert not run.marked()


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
def test_without_plan_and_agent(world: World) -> None:
    """The reason is said; the runner that lives is not hurt by a look."""
    run = live(world)
    kill(run.agent_pid())
    (run.path / "plan.json").write_bytes(DEEP)
    (finding,) = [one for one in run.status()["findings"] if one["id"] == "no-agent"]
    assert "plan.json" in finding["text"]
    assert run.distui("wait", "--timeout", "5").refused(4, "plan.json")
    run.distui("restart", "--yes").refused(1, "plan.json")
    assert len(run.marked()) == 2
    assert "no process of the run is left" in run.stop().fine().out


@pytest.mark.real
def test_files_are_gone_and_nothing_is_known(world: World) -> None:
    """`status` says of a living run what `ls` says, and what nobody knows is no 0."""
    run = live(world)
    kill(run.agent_pid())  # else it may write another event into the journal that was emptied
    for file in ("run.json", "plan.json"):
        (run.path / file).write_bytes(b"\xff" * 300)
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
    run.stop().fine()


@pytest.mark.real
def test_a_served_run_names_its_damaged_plan(world: World) -> None:
    run = live(world)
    (run.path / "plan.json").write_bytes(b"null")
    assert "plan.json is damaged" in run.distui("status").fine().out
    assert "plan.json is damaged" in run.distui("export", "q.tgz").fine().out
    run.stop().fine()


@pytest.mark.real
@pytest.mark.timeout(180)
def test_a_bundle_of_a_damaged_run_opens(
    two: tuple[Run, Run], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, hurt = two
    whole, file = hurt.world.root / "kept", tmp_path / "z.tgz"
    shutil.copytree(hurt.path, whole)
    assert main(["status", hurt.id, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    for name, damage in (
        ("run.json", "list"),
        ("run.json", "missing"),
        ("run.json", "loop"),
        ("journal.jsonl", "missing"),
    ):
        DAMAGES[damage](hurt.path / name)
        assert main(["export", hurt.id, str(file), "--force"]) == 0
        assert f"not in it: {name} " in capsys.readouterr().out
        for verb in ("logs", "diagnose", "events"):
            assert main([verb, str(file)]) == 0, (name, damage, verb)
        assert "hurt" in capsys.readouterr().out
        assert main(["status", str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        for key in ("run", "name", "state", "attempt", "exit_code"):
            assert found[key] == before[key], (name, damage, key)
        assert len(found["ranks"]) == len(before["ranks"]), (name, damage)
        assert abs(found["ended"] - before["ended"]) < 5.0, "it does not grow"
        shutil.rmtree(hurt.path)
        shutil.copytree(whole, hurt.path)


@pytest.mark.real
def test_a_bundle_says_where_its_own_files_are(
    two: tuple[Run, Run], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And no folder that is gone when it is read; curves that are damaged are named."""
    _, hurt = two
    (hurt.path / "plan.json").write_bytes(b"null")
    (hurt.path / "metrics").mkdir(exist_ok=True)
    (hurt.path / "metrics/1s.jsonl").write_bytes(b"\xff\n" * 9)
    assert main(["export", hurt.id, str(tmp_path / "z.tgz")]) == 0
    said = capsys.readouterr().out
    assert "not in it: plan.json is damaged" in said
    assert "not in it: metrics/1s.jsonl has lines that are damaged" in said
    assert main(["status", str(tmp_path / "z.tgz"), "--json"]) == 0
    said = capsys.readouterr().out
    assert "plan.json is damaged" in said
    assert "distui-replay" not in said


@pytest.mark.real
def test_lines_that_cannot_be_read_are_counted(
    two: tuple[Run, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    _, hurt = two
    journal = hurt.path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"xx\n", *lines[3:]]))
    for words in (["events", hurt.id, "--json"], ["events", hurt.id, "--json", "--follow"]):
        assert main(words) == 0
        said = capsys.readouterr()
        assert len([json.loads(line) for line in said.out.splitlines()]) == len(lines) - 1
        assert "journal.jsonl has 1 line that cannot be read" in said.err
    journal.unlink()
    assert main(["events", hurt.id]) == 0
    assert capsys.readouterr() == ("", "distui: hurt: journal.jsonl is missing\n")


@pytest.mark.real
def test_binary_bytes_in_a_log_do_not_hide_the_findings(world: World) -> None:
    run = world.execute("raise ValueError('boom')\n", "--restarts", "0", name="bad")
    assert run.wait() == 1
    (log,) = run.path.glob("node-0/attempt-001/*.out")
    log.write_bytes(bytes(range(256)) * 2)
    done = run.distui("diagnose")
    assert (done.code, done.err) == (1, ""), done.err
    assert "ValueError" in done.out
    assert "diagnose.json" not in run.distui("export", "z.tgz").fine().out
    done = world.distui("diagnose", "z.tgz")
    assert (done.code, done.err) == (1, ""), done.err
    world.distui("diagnose", str(log)).refused(2, "is no text")


@pytest.mark.real
def test_a_lost_run_is_diagnosed_as_lost(world: World) -> None:
    run = live(world)
    for pid in (run.agent_pid(), json.loads((run.path / "runner.json").read_text())["pid"]):
        kill(pid)
    done = run.distui("diagnose")
    assert done.code == 1
    assert done.out.startswith("live is lost: neither agent nor runner lives")
    assert "`distui restart live`" in done.out.splitlines()[0]
    assert run.distui("diagnose", "--json").json()["live"]["state"] == "lost"
    run.distui("export", "z.tgz").fine()
    assert world.distui("status", "z.tgz").fine().out.startswith("live  lost  attempt 1")
    assert world.distui("diagnose", "z.tgz").out.startswith("live is lost: ")
    run.stop().fine()
