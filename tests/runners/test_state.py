"""The one fold: from events to what is true."""

from __future__ import annotations

import dataclasses

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from distui.presets.finding import Finding
from distui.runners.reports.status_document import status_json
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Checkpoint,
    CheckpointSaved,
    CommandDone,
    CommandReceived,
    EnvironmentChanged,
    EnvironmentRestored,
    Event,
    FindingCleared,
    FindingRaised,
    GpuTick,
    HookChanged,
    LogGrew,
    NcclChanged,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RestartDelayed,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from distui.runners.run.samples import Gpu, RankSample
from distui.runners.run.state import MOST_FINDINGS, RunState

PLACES = (RankPlace(0, 0), RankPlace(1, 1))
PLAN = PlanSummary(preset="ddp", strategy="ddp", launcher="torchrun", command="train.py", nproc_per_node=2)


def fold(*events: Event) -> RunState:
    return RunState().apply_all(Stamped(float(n), event, n) for n, event in enumerate(events, 1))


def began(attempt: int = 1, cause: str = "launch") -> tuple[Event, ...]:
    start = AttemptStarted(attempt, cause, 2, PLACES)
    up = [RankChanged(attempt, rank, RankPhase.RUNNING, rank, 100 * attempt + rank) for rank in (0, 1)]
    return (start, *up)


def test_a_group_runs_only_when_every_rank_has_a_process() -> None:
    created = RunCreated("r", "n", "h", PLAN)
    assert fold(created).phase is RunPhase.STARTING
    assert fold(created, *began()[:2]).phase is RunPhase.STARTING
    state = fold(created, *began())
    assert state.phase is RunPhase.RUNNING
    assert [rank.pid for rank in state.ranks.values()] == [100, 101]
    assert (state.name, state.nodes[0].host, state.attempt) == ("n", "h", 1)


def test_a_restart_is_a_new_attempt_and_old_news_changes_nothing() -> None:
    ended = AttemptEnded(1, Outcome.RESTARTED)
    state = fold(*began(), ended, *began(2, "restart")[:1])
    assert state.phase is RunPhase.RESTARTING
    assert state.attempts[0].outcome is Outcome.RESTARTED
    late = RankChanged(1, 0, RankPhase.STOPPED, 0, 100, -15, "SIGTERM")
    state = fold(*began(), ended, *began(2, "restart"), late)
    assert state.phase is RunPhase.RUNNING
    assert state.ranks[0].phase is RankPhase.RUNNING


def test_a_stop_stays_a_stop_whatever_the_ranks_do_on_the_way() -> None:
    asked = CommandReceived("c", "stop requested", "stop")
    state = fold(*began(), asked, AttemptEnded(1, Outcome.FAILED))
    assert state.phase is RunPhase.STOPPING
    state.apply(Stamped(9.0, RunEnded(RunPhase.STOPPED, 1, "stopped"), 9))
    assert (state.phase, state.ended, state.exit_code) == (RunPhase.STOPPED, 9.0, 1)


def test_a_command_is_open_until_it_is_answered() -> None:
    """A new agent answers each open command."""
    asked = [CommandReceived(name, f"{name} requested", name) for name in ("restart", "save")]
    state = fold(*began(), *asked, CommandDone("restart", True, "restarted"))
    assert list(state.open_commands) == ["save"]


def test_an_attempt_that_a_launcher_inside_takes_over_stays_one_attempt() -> None:
    state = fold(
        *began(), AttemptStarted(1, "launch", 4, (RankPlace(0, 0), RankPlace(1, 1), RankPlace(2, 2)))
    )
    assert len(state.attempts) == 1
    assert state.attempts[0].world_size == 4
    assert state.attempts[0].began == 1.0, "its ranks joined later"
    assert len(state.ranks) == 3


def test_a_restart_goes_on_from_the_newest_whole_checkpoint() -> None:
    whole = Checkpoint("step-10", 10.0, "dcp", attempt=1)
    torn = Checkpoint("step-20", 20.0, "dcp", attempt=1, complete=False)
    state = fold(*began(), CheckpointSaved(1, whole), CheckpointSaved(1, torn))
    assert state.checkpoint == whole


