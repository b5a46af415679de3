"""What a run's journal says stands against it now, and which data a verdict lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import to_builtins

from ..model import Finding, LinkState, RankPhase
from ..spans import spans
from ..state import RunState

GRAVITY = {"error": 0, "warn": 1, "info": 2}
ROLES = {"cause": 0, "hint": 1, "symptom": 2, "fact": 3}
NO_VERDICT = "hang-no-verdict"
"""Of the findings that are no alarm, the one that a user waits for."""


def standing(state: RunState) -> list[Finding]:
    """The findings that hold, the worst first."""
    return worst_first(state.findings.values())


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    """By severity, then causes before hints before symptoms; the earlier ones first."""
    return sorted(found, key=_order)


def _order(one: Finding) -> tuple[int, bool, int, float]:
    gravity = GRAVITY.get(one.severity, 1)
    since = float("inf") if one.since is None else one.since
    return gravity, one.id != NO_VERDICT, ROLES.get(one.role, 4), since


def missing(state: RunState, logs: int) -> list[str]:
    """Data that a diagnosis would want and has not, a sentence each. `logs`: how many logs were read."""
    said = [] if logs else ["no logs of the newest attempt are on this machine"]
    for node in state.nodes.values():
        if node.link is LinkState.LOST and not state.phase.ended:
            said.append(f"{node.host or f'node {node.node}'} does not answer: what it says is of before")
    blind = [
        number
        for number, rank in sorted(state.ranks.items())
        if rank.phase is RankPhase.RUNNING and not rank.hook
    ]
    if blind and not state.phase.ended:
        pulses = [state.ranks[number].pulse for number in blind]
        lacking = (
            "no flight recorder"
            if all(one and one.stack for one in pulses)
            else "no stack, no flight recorder"
        )
        said.append(f"no hook answers in rank{'' if len(blind) == 1 else 's'} {spans(blind, 8)}: {lacking}")
    if untimed(state) and not state.phase.ended:
        said.append(UNTIMED)
    return said


UNTIMED = "TORCH_NCCL_ENABLE_TIMING=1 has torch record how long collectives take: without it no slow rank is found"
"""On NCCL, where a collective is called long before it runs."""


def untimed(state: RunState) -> bool:
    """Whether NCCL's collectives are seen, and none of them has a duration."""
    if state.plan is None or state.plan.backend != "nccl":
        return False
    pulses = [rank.pulse for rank in state.ranks.values() if rank.pulse is not None]
    seen = [one for pulse in pulses for one in pulse.recent if not one.p2p]
    return bool(seen) and all(one.duration_ms is None for one in seen)


def document(state: RunState, logs: int) -> dict[str, Any]:
    """For `--json`: `state`, `attempt`, `findings[]` as in `status --json`, `missing[]`."""
    return {
        "state": str(state.phase),
        "attempt": state.attempt,
        "findings": [
            {name: to_builtins(getattr(one, name)) for name in one.__struct_fields__}
            for one in standing(state)
        ],
        "missing": missing(state, logs),
    }
