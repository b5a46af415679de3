"""What is under way: the same for every viewer, from the events that all of them get."""

from __future__ import annotations

from distui.runners.run.model import (
    HUB,
    AttemptEnded,
    AttemptStarted,
    CommandDone,
    CommandReceived,
    Event,
    Outcome,
    PlanSummary,
    ProfileArmed,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
    StageChanged,
    Stamped,
)
from distui.runners.run.samples import RankSample
from distui.runners.run.snapshot import packed, unpacked
from distui.runners.run.state import RunState
from distui.runners.run.under_way import stopping, stopping_after_failure, under_way

PLACES = (RankPlace(0, 0), RankPlace(1, 1))


def attempt(number: int, cause: str) -> list[Event]:
    ranks = [RankChanged(number, rank, RankPhase.RUNNING, rank, 100 * number + rank) for rank in (0, 1)]
    return [AttemptStarted(number, cause, 2, PLACES), *ranks]


def state_at(at: float, state: RunState, *events: Event) -> RunState:
    for event in events:
        state.apply(Stamped(at, event, state.seq + 1))
    return state


def running() -> RunState:
    return state_at(10.0, RunState(), *attempt(1, "launch"))


def test_a_restart_shows_how_long_ranks_have_been_ending_and_starting() -> None:
    state = state_at(100.0, running(), CommandReceived("c", "restart requested", "restart", 30.0))
    assert under_way(state, 103.0) == ["restarting: stopping ranks 3/30 s"]
    late = unpacked(packed(state))  # as a viewer gets it that comes later
    assert under_way(late, 104.0) == ["restarting: stopping ranks 4/30 s"]
    assert stopping(state, 99.0 - 3600.0).text() == "n/a/30 s", "a clock was set back"  # type: ignore[union-attr]
    stopped = [RankChanged(1, rank, RankPhase.STOPPED, rank) for rank in (0, 1)]
    state_at(108.0, state, *stopped, AttemptEnded(1, Outcome.RESTARTED))
    assert (under_way(state, 109.0), stopping(state, 109.0)) == (["restarting: starting ranks 9 s"], None)
    state_at(110.0, state, *attempt(2, "restart"))
    assert under_way(state, 111.0) == ["restarting: starting ranks 11 s"]
    state_at(112.0, state, CommandDone("c", True, "restarted"))
    assert under_way(state, 112.0) == []


def test_a_stop_counts_up_to_its_own_grace() -> None:
    state = state_at(100.0, running(), CommandReceived("c", "stop requested", "stop", 7.0))
    assert under_way(state, 102.0) == ["stopping: ranks 2/7 s"]
    state_at(103.0, state, *(RankChanged(1, rank, RankPhase.STOPPED, rank) for rank in (0, 1)))
    assert under_way(state, 104.0) == ["stopping 4 s"]
    state_at(105.0, state, RunEnded(RunPhase.STOPPED, 1, "stopped"))
    assert under_way(state, 106.0) == []


def test_a_profile_counts_the_steps_of_the_slowest_rank() -> None:
    state = state_at(100.0, running(), CommandReceived("c", "profile requested", "profile"))
    assert under_way(state, 101.0) == ["profile requested 1 s ago"]
    state_at(101.0, state, ProfileArmed("c", (), 50, 3))
    assert under_way(state, 102.0) == ["profile of 3 steps"], "no rank has counted a step"
    for counts, words in [
        ((48, 47), "profile 0/3 steps"),
        ((51, 50), "profile 1/3 steps"),
        ((52, 51), "profile 2/3 steps"),
        ((60, 52), "profile: writing traces"),
    ]:
        ticks = tuple(RankSample(rank, 100 + rank, step=count) for rank, count in enumerate(counts))
        state.apply(Stamped(103.0, RankTick(ticks)))
        assert under_way(state, 103.0) == [words]


def test_a_launch_shows_its_stage() -> None:
    state = state_at(10.0, RunState(), StageChanged(Stage.PROVISION, "begun"))
    assert under_way(state, 12.0) == [], "of one node; the launch as a whole has not begun"
    state = RunState()
    state.apply(Stamped(10.0, StageChanged(Stage.PROVISION, "begun"), 1, node=HUB))
    assert under_way(state, 55.0) == ["launching: provision 45 s"]


def test_commands_that_take_no_time_are_not_shown() -> None:
    state = state_at(100.0, running(), CommandReceived("c", "signal requested", "signal"))
    state_at(100.0, state, CommandReceived("d", "save requested", "save"))
    assert under_way(state, 103.0) == ["saving a checkpoint 3 s"]


def launched(launcher: str) -> RunState:
    plan = PlanSummary("ddp", "ddp", launcher, "train.py", grace_s=20.0)
    return state_at(9.0, RunState(), RunCreated("20260101-000000-a-00000000", "a", "vm", plan=plan))


def test_after_a_failure_the_ranks_of_its_node_are_ending_until_the_run_has_ended() -> None:
    places = (RankPlace(0, 0, 0), RankPlace(1, 1, 0), RankPlace(2, 0, 1))
    state = launched("torchrun")
    state_at(10.0, state, AttemptStarted(1, "launch", 3, places))
    assert stopping_after_failure(state, 50.0) == {}
    state_at(60.0, state, RankChanged(1, 1, RankPhase.FAILED, 1, exit_code=1))
    state_at(64.0, state, RankChanged(1, 0, RankPhase.KILLED, 0))
    late = unpacked(packed(state))
    assert {node: each.text() for node, each in stopping_after_failure(late, 65.0).items()} == {0: "5/20 s"}
    state_at(66.0, state, RunEnded(RunPhase.FAILED, 1, "rank 1 failed"))
    assert stopping_after_failure(state, 67.0) == {}


def test_a_managed_command_decides_itself_what_it_ends() -> None:
    state = launched("command")
    state_at(10.0, state, *attempt(1, "launch"), RankChanged(1, 1, RankPhase.FAILED, 1, exit_code=1))
    assert stopping_after_failure(state, 50.0) == {}
    stopped = launched("torchrun")
    state_at(10.0, stopped, *attempt(1, "launch"), RankChanged(1, 1, RankPhase.STOPPED, 1))
    assert stopping_after_failure(stopped, 50.0) == {}, "a rank that distui ended is no failure"
