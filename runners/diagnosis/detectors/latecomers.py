"""Ranks that sit somewhere else for good while the others are in init_process_group."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from ...model import Collective, Finding
from . import culprits, waits
from .places import Kind
from .progress import Mode
from .view import View
from .waits import Ends, Meeting, Spot, Wait

INIT = "init_process_group"
_KEY = waits.Key(waits.DEFAULT)
_SLOW = (Kind.NETWORK, Kind.SUBPROCESS, Kind.IMPORT, Kind.CHECKPOINT)
"""Places where a beginning may take long."""


def find(view: View, came: Mapping[int, float]) -> list[Finding]:
    """What those do that have not come; `came`: the others, and for how many seconds they have waited."""
    meeting = Meeting(Spot(_KEY, 0, INIT), age=max(came.values()))
    for rank, waited in came.items():
        call = Collective(waits.DEFAULT, 0, INIT, created=view.history[rank][-1].at - waited, p2p=True)
        meeting.waits[rank] = Wait(rank, _KEY, call, waited, recorded=False)
    absent = [rank for rank in view.history if rank not in came and _sits(view, rank)]
    cases = culprits.together(view, dict.fromkeys(absent, (meeting,)))
    alone = Ends({}, (), (), (), {})
    return [
        structs.replace(culprits.finding(view, one.ranks, one.said, alone, one.nearest), since=None)
        for one in cases
        if one.said.severity != "info"
    ]


def _sits(view: View, rank: int) -> bool:
    """Whether a rank is at a place that no slow beginning explains."""
    does = culprits.doing(view, rank)
    return does.mode in (Mode.ASLEEP, Mode.SILENT) and does.sure and does.place.kind not in _SLOW
