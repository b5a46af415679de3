"""Every verb's exit codes are those of the table in docs/cli.md, and no verb leaves a traceback on broken streams."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import HANG_S

from distui.tui.cli import EPILOG, parser
from distui.tui.verb_guide import exit_codes

from .runs import World, until
from .written import write

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()

WRONG: dict[str, list[tuple[str, int]]] = {
    "mcp": [("--readonly --allow-control", 2), ("--skill --allow-control", 2), ("--nope", 2)],
    "launch": [("ddp", 2), ("dpd -- x.py", 2), ("ddp -- missing.py", 2)],
    "plan": [("ddp", 2), ("ddp -- missing.py", 2)],
    "lint": [("", 2), ("bad.sh", 1), ("missing.yaml", 2)],
    "exec": [("", 2), ("-- nosuchcmd", 2), ("--detach -- ./x.py", 2)],
    "watch": [("999999999", 3), ("pid", 2)],
    "ls": [("", 0), ("-- x", 2), ("age<2x", 2), ("--sort what", 2)],
    "attach": [("nothing", 3)],
    "status": [("", 3), ("nothing", 3)],
    "events": [("nothing", 3)],
    "wait": [("nothing", 3), ("nothing --timeout soon", 2), ("nothing --until then", 2)],
    "logs": [("nothing", 3), ("nothing --rank -1", 2)],
    "nccl": [("", 2), ("LOUD", 2), ("nothing INFO", 3), ("nothing INFO --subsys NOPE", 2)],
    "restart": [("nothing --yes", 3), ("nothing", 3), ("nothing --env RANK=1 --yes", 2)],
    "signal": [("", 2), ("NOPE", 2), ("nothing USR1", 3)],
    "dump": [("", 2), ("nothing everything", 2), ("nothing stacks", 3), ("nothing stacks --record", 2)],
    "stop": [("nothing", 3), ("nothing --yes", 3)],
    "candidates": [("--gpus", 2)],
    "down": [("nothing --yes x", 3)],
    "autostop": [("nothing", 2), ("nothing 5", 3), ("nothing soon", 2)],
    "rerun": [("nothing", 3), ("nothing --env K", 3)],
    "presets": [("", 0), ("show dpd", 2), ("show", 2), ("what", 2)],
    "trust": [("missing.toml", 2)],
    "notify": [("", 0), ("test", 2), ("test nothing", 2), ("log nothing", 3), ("what", 2), ("list x", 2)],
    "advise": [("--params 7 --gpus 8xA100-80GB", 2), ("--params 7000B --gpus 1xA100-80GB", 1), ("", 2)],
    "doctor": [("--port many", 2)],
    "diagnose": [("missing.log", 3), ("bad.log", 1), ("good.log", 0)],
    "export": [("nothing", 2), ("nothing out.tar.gz", 3)],
    "replay": [("nothing", 3)],
    "metrics": [("nothing", 3)],
    "diff": [("", 2), ("nothing other", 3), ("nothing@x other", 2)],
    "note": [("", 2), ("nothing x", 3)],
    "tag": [("", 2), ("nothing +x", 3), ("nothing", 3)],
    "rm": [("", 2), ("nothing", 3)],
    "prune": [("", 2), ("--older-than soon", 2)],
    "settings": [("", 0), ("--example", 0), ("theme", 2)],
    "share": [("nothing", 2), ("nothing --user nosuchuser", 2), ("nothing --user root", 3), ("nothing --off", 3)],
    "serve": [("nothing", 3), ("nothing --port many", 2), ("nothing --port 65536", 3)],
    "profile": [("nothing", 3), ("nothing --steps many", 2)],
    "man": [("", 0), ("launhc", 2), ("launch --dir x", 2)],
    "completion": [("ksh", 2), ("zsh", 0)],
    "demo": [("--steps -1", 2), ("--python /nonexistent/python", 2), ("--preset ddp", 2)],
    "example": [("", 0), ("x", 2)],
    "uninstall": [("-n", 0), ("--host a;b", 2), ("--nope", 2)],
}  # fmt: skip


def verbs() -> set[str]:
    (found,) = [one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)]
    return set(found.choices)


def codes() -> set[int]:
    """Of the table."""
    table = PAGE.partition("## Exit codes")[2].partition("\n## ")[0]
    return {
        int(code)
        for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
        for code in row.split(", ")
    }


def test_every_verb_is_tried_and_described() -> None:
    assert verbs() == WRONG.keys()
    for verb in verbs():
        assert re.search(rf"^distui {verb}\b", PAGE, re.MULTILINE), f"docs/cli.md has no `distui {verb}`"


def test_the_table_is_that_of_the_help() -> None:
    assert (
        codes()
        == {int(code) for code in re.findall(r"\b(\d+) +[`\w]", EPILOG)}
        == {0, 1, 2, 3, 4, 5, 6, 124, 130, 141}
    )


@pytest.fixture(scope="module")
def somebody() -> Iterator[World]:
    world = World()
    world.script("x.py", "print('hello')\n")
    world.script("bad.sh", "torchrun --nprocs-per-node 2 x.py\n")
    world.script("bad.log", "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: bad data\n")
    world.script("good.log", "step 1 loss 2.0\n")
    yield world
    world.close()


def check_mistake(world: World, verb: str, words: str, code: int) -> None:
    """One sentence on stderr, and an exit code that the verb's help has."""
    before, dashes, rest = f"{verb} {words}".partition("-- ")
    done = world.distui(*before.split(), *(["--", *rest.split()] if dashes else []))
    case = (verb, words, done.code, done.err, done.out[-500:])
    assert done.code == code, case
    assert code in exit_codes(verb), f"the help of {verb} has no code {code}"
    assert "Traceback" not in done.err, case
    if code >= 2:
        assert not done.out, case
        assert len(done.err.splitlines()) == 1, case
        assert done.err.startswith("distui: "), case
    assert not world.runs.exists() or not list(world.runs.glob("*/run.json")), "nothing was started"


