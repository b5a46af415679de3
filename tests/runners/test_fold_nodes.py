"""The fold of a hub's journal: what several nodes tell is one run."""

from __future__ import annotations

import msgspec
import pytest

from distui.runners.reports.status_document import status_json
from distui.runners.run.model import (
    HUB,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Cluster,
    ClusterChanged,
    CommandDone,
    CommandReceived,
    Event,
    FirstCause,
    LinkChanged,
    LinkState,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RestartDelayed,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
    StageChanged,
    Stamped,
)
from distui.runners.run.state import RunState

PLAN = PlanSummary(
    preset="ddp", strategy="ddp", launcher="torchrun", command="train.py", nnodes=2, nproc_per_node=1
)


def fold(*told: tuple[int, Event]) -> RunState:
    """Events, each with the node that tells it; the hub's own first line is put before them."""
    lines = [(HUB, RunCreated("r", "n", "laptop", PLAN, merged=True)), *told]
    return RunState().apply_all(
        Stamped(float(seq), event, seq, node=node, source=10 * seq if node != HUB else 0)
        for seq, (node, event) in enumerate(lines, 1)
    )


def part(node: int, attempt: int = 1, cause: str = "launch", world: int = 2) -> list[tuple[int, Event]]:
    """One node's rank of an attempt begins and runs."""
    place = RankPlace(node, 0, node)
    return [
        (node, AttemptStarted(attempt, cause, world, (place,))),
        (node, RankChanged(attempt, node, RankPhase.RUNNING, 0, 100 * attempt + node)),
    ]


def test_a_run_on_two_nodes_runs_when_both_have_their_ranks() -> None:
    assert fold(*part(0)).phase is RunPhase.STARTING
    state = fold(*part(0), *part(1))
    assert state.phase is RunPhase.RUNNING
    assert sorted(state.ranks) == [0, 1]
    assert [attempt.number for attempt in state.attempts] == [1]
    assert {place.rank for place in state.attempts[0].ranks} == {0, 1}


def test_a_restart_is_one_attempt_whoever_tells_it_first() -> None:
    state = fold(*part(0), *part(1), *part(1, 2, "restart"), *part(0, 2, "membership"))
    assert [(attempt.number, attempt.cause) for attempt in state.attempts] == [
        (1, "launch"),
        (2, "restart"),
    ]
    assert state.phase is RunPhase.RUNNING
    assert {rank.pid for rank in state.ranks.values()} == {200, 201}
    follower_first = fold(*part(0), *part(1), *part(0, 2, "membership"), *part(1, 2, "restart"))
    assert follower_first.attempts[-1].cause == "restart"


def test_late_news_of_an_earlier_attempt_change_no_rank_of_the_newer_one() -> None:
    late = (1, RankChanged(1, 1, RankPhase.STOPPED, 0, 101))
    state = fold(*part(0), *part(1), *part(0, 2, "restart"), *part(1, 2, "restart"), late, *part(1)[:1])
    assert state.attempt == 2
    assert state.ranks[1].phase is RankPhase.RUNNING


def test_an_elastic_run_goes_on_alone() -> None:
    state = fold(*part(0), *part(1), *part(0, 2, "failure", world=1))
    assert state.phase is RunPhase.RUNNING
    assert sorted(state.ranks) == [0]


