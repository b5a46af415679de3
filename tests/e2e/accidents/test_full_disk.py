"""The disk of the run directory is full: log lines are lost, the training and the journal are not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from each import for_each
from patience import HANG_S

from distui.runners.agent import checkpoint_disk

from ..runs import EXAMPLES, World, kill, until
from ..written import Attempt, write

SIZE = 6 << 20


@pytest.fixture
def small(world: World) -> Iterator[World]:
    """A user whose state directory is a file system of 6 MiB."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(world.state)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield world
    finally:
        world.stop_all()
        subprocess.run(["umount", "-l", str(world.state)], check=True)


def fill(world: World) -> None:
    """Take every byte that is left."""
    with (world.state / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    ballast.write(b"x" * size)
            except OSError:
                continue


def full(status: dict[str, Any]) -> bool:
    return any(finding["id"] == "disk-full" for finding in status["findings"])


def telling(told: dict[str, Any]) -> str:
    """What an event says about the accident; "" for all others."""
    event = told["event"]
    if event["type"] == "FindingRaised" and event["finding"]["id"] == "disk-full":
        return "full"
    if event["type"] == "FindingCleared" and event["id"] == "disk-full":
        return "room"
    if event["type"] == "CommandReceived" and "CONT" in event["text"]:
        return "asked"
    return "ended" if event["type"] == "RunEnded" else ""


@pytest.mark.long
@pytest.mark.torch
def test_training_goes_on(small: World) -> None:
    script = str(EXAMPLES / "plain_ddp.py")
    args = ("--step-delay", "0.02", "--log-every", "1")
    run = small.run("launch", "ddp", "--nproc-per-node", "2", "--", script, *args).healthy()
    pids = run.pids()
    fill(small)
    status = run.eventually(full)
    assert status["state"] == "running"
    log = run.path / "node-0/attempt-001/rank-0.out"
    size, steps = log.stat().st_size, [rank["step"] for rank in status["ranks"]]
    later = run.eventually(
        lambda now: all(
            rank["step"] and rank["step"] > step + 20
            for rank, step in zip(now["ranks"], steps, strict=True)
        )
    )
    assert log.stat().st_size <= size + 4096, "a full disk takes no more lines"
    stacks = run.distui("dump", "stacks").fine().out
    assert "plain_ddp.py" in stacks, "not empty, which would be read as no Python"
    assert [rank["pid"] for rank in later["ranks"]] == pids
    # What happens now is only in the agent's memory, and must reach the journal in its order.
    run.distui("signal", "CONT", "--rank", "1").fine()
    (small.state / "ballast").unlink()
    run.eventually(lambda now: not full(now))
    size = log.stat().st_size
    assert until(lambda: log.stat().st_size > size), "with room the log goes on"
    run.stop().fine()
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    order = [kind for kind in map(telling, told) if kind]
    assert order == ["full", "asked", "room", "ended"], told


@pytest.mark.real
def test_a_run_ends_on_a_full_disk(small: World) -> None:
    """The end waits in memory until there is room, and a viewer hears it at once."""
    run = small.execute(
        "import pathlib, sys, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.02)\nsys.exit(5)\n"
    )
    assert run.wait("running") == 0
    fill(small)
    run.eventually(full)
    with small.start("events", run.id, "-f", "--json") as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline(), "it is connected"
        (small.work / "go").touch()
        out, err = watching.communicate(timeout=HANG_S)
    assert watching.returncode == 0, err
    assert b'"RunEnded"' in out
    (small.state / "ballast").unlink()
    assert run.wait() == 1
    assert until(lambda: b'"RunEnded"' in run.file("journal.jsonl"))
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    assert run.status()["exit_code"] == 5


@pytest.mark.real
def test_a_start_on_a_full_disk(small: World) -> None:
    fill(small)
    small.distui("exec", "--", "true").refused(2, "No space left", "free space")
    assert not [path for path in small.runs.iterdir() if path.is_dir()], (
        "nothing is left of what never began"
    )


COUNT = "import time\nfor n in range(100000):\n    time.sleep(0.05)\n"


@contextlib.contextmanager
def kept_full(world: World) -> Iterator[None]:
    """Other programs take every byte that becomes free, as chatty ranks do; then all of it is given back."""
    over = threading.Event()

    def take() -> None:
        while not over.wait(0.001):
            fill(world)

    fill(world)
    other = threading.Thread(target=take)
    other.start()
    try:
        yield
    finally:
        over.set()
        other.join()
        (world.state / "ballast").unlink()


@pytest.mark.long
@pytest.mark.torch
def test_no_command_on_a_full_disk_is_lost(small: World) -> None:
    """The agent is killed twice, once in a restart: what was asked and what came of it is in the journal, once."""
    run = small.ddp("--grace", "2").healthy()
    with kept_full(small):
        run.eventually(full)
        for _ in range(2):
            assert "NCCL_DEBUG=INFO" in run.distui("nccl", "INFO").fine().out
            assert "restarted: attempt" in run.distui("restart", "--yes").fine().out
        kill(run.agent_pid())
        assert run.status()["attempt"] == 3, "the next agent knows them, though the disk is full"
        asking = small.start("restart", run.id, "--yes")
        assert until(lambda: run.file("journal.jsonl").count(b'"verb":"restart"') == 3, every=0.002)
        kill(agent := run.status()["agent_pid"])
        _, err = asking.communicate(timeout=HANG_S)
        assert asking.returncode == 0 or (asking.returncode == 5 and b"is unknown if" in err), err
        assert run.status()["agent_pid"] != agent
        run.eventually(lambda now: now["state"] == "running")
        assert "NCCL_DEBUG=WARN" in run.distui("nccl", "WARN").fine().out
    run.eventually(lambda now: not full(now))
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    events = [one["event"] for one in told]
    asked = [event for event in events if event["type"] == "CommandReceived"]
    done = {event["id"]: event["ok"] for event in events if event["type"] == "CommandDone"}
    assert [event["verb"] for event in asked] == ["nccl", "restart", "nccl", "restart", "restart", "nccl"]
    assert sorted(done) == sorted(event["id"] for event in asked)
    assert sum(event["type"] == "CommandDone" for event in events) == len(asked)
    interrupted = done[asked[4]["id"]]
    assert [done[event["id"]] for event in asked] == [True] * 4 + [interrupted, True]
    assert sum(event["type"] == "AttemptStarted" for event in events) == 3 + interrupted, (
        "it is told as it was"
    )
    levels = [event["level"] for event in events if event["type"] == "NcclChanged"]
    assert levels == ["INFO", "INFO", "WARN"]
    run.stop().fine()


@pytest.mark.real
def test_stop_on_a_full_disk_without_an_agent(small: World) -> None:
    run = small.execute(COUNT)
    assert run.wait("running") == 0
    fill(small)
    kill(run.agent_pid())
    assert run.stop("--grace", "2").code == 0
    assert not run.marked()
    (small.state / "ballast").unlink()
    assert run.status()["state"] == "stopped"


@pytest.mark.real
def test_a_lost_run_on_a_read_only_file_system(small: World) -> None:
    run = write(small, "exec", "--name", "night", "--", "true", attempts=[Attempt(outcome=None)])
    mount(small, "remount,ro")
    assert run.status()["state"] == "lost"
    assert run.name in small.distui("ls").fine().out
    assert "cannot be written" in (said := run.stop()).out + said.err
    mount(small, "remount,rw")
    assert run.stop().code == 0
    assert run.status()["state"] == "stopped"


def mount(world: World, options: str) -> None:
    subprocess.run(["mount", "-o", options, str(world.state)], check=True, capture_output=True)


MIB = 1 << 20


@for_each(
    "free, size, wanted",
    [
        (
            2 * MIB,
            3 * MIB,
            ("low", "only 2.0 MiB are free where the checkpoints go, and the newest takes 3.0 MiB"),
        ),
        (0, 3 * MIB, ("full", "the disk of the checkpoints is full")),
        (1000 * MIB, 3 * MIB, None),
        (1000 * MIB, None, None),
    ],
)
def test_the_disk_of_the_checkpoints(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    size: int | None,
    wanted: tuple[str, str] | None,
) -> None:
    """It is watched where it is another than that of the run directory."""
    disk = checkpoint_disk.place_of("ckpt/step-10", str(tmp_path))
    assert disk == tmp_path, "what is there of it"
    about = SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=2000 * MIB)
    monkeypatch.setattr(os, "statvfs", lambda _: about)
    assert checkpoint_disk.finding_of(disk, tmp_path, 0, size) is None, "the sampler watches that one"
    found = checkpoint_disk.finding_of(disk, Path("/proc"), 0, size)
    assert (found and (found.id.removeprefix("disk-checkpoints-"), found.text)) == wanted
