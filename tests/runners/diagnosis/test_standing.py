"""Which data a verdict lacks."""

from __future__ import annotations

from each import for_each

from distui.runners.diagnosis.missing_data import UNTIMED, missing, untimed
from distui.runners.run.model import PlanSummary, RankPhase, RankPlace, RunPhase
from distui.runners.run.pulse import Collective, Pulse
from distui.runners.run.state import Attempt, Rank, RunState

LOGS = ["node-0/attempt-001/rank-0.out"]


def state_of(backend: str, duration: float | None, calls: int = 3) -> RunState:
    state = RunState(plan=PlanSummary("ddp", "ddp", "torchrun", "train.py", backend=backend))
    recent = tuple(
        Collective("0", seq, "all_reduce", done=True, duration_ms=duration) for seq in range(calls)
    )
    state.ranks[0] = Rank(
        RankPlace(0, 0), RankPhase.RUNNING, hook="armed", pulse=Pulse(0, 100.0, recent=recent)
    )
    return state


@for_each(
    ("backend", "duration", "calls", "lacks"),
    [("nccl", None, 3, True), ("nccl", 1.5, 3, False), ("nccl", None, 0, False), ("gloo", None, 3, False)],
)
def test_slow_ranks_need_durations_on_nccl(
    backend: str, duration: float | None, calls: int, lacks: bool
) -> None:
    state = state_of(backend, duration, calls)
    assert untimed(state) is lacks
    assert (UNTIMED in missing(state, LOGS)) is lacks


@for_each(
    ("logs", "absent"),
    [
        (["node-0/attempt-002/rank-0.out", "node-1/attempt-002/rank-1.out"], ""),
        (["node-1/attempt-002/rank-1.out"], "node 0"),
        (["node-0/attempt-001/rank-0.out", "node-1/attempt-001/rank-1.out"], "nodes 0, 1"),
        ([], "nodes 0, 1"),
    ],
)
def test_logs_that_a_hub_has_not_read_are_named_while_the_run_lives(logs: list[str], absent: str) -> None:
    state = RunState(name="night", merged=True, phase=RunPhase.RUNNING)
    state.attempts = [Attempt(number, 0.0, "launch", 2, {}, ()) for number in (1, 2)]
    for number in (0, 1):
        state.ranks[number] = Rank(RankPlace(number, 0, number), RankPhase.RUNNING, hook="armed")
    told = f"the logs of attempt 2 on {absent} were not read yet: `distui logs night` fetches them"
    assert missing(state, logs) == ([told] if absent else [])
    state.phase = RunPhase.SUCCEEDED
    assert missing(state, logs) == ([] if logs else ["no logs of the newest attempt are on this machine"])
