"""The whole life of a run, as a user meets it: nothing is lost on the way, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from patience import slowness

from distui.runners.model import Hello, Stop
from distui.runners.wire.client import SocketLink, encode

from .runs import EXAMPLES, Run, World, alive, kill, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def training(world: World, script: str) -> Run:
    """The shipped example under its preset, or a script that never heard of distui."""
    saving = ("--checkpoint-dir", str(world.work / "saved"), "--checkpoint-every", "5", "--steps", "100000")
    path, args = {"chargpt": ("chargpt.py", saving), "plain": ("plain_ddp.py", ("--steps", "0"))}[script]
    options = ("--nproc-per-node", "2", "--set", "restart.backoff_s=0.2", "--grace", "20")
    return world.run("launch", "ddp", *options, "--", str(EXAMPLES / path), *args, "--step-delay", "0.02")


@pytest.mark.parametrize("script", [pytest.param("chargpt", marks=pytest.mark.long), "plain"])
def test_launch_look_toggle_restart_kill_adopt_stop(world: World, script: str) -> None:
    run = training(world, script).healthy()
    first = run.status()
    assert [rank["state"] for rank in first["ranks"]] == ["running", "running"]
    assert first["attempt"] == 1
    assert (first["plan"]["preset"], first["plan"]["backend"]) == ("ddp", "gloo")

    toggle(run)
    restart(run, first)
    recover(run)
    adopt(run)
    stop(run)
    journal(run)
    if script == "chargpt":
        resumed = run.file("node-0/attempt-002/rank-0.out").decode()
        assert "resumed from step" in resumed, resumed


def toggle(run: Run) -> None:
    """On gloo the switch says so, sets the next start, and raises c10d's logging live."""
    said = run.distui("nccl", "INFO", "--subsys", "COLL").fine().out
    assert "NCCL is not in use (gloo)" in said
    assert "TORCH_DISTRIBUTED_DEBUG=INFO" in said


def restart(run: Run, before: dict[str, Any]) -> None:
    """In place: a new attempt with a changed environment; the logs of the first stay as they were."""
    kept = run.file("node-0/attempt-001/rank-0.out")
    run.distui("restart", "--env", "MARK=two", "--env", "MY_TOKEN=hidden", "--yes").fine()
    after = run.eventually(lambda status: status["attempt"] == 2 and stepping(status))
    assert {rank["pid"] for rank in after["ranks"]}.isdisjoint(rank["pid"] for rank in before["ranks"])
    assert after["runner_pid"] == before["runner_pid"]
    assert environment(after["ranks"][0]["pid"])["MARK"] == "two"
    assert environment(after["ranks"][1]["pid"])["NCCL_DEBUG"] == "INFO"
    assert after["attempts"][0]["outcome"] == "restarted"
    assert after["attempts"][1]["env_diff"]["MARK"] == "two"
    assert after["attempts"][1]["env_diff"]["MY_TOKEN"] == "***"
    assert run.file("node-0/attempt-001/rank-0.out").startswith(kept)
    assert [rank["nccl_debug"] for rank in after["ranks"]] == ["INFO", "INFO"]


def recover(run: Run) -> None:
    """kill -9 of a rank: the policy restarts the group and the ledger names the culprit."""
    victim = run.pids()[1]
    kill(victim, signal.SIGKILL)
    after = run.eventually(lambda status: status["attempt"] == 3 and stepping(status), 60)
    failed = after["attempts"][1]
    assert failed["outcome"] == "failed"
    cause = failed["first_cause"]
    assert (cause["rank"], cause["signal"], cause["pid"]) == (1, "SIGKILL", victim)
    assert after["attempts"][2]["cause"] == "failure"
    assert environment(after["ranks"][0]["pid"])["MARK"] == "two", (
        "a restart by policy keeps the environment"
    )


def adopt(run: Run) -> None:
    """kill -9 of the agent changes nothing for the training; the next viewer starts an agent that adopts it."""
    before, agent = run.eventually(stepping), run.agent_pid()
    kill(agent, signal.SIGKILL)
    pids = [rank["pid"] for rank in before["ranks"]]
    assert all(alive(pid) for pid in pids)
    out = run.path / "node-0/attempt-003/rank-0.out"
    size = out.stat().st_size
    assert until(lambda: out.stat().st_size > size, 20), "training must go on without an agent"
    after = run.eventually(stepping)
    assert run.agent_pid() != agent
    assert [rank["pid"] for rank in after["ranks"]] == pids
    assert (after["attempt"], after["state"]) == (3, "running")
    assert after["ranks"][0]["step"] >= before["ranks"][0]["step"]
    assert [event["adopted"] for event in run.of("AgentStarted")] == [False, True]


def stop(run: Run) -> None:
    """The ladder leaves nothing."""
    run.stop().fine()
    assert run.marked() == {}
    status = run.status()
    assert status["state"] == "stopped"
    assert [attempt["outcome"] for attempt in status["attempts"]] == ["restarted", "failed", "stopped"]


