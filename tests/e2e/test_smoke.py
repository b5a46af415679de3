"""One real run of each kind, for `make test`: a training through all that happens to one, and a command."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from .runs import DISTUI, EXAMPLES, Run, World, alive, kill, until
from .screen import Screen

pytestmark = pytest.mark.torch
LAUNCH = ("--nproc-per-node", "2", "--set", "restart.backoff_s=0.2", "--grace", "20", "--")


@pytest.mark.smoke
@pytest.mark.xdist_group("smoke")
def test_a_training_is_launched_attached_to_restarted_adopted_diagnosed_and_stopped(world: World) -> None:
    script = (str(EXAMPLES / "plain_ddp.py"), "--step-delay", "0.02")
    run = world.run("launch", "ddp", *LAUNCH, *script).healthy()
    first = run.status()
    assert [rank["state"] for rank in first["ranks"]] == ["running", "running"]
    assert (first["attempt"], first["plan"]["preset"], first["plan"]["backend"]) == (1, "ddp", "gloo")
    attach(run)
    switch_nccl_logs(run)
    restart(run, first)
    adopt(run)
    hang(run)
    stop(run)
    check_journal(run, ["restarted", "stopped"])


@pytest.mark.smoke
@pytest.mark.xdist_group("smoke")
def test_a_command_runs_in_the_foreground(world: World) -> None:
    """The real program: what the command writes, its exit code in the report, and the record that is left."""
    words = (
        "import os, sys; print('hello', os.environ['GIVEN']); print('oops', file=sys.stderr); sys.exit(3)"
    )
    exec_words = ("exec", "--name", "job", "--env", "GIVEN=1", "--restarts", "0", "--")
    temporary = world.work / "tmp"
    temporary.mkdir()
    done = world.binary(*exec_words, sys.executable, "-c", words, env={"TMPDIR": str(temporary)})
    assert (done.code, done.out) == (1, "hello 1\n"), done.err
    assert "\noops\n" in done.err
    assert "rank 0 ended with exit code 3" in done.err
    (listed,) = world.distui("ls", "--json").fine().json()
    assert (listed["name"], listed["state"], listed["exit_code"]) == ("job", "failed", 3)
    assert world.distui("logs", "job", "--stream", "out").fine().out == "hello 1\n"
    assert until(lambda: not world.processes()), "an agent with nothing to do leaves"
    assert list(world.sockets.iterdir()) == [], "and takes the sockets of the run with it"
    assert list(temporary.iterdir()) == [], "nor is anything left among the temporary files"
    world.distui("restart", "job", "--yes").refused(1, "has ended")


def attach(run: Run) -> None:
    """The cockpit in a real terminal; leaving it changes nothing."""
    with contextlib.closing(Screen([DISTUI, "attach", run.name], run.world.env, run.world.work)) as screen:
        screen.until(lambda text: "RUNNING" in text and re.search(r"\bstep [1-9]", text))
        screen.press("q")
        assert screen.ended() == 0
    assert all(alive(pid) for pid in run.pids())


def switch_nccl_logs(run: Run) -> None:
    """On gloo the switch says so, sets the next start, and raises c10d's logging live."""
    said = run.distui("nccl", "INFO", "--subsys", "COLL").fine().out
    assert "backend is gloo" in said
    assert "TORCH_DISTRIBUTED_DEBUG=INFO" in said


def restart(run: Run, before: dict[str, Any]) -> None:
    """In place: a new attempt with a changed environment; the logs of the first stay as they were."""
    kept = run.file("node-0/attempt-001/rank-0.out")
    run.distui("restart", "--env", "MARK=two", "--env", "MY_TOKEN=hidden", "--yes").fine()
    after = run.eventually(lambda status: status["attempt"] == 2 and is_stepping(status))
    assert {rank["pid"] for rank in after["ranks"]}.isdisjoint(rank["pid"] for rank in before["ranks"])
    assert after["runner_pid"] == before["runner_pid"]
    assert environment(after["ranks"][0]["pid"])["MARK"] == "two"
    assert environment(after["ranks"][1]["pid"])["NCCL_DEBUG"] == "INFO"
    assert after["attempts"][0]["outcome"] == "restarted"
    assert after["attempts"][1]["env_diff"]["MARK"] == "two"
    assert after["attempts"][1]["env_diff"]["MY_TOKEN"] == "***"
    assert run.file("node-0/attempt-001/rank-0.out").startswith(kept)


def adopt(run: Run) -> None:
    """kill -9 of the agent changes nothing for the training; the next viewer starts an agent that adopts it."""
    before, agent = run.eventually(is_stepping), run.agent_pid()
    kill(agent, signal.SIGKILL)
    pids = [rank["pid"] for rank in before["ranks"]]
    assert all(alive(pid) for pid in pids)
    out = run.path / f"node-0/attempt-{before['attempt']:03d}/rank-0.out"
    size = out.stat().st_size
    assert until(lambda: out.stat().st_size > size), "training must go on without an agent"
    after = run.eventually(is_stepping)
    assert run.agent_pid() != agent
    assert [rank["pid"] for rank in after["ranks"]] == pids
    assert (after["attempt"], after["state"]) == (before["attempt"], "running")
    assert after["ranks"][0]["step"] >= before["ranks"][0]["step"]
    assert [event["adopted"] for event in run.of("AgentStarted")] == [False, True]


def hang(run: Run) -> None:
    """A rank that is stopped is named as the one that the other waits for, until it goes on."""

    def verdicts(status: dict[str, Any]) -> list[tuple[str, int]]:
        return [(one["id"], one["rank"]) for one in status["findings"] if one["id"].startswith("hang")]

    pid = run.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        run.eventually(lambda status: verdicts(status) == [("hang-stopped", 1)])
    finally:
        os.kill(pid, signal.SIGCONT)
    run.eventually(lambda status: not verdicts(status))


def stop(run: Run) -> None:
    """Nothing is left."""
    run.stop().fine()
    assert run.marked() == {}
    assert run.status()["state"] == "stopped"


def check_journal(run: Run, outcomes: list[str]) -> None:
    """Every event once, in order, across two agents; commands have their answers; the end is the end."""
    events = run.events()
    assert [told["seq"] for told in events] == list(range(1, len(events) + 1))
    kinds = [told["event"]["type"] for told in events]
    assert kinds[0] == "RunCreated"
    assert kinds.count("RunEnded") == 1
    assert kinds.count("RunnerStarted") == 1
    attempts = list(range(1, len(outcomes) + 1))
    assert [event["attempt"] for event in run.of("AttemptStarted")] == attempts
    assert [attempt["outcome"] for attempt in run.status()["attempts"]] == outcomes
    asked = {event["id"] for event in run.of("CommandReceived")}
    assert asked == {event["id"] for event in run.of("CommandDone")}
    ended = [event for event in run.of("RankChanged") if event["state"] != "running"]
    assert len(ended) == len({(event["attempt"], event["rank"]) for event in ended}) == 2 * len(outcomes)
    sources = [told.get("source", 0) for told in events if told.get("source")]
    assert sources == sorted(set(sources)), "no line of the runner's report was taken twice"
    assert sources[-1] == (run.path / "runner.jsonl").stat().st_size


def is_stepping(status: dict[str, Any]) -> bool:
    """Whether every rank of a running group made a step."""
    return status["state"] == "running" and all((rank["step"] or 0) > 0 for rank in status["ranks"])


def environment(pid: int) -> dict[str, str]:
    """What a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)