def test_a_mistake_has_its_code_and_a_sentence(somebody: World) -> None:
    for verb, cases in sorted(WRONG.items()):
        for words, code in cases:
            check_mistake(somebody, verb, words, code)


def test_an_empty_name_means_no_run(world: World) -> None:
    """As a shell writes it where a variable is not set: neither the newest run nor the only one is meant."""
    run = write(world, "exec", "--", "true")
    for verb in ("status", "stop --yes", "restart --yes", "logs", "diagnose"):
        for name in ("", " "):
            done = world.distui(*verb.split(), name)
            assert (done.code, len(done.err.splitlines())) == (3, 1), (verb, done.code, done.err)
            start = "the" if verb == "diagnose" else "distui: The"  # which names the file first
            assert f"{start} name of the run is empty" in done.err, verb
    assert run.status()["state"] == "succeeded"


DEAF = """
import itertools, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in itertools.count():
    print("line", number, "x" * 3000, flush=True)
    time.sleep(0.002)
"""


@pytest.mark.real
def test_an_interrupted_command_leaves_at_once_and_the_run_goes_on(world: World) -> None:
    """A launch whose output nobody reads, and restarts that wait for a rank that ignores SIGTERM."""
    script = world.script("deaf.py", DEAF)
    launch = world.start("exec", "--name", "deaf", "--", sys.executable, "-u", script)
    try:
        assert until(lambda: "line 100 " in world.distui("logs", "deaf").out), "far more than a pipe holds"
        launch.send_signal(signal.SIGINT)
        assert launch.wait(HANG_S) == 130
    finally:
        launch.kill()
        launch.communicate()
    run = world.newest_run()
    assert run.status()["state"] == "running"
    for number, how in enumerate((signal.SIGINT, signal.SIGTERM), 1):
        restart = world.start("restart", run.id, "--yes")
        assert until(lambda: len(run.of("CommandReceived")) == number)  # noqa: B023
        restart.send_signal(how)
        _, said = restart.communicate(timeout=HANG_S)
        assert restart.returncode == 128 + how
        assert said == b""


@pytest.mark.real
def test_a_reader_that_went_away_is_141_and_a_full_disk_1(somebody: World) -> None:
    read, write = os.pipe()
    os.close(read)
    disk_full = f"distui: Cannot write to standard output: {os.strerror(28)}\n"
    with open("/dev/full", "wb") as full:
        for words in (["ls", "--json"], ["help", "launch"], ["--version"]):
            for stdout, code, err in ((write, 141, ""), (full, 1, disk_full)):
                done = somebody.binary(*words, stdout=stdout)
                assert (done.code, done.err) == (code, err), words
        for words, code in ((["ls", "age<2x"], 2), (["frobnicate"], 2), (["status", "nothing"], 3)):
            for stderr in (write, full):
                done = somebody.binary(*words, stderr=stderr)
                assert (done.code, done.out) == (code, ""), f"nobody can read why {words} is refused"
    os.close(write)


@pytest.mark.real
def test_a_follower_ends_with_its_reader_though_the_run_is_silent(world: World) -> None:
    """Who follows into a file or an open pipe stays until the run has ended."""
    run = world.execute("import time\nprint('hello')\ntime.sleep(600)\n")
    assert until(lambda: "hello" in run.distui("logs").out)
    os.mkfifo(world.work / "pipe")
    both = os.open(world.work / "pipe", os.O_RDWR)  # it can be read at once, and for ever
    with (world.work / "file").open("wb") as file:
        staying = [world.start("events", run.id, "-f", stdout=stdout) for stdout in (both, file)]
    followers = [
        world.start(*words)
        for words in (
            ["events", run.id, "-f"], ["logs", run.id, "-f"], ["logs", run.id, "-f", "--json", "--grep", "hello"],
        )
    ]  # fmt: skip
    ours, theirs = socket.socketpair()  # as some servers of ssh have it
    followers.append(world.start("events", run.id, "--follow", stdout=theirs))
    theirs.close()
    for follower in followers[:-1]:
        assert follower.stdout is not None
        assert follower.stdout.readline()
        follower.stdout.close()
    assert b"RunCreated" in ours.recv(4096)
    ours.close()
    try:
        for follower in followers:
            assert follower.wait(HANG_S) == 141, follower.args
            assert follower.stderr is not None
            assert follower.stderr.read() == b""
        assert until(lambda: "RankChanged" in (world.work / "file").read_text())
        run.stop("--grace", "1").fine()
        assert [each.wait(HANG_S) for each in staying] == [0, 0]
    finally:
        for follower in (*followers, *staying):
            follower.kill()
            follower.wait()
    os.close(both)
    assert "RunEnded" in (world.work / "file").read_text()