def test_a_part_that_ended_does_not_end_the_run() -> None:
    ended = RunEnded(RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0")
    state = fold(*part(0), *part(1), (1, ended))
    assert state.phase is RunPhase.RUNNING
    assert state.nodes[1].phase is RunPhase.SUCCEEDED
    state.apply(Stamped(99.0, RunEnded(RunPhase.FAILED, 1, "node 0 failed"), 99, node=HUB))
    assert (state.phase, state.end_text) == (RunPhase.FAILED, "node 0 failed")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_cause_is_the_earliest_that_is_no_symptom(order: tuple[int, int]) -> None:
    causes = {
        0: FirstCause(
            0, 0, 0, text="rank 0 raised RuntimeError: Connection closed by peer", at=5.0, symptom=True
        ),
        1: FirstCause(1, 0, 1, text="rank 1 raised ValueError: bad batch", at=6.0),
    }
    ends: list[tuple[int, Event]] = [
        (node, AttemptEnded(1, Outcome.FAILED, causes[node], f"attempt 1 failed: {causes[node].text}"))
        for node in order
    ]
    state = fold(*part(0), *part(1), *ends)
    told = state.attempts[0]
    assert told.first_cause is not None
    assert (told.first_cause.rank, told.outcome) == (1, Outcome.FAILED)
    assert "bad batch" in told.text
    assert "Connection closed" not in told.text


def test_a_cause_without_a_time_never_replaces_one_that_was_reported_before() -> None:
    times: list[tuple[float | None, float | None, int]] = [
        (None, 6.0, 0),
        (6.0, None, 0),
        (6.0, 5.0, 1),
        (5.0, 6.0, 0),
    ]
    for first, second, expected in times:
        causes = (FirstCause(0, 0, 0, text="a", at=first), FirstCause(1, 0, 1, text="b", at=second))
        ends = [
            (node, AttemptEnded(1, Outcome.FAILED, cause, cause.text)) for node, cause in enumerate(causes)
        ]
        told = fold(*part(0), *part(1), *ends).attempts[0].first_cause
        assert told is not None
        assert told.rank == expected


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_attempt_that_failed_on_one_node_failed(order: tuple[int, int]) -> None:
    outcomes = (Outcome.FAILED, Outcome.SUCCEEDED)
    state = fold(*part(0), *part(1), *((node, AttemptEnded(1, outcomes[node])) for node in order))
    assert [attempt["outcome"] for attempt in status_json(state)["attempts"]] == ["failed"]


def test_links_and_stages_are_told_with_their_node() -> None:
    state = fold(
        (HUB, StageChanged(Stage.PROVISION, "begun")),
        (1, StageChanged(Stage.SETUP, "begun")),
        (HUB, StageChanged(Stage.PROVISION, "done")),
        (1, StageChanged(Stage.SETUP, "failed", "pip found no torch")),
        (1, LinkChanged(LinkState.CONNECTING, "c2")),
        (1, LinkChanged(LinkState.UP, "c2")),
        (1, LinkChanged(LinkState.LOST, "c2", "c2 does not answer", retry_at=50.0)),
        (1, LinkChanged(LinkState.UP, "c2")),
    )
    assert state.nodes[1].link is LinkState.UP
    assert HUB not in state.nodes
    texts = [text for _, text in state.notices]
    assert "c2: the link is lost: c2 does not answer" in texts
    assert "c2: the link is back" in texts
    stages = {(one["stage"], one["node"]): one["state"] for one in status_json(state)["stages"]}
    assert stages == {("provision", None): "done", ("setup", 1): "failed"}


def test_only_the_hubs_own_commands_are_open() -> None:
    state = fold(
        *part(0),
        *part(1),
        (HUB, CommandReceived("a", "restart requested", "restart")),
        (1, CommandDone("a", True, "restarted")),
        (1, CommandReceived("b", "stop requested", "stop")),
    )
    assert [*state.open_commands] == ["a"]
    assert state.phase is RunPhase.STOPPING


def test_failures_counted_on_one_node_are_not_forgotten_by_another() -> None:
    delayed = (1, RestartDelayed(1.0, 2, 3))
    state = fold(*part(0), *part(1), delayed, *part(0, 2, "membership"))
    assert state.failures == 2


def test_the_cluster_and_the_place_in_each_nodes_journal_are_known() -> None:
    state = fold(*part(0), *part(1), (HUB, ClusterChanged(Cluster(name="t1", price_per_hour=10.0))))
    assert state.cluster is not None
    assert msgspec.to_builtins(status_json(state))["cluster"]["price_per_hour"] == 10.0
    assert (state.nodes[0].source, state.nodes[1].source) == (30, 50)


def test_what_a_hub_says_of_a_node_is_not_heard_from_it() -> None:
    """Its age is that of its own last word, however often its link is tried."""
    state = RunState()
    state.apply(Stamped(1.0, RunCreated("r", "n", "client", PLAN, merged=True), 1, HUB))
    state.apply(Stamped(2.0, CaughtUp(1)))
    assert state.nodes == {}, "nothing is known of a node before there is one"
    state.apply(Stamped(3.0, LinkChanged(LinkState.UP, "c2"), 2, 1))
    assert status_json(state, 9.0)["nodes"][0]["age_s"] is None
    state.apply(Stamped(4.0, RunCreated("r.n1", "n", "c2", PLAN), 3, 1, 1))
    state.apply(Stamped(8.0, LinkChanged(LinkState.LOST, "c2", "c2 does not answer"), 4, 1))
    assert status_json(state, 9.0)["nodes"][0]["age_s"] == 5.0


@pytest.mark.parametrize("phase", [RunPhase.LOST, RunPhase.STOPPED, RunPhase.SUCCEEDED])
def test_no_rank_of_a_run_that_has_ended_runs(phase: RunPhase) -> None:
    """What nobody saw the end of is lost, also in the ledger; what was seen stays."""
    seen = RankChanged(1, 0, RankPhase.STOPPED, 0, 100, 1)
    state = fold(*part(0), *part(1), (0, seen), (HUB, RunEnded(phase, None, "over")))
    assert {number: rank.phase for number, rank in state.ranks.items()} == {
        0: RankPhase.STOPPED,
        1: RankPhase.LOST,
    }
    assert state.ranks[1].pid == 101, "what was last known"
    assert (state.attempts[-1].outcome, state.attempts[-1].ended) == (Outcome.LOST, state.ended)


def test_the_ranks_of_a_part_that_has_ended_do_not_run() -> None:
    state = fold(*part(0), *part(1), (1, RunEnded(RunPhase.FAILED, 1, "the runner died")))
    assert [state.ranks[rank].phase for rank in (0, 1)] == [RankPhase.RUNNING, RankPhase.LOST]
    assert state.phase is RunPhase.RUNNING


def test_the_ranks_of_a_node_follow_the_attempts() -> None:
    places = (RankPlace(2, 0, 1, "0"), RankPlace(3, 1, 1, "1"))
    state = fold(
        (0, AttemptStarted(1, "launch", 4, (RankPlace(0, 0, 0, "0"),))),
        (1, AttemptStarted(1, "launch", 4, places)),
    )
    assert [rank.place.rank for rank in state.ranks_of(1)] == [2, 3]
    before = state.ranks_of(1)[0]
    state.apply(Stamped(9.0, RankChanged(1, 2, RankPhase.FAILED, 0), 10, 1))
    assert before.phase is state.ranks_of(1)[0].phase is RankPhase.FAILED
    state.apply(Stamped(9.0, AttemptStarted(2, "restart", 2, (RankPlace(1, 0, 1, "0"),)), 11, 1))
    assert [rank.place.rank for rank in state.ranks_of(1)] == [1]
    assert (state.ranks_of(0), state.ranks_of(7)) == ([], [])
