"""The whole life of a run under its agent, with doubles of the runner and of the ranks: test_contract.py holds them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from distui.presets.model import RestartPolicy
from distui.runners.run.commands import Dump, Profile, Restart, SetNccl, Signal, Stop
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    HookChanged,
    NcclChanged,
    RankChanged,
    RestartDelayed,
    RunnerLost,
    RunnerStarted,
)
from distui.runners.run.state import RunState

from .fake_runner import FakeRunner, LiveNccl, OldNccl
from .served import Served, doubled


def is_running(attempt: int) -> Any:
    def holds(state: RunState) -> bool:
        return state.attempt == attempt and str(state.phase) == "running"

    return holds


def changes(run: Served, rank: int) -> list[tuple[int, str, int | None]]:
    """Attempt, state and exit code of every change of a rank."""
    return [(e.attempt, str(e.state), e.exit_code) for e in run.all_of(RankChanged) if e.rank == rank]


async def test_a_run_that_succeeds() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await run.until(
            lambda state: all(rank.sample and rank.sample.step_s for rank in state.ranks.values())
        )
        paces = {rank.sample.step_s for rank in run.state.ranks.values() if rank.sample is not None}
        assert paces == {FakeRunner.step_s}
        steps = run.state.ranks[0].sample.step if run.state.ranks[0].sample else 0
        runners.newest.finishes()
        await run.until(lambda state: state.phase.ended)
        assert (str(run.state.phase), run.state.exit_code) == ("succeeded", 0)
        assert run.state.end_text == "every rank ended with exit code 0"
        assert [(last.rank, last.step) for last in run.all_of(AttemptEnded)[0].last] == [
            (0, steps),
            (1, steps),
        ]


async def test_restarts_until_none_are_left_name_the_first_cause() -> None:
    twice = RestartPolicy(limit=2, backoff_s=10.0, backoff_max_s=60.0, reset_after_s=600.0)
    async with doubled(restart=twice) as (run, runners):
        for attempt in (1, 2, 3):
            await run.until(is_running(attempt))
            runners.newest.writes(1, f"ValueError: loss is {attempt}\n", "err")
            runners.newest.exits(1, attempt)
        await run.until(lambda state: state.phase.ended)
        assert [(e.wait_s, e.failures, e.limit) for e in run.all_of(RestartDelayed)] == [
            (10, 1, 2),
            (20, 2, 2),
        ]
        assert [e.cause for e in run.all_of(AttemptStarted)] == ["launch", "failure", "failure"]
        causes = [attempt.first_cause for attempt in run.state.attempts]
        assert [
            (cause.rank, cause.exit_code, cause.last_lines) for cause in causes if cause is not None
        ] == [(1, number, (f"ValueError: loss is {number}",)) for number in (1, 2, 3)]
        assert changes(run, 0)[1] == (1, "stopped", -15)
        assert "gave up: the restart policy allows 2 failures, this was number 3" in run.state.end_text


async def test_a_variable_that_was_set_for_a_restart_is_unset_by_the_next() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await run.send(Restart("set", {"LR": "1"}))
        await run.hooked()
        assert runners.newest.hooks[0].env["LR"] == "1"
        await run.send(Restart("unset", {}, ("LR",)))
        await run.hooked()
        assert "LR" not in runners.newest.hooks[0].env
        assert run.state.attempts[-1].env_diff == {"LR": None}


async def test_a_failure_that_would_come_again_is_restarted_only_if_the_policy_says_always() -> None:
    """By the exception that the hook notes, and the steps before it."""
    missing = {"type": "ModuleNotFoundError", "text": "No module named 'flash_attn_9'", "step": 0}
    raised = {"type": "ValueError", "text": "bad sample", "where": "train.py:7"}
    for always, notes, words in (
        (False, [missing], "a restart cannot help: rank 1 finds no module named flash_attn_9"),
        (True, [missing] * 3, "gave up: the restart policy allows 2 failures, this was number 3"),
        (
            False,
            [{**raised, "step": step} for step in (3, 4, 4)],
            "failed in the same way twice, at the same step (4): rank 1 raised ValueError",
        ),
    ):
        policy = RestartPolicy(limit=2, backoff_s=10.0, backoff_max_s=60.0, always=always)
        async with doubled(restart=policy) as (run, runners):
            for attempt, note in enumerate(notes, 1):
                await run.until(is_running(attempt))
                runners.newest.writes(1, json.dumps(note), "exc")
                runners.newest.exits(1, 1)
            await run.until(lambda state: state.phase.ended)
            assert words in run.state.end_text
            assert len(run.state.attempts) == len(notes)


async def test_a_restart_and_a_stop_end_the_waiting_after_a_failure() -> None:
    patient = RestartPolicy(limit=3, backoff_s=3600.0, backoff_max_s=3600.0, reset_after_s=9e9)
    async with doubled(restart=patient) as (run, runners):
        await run.until(is_running(1))
        runners.newest.exits(0, 3)
        await run.until(lambda state: state.delay)
        assert (await run.send(Restart("r", {"GO": "1"}))).ok
        second = run.state.attempts[1]
        assert (second.cause, second.env_diff) == ("restart", {"GO": "1"})
        runners.newest.exits(0, -11)
        await run.until(lambda state: state.delay)
        assert (await run.send(Stop("s"))).ok
        assert str(run.state.phase) == "stopped"


async def test_a_stop_ends_the_waiting_after_the_death_of_a_runner() -> None:
    patient = RestartPolicy(limit=3, backoff_s=3600.0, backoff_max_s=3600.0, reset_after_s=9e9)
    async with doubled(restart=patient) as (run, runners):
        await run.until(is_running(1))
        runners.newest.dies()
        await run.until(lambda state: state.delay)
        assert (await run.send(Stop("s"))).ok
        assert (str(run.state.phase), run.state.attempt, len(runners.started)) == ("stopped", 1, 1)


async def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    async with doubled() as (run, runners):
        await run.until(is_running(1))
        runners.newest.ignoring_term.add(1)
        assert (await run.send(Stop("s", grace_s=30.0))).ok
        assert changes(run, 0)[-1] == (1, "stopped", -15)
        assert changes(run, 1)[-1] == (1, "stopped", -9)


async def test_a_runner_that_dies_without_a_word_is_replaced() -> None:
    async with doubled() as (run, runners):
        await run.until(is_running(1))
        runners.newest.dies()
        await run.until(is_running(2))
        assert len(runners.started) == 2
        (lost,) = run.all_of(RunnerLost)
        assert "died: its ranks are ended, their files are kept" in lost.text
        assert changes(run, 0)[1] == (1, "stopped", None)
        assert [e.cause for e in run.all_of(AttemptStarted)] == ["launch", "failure"]


async def test_a_runner_that_does_not_answer_withdraws_a_restart_and_obeys_a_stop() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        runners.newest.is_silent = True
        done = await run.send(Restart("r"))
        assert not done.ok
        assert "did not answer in 10 s: the request was withdrawn" in done.text
        runners.newest.is_silent = False
        assert (await run.send(Restart("again"))).ok
        assert run.state.attempt == 2


async def test_a_rank_that_hangs_is_named_with_the_rank_that_waits() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        runners.newest.hangs(1)
        await run.until(lambda state: any(each.id == "hang-not-joined" for each in state.findings.values()))
        (finding,) = [each for each in run.state.findings.values() if each.id == "hang-not-joined"]
        assert finding.rank == 1
        assert finding.text.startswith(
            "rank 1 sleeps at train.py:12 hang; rank 0 waits for it in all_reduce"
        )
        dumped = await run.send(Dump("d", "stacks"))
        assert "in hang" in dumped.data["1"]
        assert "in all_reduce" in dumped.data["0"]
        assert (await run.send(Stop("s"))).ok
        assert finding_texts(run) == [f"hung when it was stopped: {finding.text}"]


async def test_a_hang_that_a_restart_has_ended_is_no_reason_for_the_stop_that_follows() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        runners.newest.hangs(1)
        await run.until(lambda state: state.findings)
        assert (await run.send(Restart("r"))).ok
        assert (await run.send(Stop("s"))).ok
        assert finding_texts(run) == []


def finding_texts(run: Served) -> list[str]:
    return [finding.text for finding in run.state.findings.values()]


async def test_a_rank_whose_hook_is_silent_is_named_and_the_others_answer() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        runners.newest.hooks[1].is_silent = True
        dumped = await run.send(Dump("d", "memory"))
        assert dumped.ok
        assert set(dumped.data) == {"0"}
        assert "rank 1 did not answer within 15 s" in dumped.text


async def test_under_gloo_a_limited_level_changes_and_restores_the_logging_of_c10d() -> None:
    async with doubled() as (run, _):
        await run.hooked()
        done = await run.send(SetNccl("n", "INFO", seconds=30.0))
        assert done.text.startswith("the backend is gloo: live: ")
        assert "next start" not in done.text
        await run.until(lambda state: state.nccl is not None and state.nccl.until is None)
        texts = [event.text for event in run.all_of(NcclChanged)]
        assert texts == [done.text, "the backend is gloo: c10d's logging is as before"]


async def test_a_limited_nccl_level_goes_back_by_itself() -> None:
    async with doubled(LiveNccl) as (run, runners):
        await run.hooked()
        done = await run.send(SetNccl("n", "INFO", "COLL", seconds=30.0))
        assert done.text == "NCCL_DEBUG=INFO COLL live on ranks 0, 1 for 30 s"
        assert runners.newest.hooks[0].env["NCCL_DEBUG"] == "INFO"
        await run.until(lambda state: state.nccl is not None and state.nccl.level == "WARN")
        assert [event.text for event in run.all_of(NcclChanged)][-1] == "NCCL_DEBUG is back at WARN"
        assert runners.newest.hooks[1].env["NCCL_DEBUG"] == "WARN"
        assert {e.nccl_live for e in run.all_of(HookChanged) if e.state == "armed"} == {True}


async def test_a_variable_for_a_launcher_inside_the_command_stays_when_the_command_starts_again() -> None:
    once = RestartPolicy(limit=1, backoff_s=1.0, backoff_max_s=1.0, reset_after_s=600.0)
    async with doubled(OldNccl, restart=once) as (run, runners):
        await run.hooked()
        runner, nested = runners.newest, f"{run.agent.served.stem}.nested"

        async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b'{"ok": true}\n')
            writer.close()

        async with await asyncio.start_unix_server(agree, nested):
            run.agent.served.emit(RunnerStarted(runner.pid, "torchrun", nested))
            assert "is set for the next start" in (await run.send(SetNccl("n", "INFO", ""))).text
        assert runner.hooks[0].env["NCCL_DEBUG"] != "INFO"
        runner.exits(0, 3)
        await run.until(is_running(2))
        assert runner.hooks[0].env["NCCL_DEBUG"] == "INFO"


async def test_commands_for_ranks_that_are_not_there_are_refused() -> None:
    async with doubled() as (run, _):
        await run.hooked()
        for command in (Signal("1", "USR1", (7,)), Dump("2", "stacks", (7,)), Profile("3", (7,))):
            done = await run.send(command)
            assert not done.ok
            assert "there is no running rank 7" in done.text, command
        done = await run.send(Restart("4", {"RANK": "0"}))
        assert "RANK is computed for each rank" in done.text