def journal(run: Run) -> None:
    """Every event once, in order, across two agents; commands have their answers; the end is the end."""
    events = run.events()
    assert [told["seq"] for told in events] == list(range(1, len(events) + 1))
    kinds = [told["event"]["type"] for told in events]
    assert kinds[0] == "RunCreated"
    assert kinds.count("RunEnded") == 1
    assert kinds.count("RunnerStarted") == 1
    assert [e["attempt"] for e in run.of("AttemptStarted")] == [1, 2, 3]
    asked = {e["id"] for e in run.of("CommandReceived")}
    answered = {e["id"] for e in run.of("CommandDone")}
    assert asked == answered
    ended = [e for e in run.of("RankChanged") if e["state"] not in ("running",)]
    assert len(ended) == len({(e["attempt"], e["rank"]) for e in ended}) == 6
    sources = [told.get("source", 0) for told in events if told.get("source")]
    assert sources == sorted(set(sources)), "no line of the runner's report was taken twice"
    assert sources[-1] == (run.path / "runner.jsonl").stat().st_size


def stepping(status: dict[str, Any]) -> bool:
    """Whether every rank of a running group made a step."""
    return status["state"] == "running" and all((rank["step"] or 0) > 0 for rank in status["ranks"])


def environment(pid: int) -> dict[str, str]:
    """What a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)


@pytest.mark.long
def test_single_process_to_its_end_and_what_remains(world: World) -> None:
    """A run that ends by itself: outcome, exit codes, and a record that stays readable without an agent."""
    script = world.script("short.py", "import torch\nprint('hello', torch.ones(2).sum().item())\n")
    temporary = world.work / "tmp"
    temporary.mkdir()
    run = world.run("launch", "single", "--", script, env={"TMPDIR": str(temporary)})
    assert run.wait("done") == 0
    status = run.eventually(lambda status: status["state"] == "succeeded")
    assert status["ranks"][0]["exit_code"] == 0
    assert until(lambda: not alive(run.agent_pid()), 20), "an agent with nothing to do leaves"
    assert list(world.sockets.iterdir()) == [], "and takes the sockets of the run with it"
    assert list(temporary.iterdir()) == [], "nor is anything left among the temporary files"
    assert "hello 2.0" in run.distui("logs").fine().out
    listed = json.loads(world.distui("ls", "--json").fine().out)
    assert [(one["name"], one["state"]) for one in listed] == [("short", "succeeded")]
    refused = run.distui("restart", "--yes")
    assert refused.code == 1
    assert "has ended" in refused.err


@pytest.mark.long
def test_foreground_launch_returns_the_outcome_as_text(world: World) -> None:
    """Without a terminal a launch prints what happens until the run has ended."""
    good = world.script("good.py", "print('fine')\n")
    done = world.distui("launch", "single", "--", good).fine()
    assert done.out == "[default0]:fine\n"
    assert "every rank ended with exit code 0" in done.err
    bad = world.script("bad.py", "raise ValueError('no such luck')\n")
    failed = world.distui("launch", "single", "--restarts", "0", "--", bad)
    assert failed.code == 1
    assert "rank 0 raised ValueError: no such luck" in failed.err
    assert " │ Traceback" in failed.err, "the last lines of its stderr are in the report"


def test_a_foreground_launch_says_each_cause_once_and_its_times_never_go_back(world: World) -> None:
    """Of a script that fails in the same way each time it is started."""
    script = world.script("bad.py", "print('begins')\nraise ValueError('no such luck')\n")
    words = ("--nproc-per-node", "2", "--restarts", "3", "--quiet")
    done = world.distui("launch", "ddp", *words, "--", script)
    assert done.code == 1
    told, _, report = done.err.partition("\n\n")
    moments = re.findall(r"^\d\d:\d\d:\d\d", told, re.MULTILINE)
    assert len(moments) > 3
    seconds = [sum(int(part) * 60**at for at, part in enumerate(each.split(":")[::-1])) for each in moments]
    assert all((later - earlier) % 86400 < 43200 for earlier, later in pairwise(seconds)), told
    cause = re.compile(r"rank \d raised ValueError: no such luck")
    attempts = re.findall(r"^\S+  (attempt \d) failed: ", told, re.MULTILINE)
    assert attempts == ["attempt 1", "attempt 2"], "the second failure is the same"
    assert len(cause.findall(told)) == len(attempts), told
    assert "  gave up: failed in the same way twice\n" in done.err
    assert len(cause.findall(report)) == len(attempts), (
        "in the ledger, and of the newest below it: " + report
    )
    assert "\ngave up: failed in the same way twice\n" in report


async def test_readonly_is_a_lock_in_the_agent_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer that asked to look only cannot change the run, whatever it sends."""
    run = world.execute("import time; time.sleep(600)")
    assert run.wait("running") == 0
    for name in ("XDG_STATE_HOME", "DISTUI_SOCKET_DIR"):
        monkeypatch.setenv(name, world.env[name])
    link = await SocketLink.connect(Path(json.loads(run.file("agent.json"))["socket"]), readonly=True)
    seen = [stamped async for stamped in link.events(follow=False)]
    assert seen
    await link.close()
    reader, writer = await asyncio.open_unix_connection(json.loads(run.file("agent.json"))["socket"])
    writer.write(encode(Hello(readonly=True, telemetry=False)) + encode(Stop("s1")))
    while b"read-only" not in (line := await asyncio.wait_for(reader.readline(), 20 * slowness())):
        assert line, "the agent hung up"
    writer.close()
    assert run.status()["state"] == "running"
    assert not run.of("CommandReceived")
