"""What is said of an attempt that failed."""

from __future__ import annotations

from typing import Any

from each import for_each

from distui.presets.finding import Finding
from distui.runners.diagnosis import died
from distui.runners.diagnosis.memory_curve import MemoryPoint
from distui.runners.diagnosis.view import View
from distui.runners.run.model import FirstCause, Outcome, RankPhase, RankPlace, RunPhase
from distui.runners.run.samples import RankSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

NOW = 1_000_000.0
RAISED = FirstCause(
    3, 3, 0, pid=77, exit_code=1, kind="exception", retry="maybe", remedy="look at that line",
    text="rank 3 raised ValueError: bad sample at train.py:88 (exit code 1)", where="job/train.py:88",
    last_lines=tuple(f"line {number}" for number in range(12)), victims=(0, 1, 2), at=NOW - 5,
)  # fmt: skip


def failed(*causes: FirstCause | None, outcome: Outcome = Outcome.FAILED, nodes: int = 1) -> RunState:
    """A run whose attempts ended of these causes."""
    places = tuple(RankPlace(rank, rank, rank * nodes // 4) for rank in range(4))
    state = RunState(phase=RunPhase.FAILED)
    state.nodes = {node: Node(node, host=f"gpu-{node}") for node in range(nodes)}
    state.ranks = {place.rank: Rank(place, RankPhase.FAILED) for place in places}
    for number, cause in enumerate(causes, 1):
        attempt = Attempt(number, NOW - 100, "launch", 4, {}, places)
        attempt.ended, attempt.outcome, attempt.first_cause = NOW, outcome, cause
        state.attempts.append(attempt)
    return state


def found(state: RunState) -> list[Finding]:
    return list(died.find(View(state=state, plan=None, now=NOW + 1, history={})))


def one(state: RunState) -> Finding:
    (finding,) = found(state)
    return finding


def cause(**more: Any) -> FirstCause:
    return FirstCause(**{**{name: getattr(RAISED, name) for name in RAISED.__struct_fields__}, **more})


def test_the_first_cause_is_named_with_its_evidence() -> None:
    said = one(failed(RAISED))
    assert (said.id, said.severity, said.role) == ("died-exception", "error", "cause")
    assert said.text == "rank 3 raised ValueError: bad sample at train.py:88 (exit code 1)"
    assert (said.rank, said.node, said.ranks, said.since) == (3, 0, (0, 1, 2, 3), NOW - 5)
    assert said.remedy == "look at that line"
    assert said.evidence[:3] == (
        "attempt 1: rank 3 (pid 77) ended with exit code 1",
        "after it: ranks 0-2",
        "raised at job/train.py:88",
    )
    assert said.evidence[3:] == RAISED.last_lines[-8:]


def test_of_several_nodes_the_sentence_names_the_one() -> None:
    said = one(failed(cause(node=1), nodes=2))
    assert said.text == "rank 3 on gpu-1 raised ValueError: bad sample at train.py:88 (exit code 1)"
    assert said.node == 1


@for_each(
    ("retry", "words"),
    [
        ("no", "look at that line; a restart cannot help before that"),
        ("maybe", "look at that line"),
        ("yes", "look at that line; a restart can help"),
    ],
)
def test_whether_a_restart_can_help_is_said(retry: str, words: str) -> None:
    assert one(failed(cause(retry=retry))).remedy == words


def test_the_kernel_and_the_driver_are_quoted() -> None:
    state = failed(
        cause(signal="SIGABRT", kind="cuda-error", evidence=("kernel log: NVRM: Xid (PCI:1): 79",))
    )
    state.findings[("xid-79:gpu2", None, 0)] = Finding(
        "xid-79:gpu2", "error", "Xid 79 on GPU 2: off the bus", node=0
    )
    state.findings[("xid-48:gpu1", None, 5)] = Finding("xid-48:gpu1", "error", "elsewhere", node=5)
    said = one(state).evidence
    assert said[0] == "attempt 1: rank 3 (pid 77) ended with SIGABRT"
    assert {"kernel log: NVRM: Xid (PCI:1): 79", "Xid 79 on GPU 2: off the bus"} <= set(said)
    assert "elsewhere" not in said


def test_attempts_that_ended_in_the_same_way_are_counted() -> None:
    assert "attempts 1, 2 ended in the same way" in one(failed(RAISED, RAISED, RAISED)).evidence
    other = cause(where="job/train.py:90")
    assert "attempt 2 ended in the same way" in one(failed(other, RAISED, RAISED)).evidence
    assert not [line for line in one(failed(RAISED, other)).evidence if "same way" in line]


def test_an_attempt_does_not_end_in_the_same_way_as_itself() -> None:
    state = failed(RAISED)
    state.attempts.append(Attempt(2, NOW, "failure", 4, {}, ()))
    assert not [line for line in one(state).evidence if "same way" in line]


def test_a_victims_words_are_a_symptom() -> None:
    assert one(failed(cause(kind="peer-gone", symptom=True))).role == "symptom"


def test_a_victim_is_not_told_before_the_other_nodes_had_time_to_say_what_they_know() -> None:
    state = failed(cause(rank=0, node=0, kind="peer-gone", symptom=True), nodes=2)
    state.ranks[3].phase = RankPhase.RUNNING
    assert found(state) == []
    late = died.find(View(state=state, plan=None, now=NOW + died.OTHERS_S, history={}))
    assert [said.id for said in late] == ["died-peer-gone"]
    state.ranks[3].phase, state.ranks[1].phase = RankPhase.FAILED, RankPhase.RUNNING
    assert one(state).id == "died-peer-gone"  # a rank of its own node is no reason to wait


def test_memory_is_told_by_those_who_know_more() -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    known = cause(kind="cuda-oom", text="rank 3 ran out of GPU memory", last_lines=(said,))
    assert found(failed(known)) == []
    silent = cause(kind="cuda-oom", text="rank 3 ran out of GPU memory", last_lines=())
    assert one(failed(silent)).id == "died-cuda-oom"


@for_each("outcome", [Outcome.SUCCEEDED, Outcome.RESTARTED, Outcome.STOPPED])
def test_what_was_asked_for_or_went_well_is_no_death(outcome: Outcome) -> None:
    assert found(failed(RAISED, outcome=outcome)) == []


def test_an_attempt_that_nobody_saw_end_is_told() -> None:
    state = failed(None, outcome=Outcome.LOST)
    state.attempts[0].text = "attempt 1 lost its runner (pid 7)"
    said = one(state)
    assert (said.id, said.text, said.rank, said.since) == ("died-lost", state.attempts[0].text, None, NOW)


def test_a_crash_after_the_end_of_the_script_is_no_error() -> None:
    assert one(failed(cause(kind="exit-abort"))).severity == "warning"


def test_nothing_is_said_without_a_cause_or_of_an_attempt_that_goes_on() -> None:
    assert found(failed(None)) == []
    assert found(RunState()) == []


def going_on(step: int, age: float) -> RunState:
    """The attempt after one that failed at its step 30."""
    going = failed(RAISED, RAISED)
    newest = going.attempts[-1]
    newest.ended = newest.outcome = newest.first_cause = None
    newest.began = NOW - age
    going.attempts[-2].steps = 30
    for number, rank in going.ranks.items():
        rank.sample = RankSample(number, step=step)
    return going


def test_a_failure_stays_in_sight_until_the_next_attempt_has_come_further() -> None:
    still = one(going_on(step=0, age=20.0))
    assert (still.id, still.rank, still.severity) == ("died-exception", one(failed(RAISED)).rank, "error")
    assert one(going_on(step=30, age=20.0)).text == still.text
    assert found(going_on(step=31, age=20.0)) == []
    assert found(going_on(step=3, age=130.0)) == [], "from a checkpoint it counts anew"
    assert one(going_on(step=0, age=130.0)).text == still.text
    assert found(going_on(step=0, age=310.0)) == []


def test_the_failure_of_the_attempt_before_names_it_however_the_rank_ended() -> None:
    killed = cause(kind="killed", signal="SIGKILL", exit_code=None, where="", text="rank 3 was killed")
    raised, ended = going_on(step=3, age=20.0), going_on(step=3, age=20.0)
    ended.attempts[0].first_cause = killed
    assert one(raised).text == f"attempt 1: {RAISED.text}"
    assert (one(ended).id, one(ended).text) == ("died-killed", "attempt 1: rank 3 was killed")


def test_a_failed_rank_is_named_before_the_others_have_ended() -> None:
    state = failed(RAISED)
    attempt = state.attempts[-1]
    attempt.ended = attempt.outcome = None
    attempt.first_cause = cause(at=NOW - 2.0)
    assert found(state) == [], "torchrun usually ends the others within seconds"
    attempt.first_cause = cause(at=NOW - 6.0)
    assert one(state).text == RAISED.text
    attempt.first_cause = cause(at=NOW - 6.0, kind="left-early")
    assert one(state).id == "died-peer-gone", "as it is called once the attempt has ended"
    attempt.first_cause = cause(at=NOW - 6.0, symptom=True)
    assert found(state) == []


def test_nothing_is_said_of_a_run_that_its_user_stops() -> None:
    for phase in (RunPhase.STOPPING, RunPhase.STOPPED):
        state = failed(RAISED)
        state.phase = phase
        assert found(state) == []


@for_each("kind", ["peer-gone", "timeout"])
def test_a_rank_that_was_done_before_the_others_is_named_and_not_its_victim(kind: str) -> None:
    state = failed(cause(rank=0, kind=kind, symptom=True, text="rank 0 lost its connection", victims=(3,)))
    state.ranks[2].phase = RankPhase.SUCCEEDED
    said = one(state)
    assert (said.id, said.rank, said.ranks, said.role) == ("died-peer-gone", 2, (0, 2, 3), "cause")
    assert said.text == "rank 2 ended with exit code 0 before the others were done"
    assert said.evidence[0] == "because of it rank 0 lost its connection"
    state.ranks[2].phase = RankPhase.FAILED
    assert one(state).rank == 0


def test_of_several_ranks_that_were_done_early_all_are_named() -> None:
    state = failed(cause(rank=2, kind="left-early", text="rank 2 ended"))
    state.ranks[0].phase = state.ranks[2].phase = RankPhase.SUCCEEDED
    assert one(state).text == "ranks 0, 2 ended with exit code 0 before the others were done"


@for_each(("growing", "said"), [(True, True), (False, False)])
def test_of_a_rank_that_was_killed_the_growth_of_its_memory_is_evidence(growing: bool, said: bool) -> None:
    killed = cause(kind="killed", signal="SIGKILL", exit_code=None, last_lines=(), where="")
    sizes = [300 + (26 * at if growing else 0) for at in range(50)]
    curve = [MemoryPoint(NOW - 55 + at, size << 20) for at, size in enumerate(sizes)]
    view = View(state=failed(killed), plan=None, now=NOW + 1, history={}, memory={3: curve})
    (one,) = died.find(view)
    assert ("rank 3's host memory: 300.0 MiB → 1.5 GiB in 49 s" in one.evidence) is said
    assert any("memory" in line for line in one.evidence) is said
