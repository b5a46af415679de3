"""Managed commands: restarted by stop and start, and in place where a torchrun in them steers its own ranks."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from each import for_each

from distui.runners.model import RankPhase, RunnerStarted

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


@pytest.mark.real
@for_each(
    ("text", "phase", "words"),
    [
        ("exit 0", "succeeded", "the command ended with exit code 0"),
        ("exit 3", "failed", "the command ended with exit code 3"),
        ("kill -KILL $$", "failed", "the command was killed by SIGKILL"),
    ],
)
async def test_the_end_of_a_command_is_the_end_of_the_run(text: str, phase: str, words: str) -> None:
    async with driven(execute("bash", "-c", text)) as run:
        await run.until(lambda s: s.phase.ended)
        assert run.state.phase == phase
        assert words in run.state.end_text


@pytest.mark.long
async def test_a_command_that_cannot_start_is_one_sentence() -> None:
    async with driven(execute("/no/such/program")) as run:
        await run.until(lambda s: s.phase.ended)
        assert (run.state.phase, run.state.exit_code) == ("failed", 127)
        said = "cannot start /no/such/program: No such file or directory"
        assert run.state.end_text == said
        attempt = run.state.attempts[-1]
        assert attempt.first_cause is not None
        assert (attempt.outcome, attempt.first_cause.kind) == ("failed", "not-executable")
        assert said in attempt.text
        assert run.changes(0) == [(1, "failed", 127)]
        (finding,) = run.state.findings.values()
        assert said in finding.text


@pytest.mark.long
async def test_a_torchrun_that_refuses_its_arguments_is_the_cause(with_torchrun: None) -> None:
    refused = "torchrun --nproc-per-node 1.5 --no-python true"
    async with driven(execute("bash", "-c", f"{refused}; exit 1")) as run:
        await run.until(lambda s: s.phase.ended)
        cause = run.state.attempts[-1].first_cause
        assert cause is not None
        assert cause.kind == "launcher-refused"
        assert "1.5" in cause.text
        assert [state for _, state, _ in run.changes(0)] == ["running", "failed"]
        assert any("torchrun refused the arguments" in one.text for one in run.state.findings.values())


@pytest.mark.long
async def test_after_a_refused_torchrun_another_takes_the_attempt(with_torchrun: None) -> None:
    refused = "torchrun --nproc-per-node 1.5 --no-python true"
    async with driven(execute("bash", "-c", f"{refused}; {TORCHRUN}")) as run:
        await run.until(lambda s: len(s.ranks) == 2)
        assert run.state.attempt == 1
        await run.hooked()
        assert "refused" in run.log("command.err")


@pytest.mark.long
async def test_a_signal_to_the_runner_stops_the_command() -> None:
    async with driven(execute("sleep", "600")) as run:
        await run.until(lambda s: str(s.phase) == "running")
        os.kill(json.loads((run.path / "runner.json").read_text())["pid"], signal.SIGTERM)
        await run.until(lambda s: s.phase.ended)
        assert (run.state.phase, run.state.end_text) == ("stopped", "stopped by SIGTERM")
        assert run.changes(0)[-1][1] == "stopped"


@pytest.mark.long
async def test_a_failure_is_restarted_as_often_as_asked_for() -> None:
    async with driven(execute("bash", "-c", "exit 3", restart_limit=1)) as run:
        await run.until(lambda s: s.phase.ended)
        assert [attempt.cause for attempt in run.state.attempts] == ["launch", "failure"]
        assert run.state.phase == "failed"


@pytest.mark.torch
@pytest.mark.long
async def test_a_torchrun_in_a_command_restarts_in_place(with_torchrun: None) -> None:
    # As tasks do that activate an environment of their own.
    activated = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    async with driven(
        execute("bash", "-c", f"echo before; export {activated}; {TORCHRUN}; echo after $?; exec sleep 600")
    ) as run:
        await run.until(lambda s: str(s.phase) == "running")
        shell = run.state.ranks[0].pid
        await run.stepping()
        assert kinds(run) == ["command", "torchrun"]
        assert run.state.runner_socket.endswith(".sub")
        assert [attempt.world_size for attempt in run.state.attempts] == [2]
        assert run.log("command.out") == "before\n"
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
        os.kill(pid, signal.SIGKILL)
        await run.until(lambda s: s.runner_kind == "command")
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