def test_a_change_that_was_rolled_back_is_no_change() -> None:
    first, second = EnvironmentChanged({"LR": "1"}), EnvironmentChanged({"LR": "2", "WARMUP": "5"})
    state = fold(
        first, *began(), second, EnvironmentRestored(1, ("LR", "WARMUP"), "the ranks kept what they had")
    )
    assert (state.changes, state.pending) == ({"LR": "1"}, {})


def test_failures_are_those_of_the_policy() -> None:
    state = fold(*began(), RestartDelayed(2.0, 1, 3))
    assert (state.failures, state.delay) == (1, RestartDelayed(2.0, 1, 3))
    state.apply(Stamped(9.0, AttemptStarted(2, "failure", 2, PLACES, failures=1)))
    assert (state.failures, state.delay) == (1, None)


def test_a_finding_is_known_by_id_rank_and_node() -> None:
    one, other = Finding("f", "warning", "a", rank=0), Finding("f", "warning", "b", rank=1)
    state = fold(FindingRaised(one), FindingRaised(other), FindingCleared("f", rank=0))
    assert list(state.findings.values()) == [other]


def test_a_finding_that_is_reported_again_is_one_notice_of_the_time_since_when_it_holds() -> None:
    slow = Finding("straggler", "warning", "rank 2 is slow", since=1.5)
    again = dataclasses.replace(slow, text="rank 2 is slow; costs 60 %")
    state = fold(*began(), FindingRaised(slow), FindingRaised(again))
    assert [notice for notice in state.notices if "rank 2" in notice[1]] == [(1.5, "rank 2 is slow")]
    worse = fold(*began(), FindingRaised(slow), FindingRaised(dataclasses.replace(slow, severity="error")))
    assert sum("rank 2" in text for _, text in worse.notices) == 2


def test_a_change_of_the_level_is_one_notice() -> None:
    changed = NcclChanged("INFO", "", (0,), True, "NCCL_DEBUG=INFO live on rank 0")
    state = fold(*began(), changed, CommandDone("n", True, changed.text))
    assert sum("NCCL_DEBUG" in text for _, text in state.notices) == 1


def test_a_live_level_is_on_the_ranks_it_names() -> None:
    text = "NCCL_DEBUG=INFO"
    state = fold(*began(), NcclChanged("INFO", "COLL", (1,), True, text))
    assert [rank.nccl_debug for rank in state.ranks.values()] == [None, "INFO"]
    state = fold(*began(), NcclChanged("INFO", "COLL", (0, 1), False, text))
    assert [rank.nccl_debug for rank in state.ranks.values()] == [None, None], "not live: not yet"


def test_values_of_a_driver_that_does_not_answer_keep_their_age() -> None:
    gpu = Gpu(0, "GPU-0", "H100", util=50.0)
    state = RunState()
    state.apply(Stamped(10.0, GpuTick((gpu,))))
    state.apply(Stamped(20.0, GpuTick((gpu,), problem="a driver call has not returned for 9 s")))
    node = state.nodes[0]
    assert (node.gpu_sampled, node.heard) == (10.0, 20.0)
    assert node.gpu_problem is not None


def test_a_hook_that_went_is_no_hook() -> None:
    up = HookChanged(1, 0, "armed", 100, "WARN", True, "2.27.5")
    state = fold(*began(), up)
    assert (state.ranks[0].hook, state.ranks[0].nccl_live) == ("armed", True)
    state.apply(Stamped(9.0, HookChanged(1, 0, "gone", 100)))
    assert (state.ranks[0].hook, state.ranks[0].nccl_version) == (None, "2.27.5")


def test_telemetry_has_a_version_of_its_own() -> None:
    state = fold(*began())
    version = state.version
    state.apply(Stamped(9.0, RankTick((RankSample(0, 100, step=7), RankSample(5, 1)))))
    state.apply(Stamped(9.0, LogGrew({"node-0/attempt-001/rank-0.out": 5})))
    assert (state.version, state.telemetry_version) == (version, 2)
    assert state.ranks[0].sample is not None
    assert state.ranks[0].sample.step == 7
    assert 5 not in state.ranks, "a sample of an unknown rank makes no rank"


