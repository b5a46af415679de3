"""Judging: what it remembers between looks, and what it tells of what changed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from each import for_each

from distui.presets.finding import Finding
from distui.runners.diagnosis import detectors as inheritance
from distui.runners.diagnosis.detectors import Judging, owns
from distui.runners.diagnosis.view import PULSES_KEPT, View
from distui.runners.run.model import Event, FindingCleared, FindingRaised, RankPhase, RankPlace, Stamped
from distui.runners.run.pulse import Collective, ProcessGroup, Pulse
from distui.runners.run.samples import Host, RankSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

FULL = Host(mem_total=1000, mem_used=500, cgroup_mem_max=100, cgroup_mem_used=99)
CALM = Host(mem_total=1000, mem_used=500, cgroup_mem_max=100, cgroup_mem_used=50)


def state_of(ranks: int = 2) -> RunState:
    places = tuple(RankPlace(rank, rank) for rank in range(ranks))
    state = RunState(attempts=[Attempt(1, 0.0, "start", ranks, {}, places)])
    state.nodes[0] = Node(0, host="gpu-a", metrics=CALM)
    state.ranks = {place.rank: Rank(place, RankPhase.RUNNING, pid=10 + place.rank) for place in places}
    return state


def pulse(rank: int, at: float, pid: int = 10, calls: int = 3) -> Pulse:
    recent = tuple(
        Collective("0", seq, "all_reduce", created=at + seq / 100, done=True) for seq in range(1, calls + 1)
    )
    return Pulse(
        rank=rank,
        at=at,
        pid=pid,
        groups=(ProcessGroup("0", (0, 1), enqueued=calls),),
        recent=recent,
        hook=True,
    )


@pytest.fixture
def told() -> list[Event]:
    return []


def test_a_finding_is_told_once_and_cleared_once(told: list[Event]) -> None:
    state = state_of()

    def emit(event: Event) -> None:
        told.append(event)
        state.apply(Stamped(100.0, event, 0))

    judging = Judging(state, None, emit)
    judging.judge(100.0)
    assert told == []
    state.nodes[0].metrics = FULL
    judging.judge(102.0)
    judging.judge(104.0)
    (raised,) = told
    assert isinstance(raised, FindingRaised)
    assert raised.finding.id == "oom-near"
    state.nodes[0].metrics = CALM
    judging.judge(106.0)
    judging.judge(108.0)
    assert told[1:] == [FindingCleared("oom-near", None, 0)]


def inherited(state: RunState, told: list[Event], *findings: Finding) -> Judging:
    """A judging that goes on where another one had raised these."""
    state.findings = {(one.id, one.rank, one.node): one for one in findings}
    judging = Judging(state, None, told.append)
    judging.resume()
    return judging


def cleared(told: list[Event]) -> list[str]:
    return sorted(one.id for one in told if isinstance(one, FindingCleared))


def test_a_new_process_clears_what_its_predecessor_raised_and_nothing_else(told: list[Event]) -> None:
    names = ("hang-not-joined", "died-usage", "gpu-lost:gpu0", "disk-low")
    state = state_of()
    judging = inherited(state, told, *(Finding(name, "warning", "…", node=0) for name in names))
    judging.judge(100.0)
    assert cleared(told) == ["died-usage"]
    state.attempts.append(Attempt(2, 101.0, "request", 2, {}, ()))
    judging.judge(102.0)
    assert cleared(told) == ["died-usage", "hang-not-joined"]


def test_what_is_looked_for_is_cleared_when_all_ranks_were_looked_at_for_long_enough(
    told: list[Event],
) -> None:
    state = state_of()
    judging = inherited(state, told, Finding("hang-not-joined", "error", "…", node=0))
    for at in range(100, 134, 2):
        state.ranks[0].pulse = pulse(0, float(at))
        if at >= 110:
            state.ranks[1].pulse = pulse(1, float(at), pid=11)
        judging.judge(float(at))
        assert cleared(told) == (["hang-not-joined"] if at >= 110 + inheritance.AGAIN_S else [])


def test_a_rank_without_pulses_is_not_waited_for_for_ever(told: list[Event]) -> None:
    judging = inherited(state_of(), told, Finding("hang-not-joined", "error", "…", node=0))
    judging.judge(100.0)
    judging.judge(100.0 + inheritance.SILENT_S)
    assert told == []
    judging.judge(100.0 + inheritance.SILENT_S + inheritance.AGAIN_S)
    assert cleared(told) == ["hang-not-joined"]


def test_where_all_ranks_have_ended_nothing_is_waited_for(told: list[Event]) -> None:
    state = state_of()
    judging = inherited(state, told, Finding("hang-not-joined", "error", "…", node=0))
    for rank in state.ranks.values():
        rank.phase = RankPhase.SUCCEEDED
    judging.judge(100.0)
    assert cleared(told) == ["hang-not-joined"]


def judged(before: Finding, *found: Finding) -> list[Finding]:
    """What holds at the first look after a resume."""
    view = View(state=state_of(), plan=None, now=100.0, history={})
    return inheritance.Inherited([before], 1).judge(view, list(found))


HANG = Finding("hang-not-joined", "error", "rank 1 sleeps", rank=1, node=0, since=5.0)


def test_a_finding_that_says_the_same_stays_as_it_was() -> None:
    assert judged(HANG, replace(HANG, since=5.25, evidence=("…",))) == [HANG]


def test_less_certain_words_do_not_take_the_place_of_a_verdict() -> None:
    works = replace(HANG, severity="note", text="rank 1 works")
    unclear = Finding("hang-no-verdict", "note", "…")
    assert judged(HANG, works, unclear) == [HANG]


def test_another_verdict_takes_the_place_of_what_was_said() -> None:
    loops = replace(HANG, id="hang-python", text="rank 1 loops")
    assert judged(HANG, loops) == [loops]
    assert judged(HANG, replace(HANG, text="rank 1 sleeps elsewhere"))[0].text == "rank 1 sleeps elsewhere"


def test_what_agents_raise_under_the_same_id_is_theirs(told: list[Event]) -> None:
    state = state_of()
    theirs, ours = (Finding("version-mismatch", "error", "…", node=node) for node in (0, None))
    judging = inherited(state, told, theirs, ours)
    state.attempts.append(Attempt(2, 99.0, "request", 2, {}, ()))
    judging.judge(100.0)
    assert told == [FindingCleared("version-mismatch", None, None)]


def test_a_finding_that_still_holds_is_not_told_anew_after_a_resume(told: list[Event]) -> None:
    state = state_of()
    state.nodes[0].metrics = FULL
    first: list[Event] = []
    Judging(state, None, first.append).judge(100.0)
    (raised,) = first
    assert isinstance(raised, FindingRaised)
    state.findings[raised.finding.id, raised.finding.rank, raised.finding.node] = raised.finding
    judging = Judging(state, None, told.append)
    judging.resume()
    judging.judge(500.0)
    assert told == []


@for_each("name", ["hang-mismatch", "start-waiting", "straggler", "input-bound", "oom-cuda", "mem-creep"])
def test_ids_that_are_its_own(name: str) -> None:
    assert owns(Finding(name, "warning", "…"))


@for_each("name", ["gpu-ecc:gpu1", "xid-79", "disk-full", "sampler-failed", "stragglers", "my-hang-x"])
def test_ids_that_are_not(name: str) -> None:
    assert not owns(Finding(name, "warning", "…"))


def test_pulses_are_kept_once_and_not_for_ever(told: list[Event]) -> None:
    state = state_of()
    judging = Judging(state, None, told.append)
    for number in range(20):
        state.ranks[0].pulse = pulse(0, float(number))
        judging.view(float(number))
        history = judging.view(float(number) + 0.5).history
    assert [one.at for one in history[0]] == [float(number) for number in range(20 - PULSES_KEPT, 20)]
    assert 1 not in history


def test_another_process_begins_anew(told: list[Event]) -> None:
    state = state_of()
    judging = Judging(state, None, told.append)
    for rank in (0, 1):
        state.ranks[rank].pulse = pulse(rank, 1.0)
    arrivals = judging.view(2.0).arrivals
    assert arrivals is not None
    assert [group.newest_completed for group in arrivals.groups] == [3]
    state.ranks[1].pulse = pulse(1, 3.0, pid=99)
    view = judging.view(4.0)
    assert [one.pid for one in view.history[1]] == [99]
    assert view.arrivals is not None
    assert [group.newest_completed for group in view.arrivals.groups] == [0]


def test_memory_of_an_attempt_is_kept_through_the_next(told: list[Event]) -> None:
    state = state_of()
    judging = Judging(state, None, told.append)
    for at in (1.0, 2.0, 2.0, 3.0):
        state.ranks[1].sample, state.ranks[1].sampled = RankSample(1, rss_bytes=int(at), gpu_mem=7), at
        state.nodes[0].heard = at
        view = judging.view(at)
    assert [(one.at, one.rss, one.gpu) for one in view.memory[1]] == [(1.0, 1, 7), (2.0, 2, 7), (3.0, 3, 7)]
    assert [one.rss for one in view.node_memory[0]] == [50, 50, 50]
    assert view.memory_before == {}
    state.attempts.append(Attempt(2, 4.0, "failure", 2, {}, ()))
    state.ranks = {}
    view = judging.view(5.0)
    assert view.memory == {}
    assert [one.rss for one in view.memory_before[1]] == [1, 2, 3]
    assert len(view.node_memory[0]) == 3


def test_a_look_without_a_time_is_of_now(told: list[Event]) -> None:
    state = state_of()
    state.nodes[0].metrics = FULL
    before = time.time()
    Judging(state, None, told.append).judge()
    (raised,) = told
    assert isinstance(raised, FindingRaised)
    assert raised.finding.since is not None
    assert before <= raised.finding.since <= time.time()
