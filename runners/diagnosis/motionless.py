"""Report a run whose ranks all sleep and move nothing, though none waits for another: perhaps their storage is gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...presets.finding import Finding
from ..run.pulse import Pulse
from . import culprits
from .activity import Activity, Kind
from .rank_dumps import DEFAULT
from .view import View
from .waits import Key, Pending, WaitPoint, ended

STILL_S = 60.0
"""Seconds since the newest step and collective of all ranks."""
_ELSEWHERE = (Kind.COLLECTIVE, Kind.STORE, Kind.DEBUGGER, Kind.UNKNOWN)
_REMEDY = "check what these lines wait for"


def find(view: View) -> Iterable[Finding]:
    """Return one finding about all ranks: an error for a file, lock or device, else a warning after `works_for_s`."""
    ranks = sorted(view.state.ranks)
    moved = max((_moved(view.history.get(rank, ())) for rank in ranks), default=0.0)
    still_s = view.now - moved
    if not moved or still_s < STILL_S or not all(_sleeps(view, rank) for rank in ranks):
        return
    is_of_system = all(_is_of_system(view.history[rank][-1]) for rank in ranks)
    if not is_of_system and still_s < view.works_for_s:
        return
    pending = Pending(WaitPoint(Key(DEFAULT), 0, "step"), age=still_s, since=moved)
    cases = culprits.together(view, dict.fromkeys(ranks, (pending,)))
    parts = [culprits.finding(view, case._replace(nearest=())) for case in cases]
    if sorted(rank for case in cases for rank in case.ranks) != ranks:
        return
    yield Finding(
        "hang-idle",
        "error" if is_of_system else "warning",
        f"no rank moves: {'; '.join(part.text for part in parts[:4])}",
        **view.rank_fields(ranks),
        remedy=parts[0].remedy or _REMEDY,
        since=moved,
        evidence=tuple(line for part in parts[:4] for line in part.evidence),
    )


def _moved(pulses: Sequence[Pulse]) -> float:
    """Return the Unix time of a rank's newest step or collective; 0 before the first."""
    if not pulses:
        return 0.0
    calls = (call.created for pulse in pulses for call in (*pulse.recent, *pulse.active))
    return max(pulses[-1].last_step or 0.0, *calls, 0.0)


def _is_of_system(pulse: Pulse) -> bool:
    """Whether a rank waits for a file, a lock or a device, none of which usually takes a minute."""
    return pulse.call in ("open", "lock", "write") or pulse.state == "D"


def _sleeps(view: View, rank: int) -> bool:
    does = culprits.doing(view, rank)
    return (
        not ended(view, rank) and does.activity is Activity.ASLEEP and does.position.kind not in _ELSEWHERE
    )
