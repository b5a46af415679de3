"""Which data a verdict lacks."""

from __future__ import annotations

import pytest

from distui.runners.model import Collective, PlanSummary, Pulse, RankPhase, RankPlace
from distui.runners.state import Rank, RunState
from distui.runners.status import UNTIMED, missing, untimed


def state_of(backend: str, duration: float | None, calls: int = 3) -> RunState:
    state = RunState(plan=PlanSummary("ddp", "ddp", "torchrun", "train.py", backend=backend))
    recent = tuple(
        Collective("0", seq, "all_reduce", done=True, duration_ms=duration) for seq in range(calls)
    )
    state.ranks[0] = Rank(
        RankPlace(0, 0), RankPhase.RUNNING, hook="armed", pulse=Pulse(0, 100.0, recent=recent)
    )
    return state


@pytest.mark.parametrize(
    ("backend", "duration", "calls", "lacks"),
    [("nccl", None, 3, True), ("nccl", 1.5, 3, False), ("nccl", None, 0, False), ("gloo", None, 3, False)],
)
def test_slow_ranks_need_durations_on_nccl(
    backend: str, duration: float | None, calls: int, lacks: bool
) -> None:
    state = state_of(backend, duration, calls)
    assert untimed(state) is lacks
    assert (UNTIMED in missing(state, 1)) is lacks
