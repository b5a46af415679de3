"""The disk of the run directory is full: log lines are lost, the training and the journal are not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ..runs import EXAMPLES, World, until

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
    if event["type"] == "CommandReceived" and event["text"].startswith("CONT"):
        return "asked"
    return "ended" if event["type"] == "RunEnded" else ""


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
    assert [rank["pid"] for rank in later["ranks"]] == pids
    # What happens now is only in the agent's memory, and must reach the journal in its order.
    run.distui("signal", "CONT", "--rank", "1").fine()
    (small.state / "ballast").unlink()
    run.eventually(lambda now: not full(now))
    size = log.stat().st_size
    assert until(lambda: log.stat().st_size > size, 10), "with room the log goes on"
    run.stop().fine()
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    order = [kind for kind in map(telling, told) if kind]
    assert order == ["full", "asked", "room", "ended"], told


def test_a_run_ends_on_a_full_disk(small: World) -> None:
    """The end waits in memory until there is room, and a viewer hears it at once."""
    run = small.execute(
        "import pathlib, sys, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.02)\nsys.exit(5)\n"
    )
    assert run.wait("running") == 0
    fill(small)
    run.eventually(full)
    with small.start("events", run.id, "-f", "--json") as watching:
        (small.work / "go").touch()
        out, err = watching.communicate(timeout=30)
    assert watching.returncode == 0, err
    assert b'"RunEnded"' in out
    (small.state / "ballast").unlink()
    assert run.wait() == 1
    assert until(lambda: b'"RunEnded"' in run.file("journal.jsonl"), 15)
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    assert run.status()["exit_code"] == 5


def test_a_start_on_a_full_disk(small: World) -> None:
    fill(small)
    small.distui("exec", "--", "true").refused(2, "No space left", "free space")
