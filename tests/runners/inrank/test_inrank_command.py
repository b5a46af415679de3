"""Managed commands: restarted by stop and start, and in place where a torchrun in them steers its own ranks."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from each import for_each

from distui.presets.model import RestartPolicy
from distui.runners.run.model import RankPhase, RunnerStarted

from .inrank_rig import PLAIN_DDP, Driven, driven, execute

TORCHRUN = f"torchrun --nproc-per-node 2 {PLAIN_DDP}"


@pytest.fixture
def with_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun of this environment is on PATH."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def kinds(run: Driven) -> list[str]:
    """Which runners told of themselves, in order."""
    return [e.event.kind for e in run.events if isinstance(e.event, RunnerStarted)]


@pytest.mark.real
async def test_a_plain_command_restarts_by_stop_and_start() -> None:
    loop = "trap 'exit 0' TERM; echo $WORD; while :; do sleep 0.1; done"
    async with driven(execute("bash", "-c", loop)) as run:
        await run.until(lambda s: str(s.phase) == "running")
        first = run.state.ranks[0].pid
        await run.wrote("rank-0.out", "\n")
        done = await run.restart(WORD="changed")
        assert done.ok, done.text
        assert run.state.ranks[0].pid != first
        await run.wrote("rank-0.out", "changed", attempt=2)
        (before, now) = run.state.attempts
        assert (str(before.outcome), now.cause, now.env_diff) == (
            "restarted",
            "restart",
            {"WORD": "changed"},
        )
        assert [state for attempt, state, _ in run.changes(0) if attempt == 1] == ["running", "stopped"]
        assert kinds(run) == ["command"]
        os.kill(json.loads((run.path / "runner.json").read_text())["pid"], signal.SIGTERM)
        await run.until(lambda s: s.phase.ended)
        assert (run.state.phase, run.state.end_text) == ("stopped", "stopped by SIGTERM")
        assert run.changes(0)[-1][1] == "stopped"


@pytest.mark.real
@for_each(
    ("text", "attempts", "phase", "words"),
    [
        ("exit 0", 1, "succeeded", "the command ended with exit code 0"),
        ("exit 3", 2, "failed", "the command ended with exit code 3"),
        ("kill -KILL $$", 2, "failed", "the command was killed by SIGKILL"),
        ("exec python3 -c 'import flash_attn_9'", 1, "failed", "exit code 1; a restart cannot help: "),
    ],
)
async def test_the_end_of_a_command_is_the_end_of_the_run(
    text: str, attempts: int, phase: str, words: str
) -> None:
    """A failure is restarted once, unless what the command wrote says that it would come again."""
    plan, record = execute("bash", "-c", text)
    once = RestartPolicy(limit=1, backoff_s=0.05, backoff_max_s=0.05)
    async with driven((replace(plan, restart=once), record)) as run:
        await run.until(lambda s: s.phase.ended)
        assert run.state.phase == phase
        assert words in run.state.end_text
        assert [each.cause for each in run.state.attempts] == ["launch", "failure"][:attempts]


@pytest.mark.real
async def test_a_command_that_cannot_start_is_one_sentence() -> None:
    async with driven(execute("/no/such/program")) as run:
        await run.until(lambda s: s.phase.ended)
        said = "cannot start /no/such/program: No such file or directory"
        assert (run.state.phase, run.state.exit_code, run.state.end_text) == ("failed", 127, said)
        cause = run.state.attempts[-1].first_cause
        assert cause is not None
        assert cause.kind == "not-executable"
        assert run.changes(0) == [(1, "failed", 127)]
        (finding,) = run.state.findings.values()
        assert said in finding.text


@pytest.mark.torch
@pytest.mark.long
async def test_a_torchrun_in_a_command_restarts_in_place(with_torchrun: None) -> None:
    # As tasks do that activate an environment of their own.
    activated = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    refused = "torchrun --nproc-per-node 1.5 --no-python true"  # of which another takes the attempt
    task = f"echo before; {refused}; export {activated}; {TORCHRUN}; echo after $?; exec sleep 600"
    async with driven(execute("bash", "-c", task)) as run:
        await run.until(lambda s: str(s.phase) == "running")
        shell = run.state.ranks[0].pid
        await run.stepping()
        assert kinds(run) == ["command", "torchrun", "command", "torchrun"]
        assert run.state.runner_socket.endswith(".sub")
        assert [attempt.world_size for attempt in run.state.attempts] == [2]
        assert run.log("command.out") == "before\n"
        assert "refused" in run.log("command.err")
        assert "rank 0 of 2" in run.log("rank-0.out")

        done = await run.restart(WORD="in place")
        assert done.ok, done.text
        await run.stepping()
        first, second = run.state.attempts
        assert (str(first.outcome), second.cause) == ("restarted", "restart")
        assert (second.world_size, second.env_diff) == (2, {"WORD": "in place"})
        assert os.path.exists(f"/proc/{shell}"), "the command itself was not restarted"
        assert "after" not in run.log("command.out")

        # The launcher's own end is not the command's; from then on a restart is one of the command.
        pid = run.state.ranks[1].pid
        assert pid is not None
        nested = run.state.runner_pid
        os.kill(pid, signal.SIGKILL)
        await run.until(lambda s: s.runner_pid != nested)
        assert "after 1" in await run.wrote("command.out", "after")
        assert run.changes(1)[-1][1:] == ("killed", -9)
        assert str(run.state.phase) == "running"
        done = await run.restart()
        assert done.ok, done.text
        await run.stepping()
        third = run.state.attempts[-1]
        assert (third.number, third.cause, third.world_size) == (3, "restart", 2)
        assert third.env_diff == {"WORD": "in place"}
        assert "rank 0 of 2" in run.log("rank-0.out", attempt=3)
    await run.until(lambda s: s.phase.ended)
    assert run.state.phase == "stopped"
    assert {rank.phase for rank in run.state.ranks.values()} == {RankPhase.STOPPED}


@pytest.mark.long
@pytest.mark.torch
async def test_torchruns_one_after_the_other_are_attempts_of_their_own(with_torchrun: None) -> None:
    once = f"{TORCHRUN} --steps 3 --step-delay 0"
    async with driven(execute("bash", "-c", f"{once} && {once} | cat")) as run:
        await run.until(lambda s: s.phase.ended)
        assert run.state.phase == "succeeded", run.describe()
        assert [attempt.number for attempt in run.state.attempts] == [1, 2]
        assert [str(attempt.outcome) for attempt in run.state.attempts] == ["succeeded", "succeeded"]
        for attempt in (1, 2):
            assert "step 3" in run.log("rank-0.out", attempt)
        # What the user sends elsewhere arrives there, too.
        assert "step 3" in run.log("command.out")