def test_a_sample_of_the_attempt_before_is_not_this_ones() -> None:
    state = fold(*began(), AttemptEnded(1, Outcome.RESTARTED), *began(2, "restart"))
    state.apply(Stamped(9.0, RankTick((RankSample(0, 100, step=900), RankSample(1, 201, step=3)))))
    assert state.ranks[0].sample is None
    assert state.ranks[1].sample is not None


def test_the_last_samples_stay_when_the_ranks_are_gone() -> None:
    last = (RankSample(0, 100, rss_bytes=5, step=9, step_s=0.1), RankSample(7, 1, step=3))
    state = fold(
        *began(), AttemptEnded(1, Outcome.SUCCEEDED, last=last), RunEnded(RunPhase.SUCCEEDED, 0, "")
    )
    rank = status_json(state)["ranks"][0]
    assert (rank["step"], rank["step_s"], rank["rss_bytes"], rank["cpu_percent"]) == (9, 0.1, 5, None)
    state = fold(*began(), *began(2, "restart"), AttemptEnded(1, Outcome.RESTARTED, last=last))
    assert state.ranks[0].sample is None, "those of another attempt say nothing of this one"


def test_a_sample_that_was_on_its_way_when_its_rank_ended_takes_no_steps_back() -> None:
    last = (RankSample(0, 100, step=5),)
    ended = RankChanged(1, 0, RankPhase.SUCCEEDED, 0, 100, 0)
    state = fold(*began(), ended, AttemptEnded(1, Outcome.SUCCEEDED, last=last))
    for late in (RankSample(0, 100, step=2), RankSample(0, 100)):
        state.apply(Stamped(9.0, RankTick((late,))))
        assert status_json(state)["ranks"][0]["step"] == 5


def test_caught_up_is_live() -> None:
    assert not fold(*began()).live
    assert fold(*began(), CaughtUp(3)).live


def test_status_knows_unknown_from_zero() -> None:
    state = fold(RunCreated("r", "n", "h", PLAN), *began())
    rank = status_json(state, 10.0)["ranks"][0]
    assert rank["step"] is None
    assert rank["cpu_percent"] is None
    document = msgspec.to_builtins(status_json(state, 10.0))
    assert document["plan"]["nnodes"] == 1, "defaults that the wire leaves out are shown"
    assert status_json(state, 10.0)["nodes"][0]["age_s"] == 6.0


EVENTS = st.one_of(
    st.sampled_from([*began(), *began(2, "failure"), RunEnded(RunPhase.FAILED, 1, "x"), CaughtUp(1)]),
    st.builds(AttemptEnded, st.integers(0, 3), st.sampled_from(Outcome)),
    st.builds(
        RankChanged, st.integers(0, 3), st.integers(0, 3), st.sampled_from(RankPhase), st.integers(0, 3)
    ),
    st.builds(RestartDelayed, st.floats(0, 9), st.integers(0, 9), st.integers(0, 9)),
)


@given(st.lists(EVENTS, max_size=30))
def test_any_order_of_events_folds_and_travels(events: list[Event]) -> None:
    """Whatever comes, in whatever order: no exception, and a replay of its JSON gives the same state."""
    stamped = [Stamped(float(n), event, n) for n, event in enumerate(events, 1)]
    again = [msgspec.json.decode(msgspec.json.encode(one), type=Stamped) for one in stamped]
    assert RunState().apply_all(stamped) == RunState().apply_all(again)


def test_every_phase_says_whether_it_is_the_end() -> None:
    for phase in RunPhase:
        assert phase.ended == (phase in ("succeeded", "failed", "stopped", "lost", "ended", "exported"))


def test_of_a_journal_of_very_many_findings_some_are_kept() -> None:
    """A run has tens; what somebody else's bundle says more is left out, and no screen waits for it."""
    raised = [
        FindingRaised(Finding(f"x{number}", "warning", "text")) for number in range(3 * MOST_FINDINGS)
    ]
    state = fold(*began(), *raised)
    document = status_json(state)
    assert len(document["findings"]) == MOST_FINDINGS
