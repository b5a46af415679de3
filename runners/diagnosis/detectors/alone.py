"""A command that was told of more ranks than its run has, and idles: it may wait for them, and no hook tells where."""

from __future__ import annotations

from collections.abc import Sequence

from ...model import Finding, Pulse
from . import naming, progress, waits
from .view import View

LONG_S = 12.0
"""Seconds without processor time."""
START = (
    "start the others with the same MASTER_ADDR and MASTER_PORT, or give WORLD_SIZE the number of ranks that there are; "
    "`distui launch` sets them all"
)


def beyond(view: View, size: int) -> str:
    """That ranks were told of more ranks than the run has, a phrase; "" where they were not."""
    there = view.state.attempts[-1].world_size if view.state.attempts else size
    return f"WORLD_SIZE is {size}, this run has {_ranks(there)}" if there < size else ""


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def find(view: View) -> list[Finding]:
    """For ranks without a hook only: what the others wait for is seen in their stacks."""
    attempt = view.state.attempts[-1] if view.state.attempts else None
    if attempt is None:
        return []
    return [
        _told(view, rank, pulses[-1], attempt.world_size, attempt.began)
        for rank, pulses in view.history.items()
        if _waits(view, rank, pulses, attempt.world_size)
    ]


def _waits(view: View, rank: int, pulses: Sequence[Pulse], there: int) -> bool:
    known = view.state.ranks.get(rank)
    if (
        known is None
        or known.hook is not None
        or any(one.hook for one in pulses)
        or waits.ended(view, rank)
    ):
        return False
    first, newest = pulses[0], pulses[-1]
    size = newest.world_size or ""
    if not size.isdecimal() or int(size) <= there or newest.at - first.at < LONG_S:
        return False
    if first.process_s is None or newest.process_s is None or progress.works(first, newest):
        return False
    return newest.process_s - first.process_s <= progress.DOZES_SHARE * (newest.at - first.at)


def _told(view: View, rank: int, pulse: Pulse, there: int, began: float) -> Finding:
    who = naming.who(view.state, (rank,))
    return Finding(
        id="start-waiting",
        severity="info",
        text=f"{who} was told of WORLD_SIZE {pulse.world_size}, this run has {_ranks(there)}: "
        "it may wait for the others",
        role="fact",
        rank=rank,
        node=view.state.ranks[rank].place.node,
        remedy=START,
        evidence=(
            f"its environment says WORLD_SIZE={pulse.world_size}, MASTER_ADDR:MASTER_PORT {pulse.master or 'n/a'}",
            f"pid {pulse.pid} uses no processor time",
            "missing: its stack. A command of `distui exec` has no hook; py-spy, where it is installed, names the line",
        ),
        since=began,
    )
