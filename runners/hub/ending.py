"""When a run on several nodes has ended, and how. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..model import FirstCause, LinkState, RunEnded, RunPhase

GIVE_UP_S = 60.0
"""Seconds without a link after which a node counts as gone, where all others have ended."""
STOP_GIVE_UP_S = 15.0
"""The same for a run that is being stopped."""
UNHEARD_S = 600.0
"""The same where no node heard of the stop: one that answers again still will."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is known of one node's part."""

    node: int
    host: str
    ended: RunEnded | None = None
    read: bool = True
    """Whether everything that is wanted of an ended part was read."""
    link: LinkState | None = None
    silent_s: float = 0.0
    """How long its link has been as it is."""

    @property
    def name(self) -> str:
        return f"node {self.node} ({self.host})" if self.host else f"node {self.node}"


@dataclass(frozen=True, slots=True)
class Whole:
    """What is known of the run."""

    name: str
    stopping: bool = False
    why: str = "stopped"
    """What is said of a run that was stopped."""
    nnodes_min: int | None = None
    """An elastic run goes on, and succeeds, with as few nodes."""
    cause: FirstCause | None = None
    """Of the newest attempt."""
    cluster_down: bool = False


def ending(whole: Whole, parts: list[Part]) -> RunEnded | None:
    """How the run ended; None while it goes on."""
    patient_s = patience(whole.stopping, any(part.ended for part in parts), whole.cluster_down)
    open_parts = [part for part in parts if part.ended is None]
    gone = [part for part in open_parts if part.link is LinkState.LOST and part.silent_s >= patient_s]
    if not parts or len(gone) < len(open_parts) or any(part.ended and not part.read for part in parts):
        return None
    told = {part.node: part.ended for part in parts if part.ended is not None}
    if whole.stopping:
        return RunEnded(RunPhase.STOPPED, 1, whole.why + _without(gone, whole.cluster_down))
    if not told:
        return _all_gone(whole)
    good = [node for node, end in told.items() if end.phase is RunPhase.SUCCEEDED]
    if len(good) == len(parts) or (whole.nnodes_min is not None and len(good) >= whole.nnodes_min):
        return RunEnded(RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0" + _without(gone))
    return _failed(whole, parts, told, gone)


def patience(stopping: bool, some_ended: bool, cluster_down: bool) -> float:
    """Seconds without a link after which a node counts as gone; of a run that is being stopped, since then."""
    if cluster_down:
        return 0.0
    if not stopping:
        return GIVE_UP_S
    return STOP_GIVE_UP_S if some_ended else UNHEARD_S


def _all_gone(whole: Whole) -> RunEnded | None:
    """No node answers. Unless the cluster is known to be gone, that says nothing about the run."""
    if not whole.cluster_down:
        return None
    return RunEnded(RunPhase.LOST, None, "the cluster was taken down, and nobody saw how the run ended")


def _without(gone: list[Part], cluster_down: bool = False) -> str:
    names = ", ".join(part.name for part in gone)
    if gone and cluster_down:
        return f"; how {names} ended nobody saw"
    return f"; {names} did not answer: whatever runs there still does" if gone else ""


def _failed(
    whole: Whole, parts: list[Part], told: Mapping[int, RunEnded], gone: list[Part]
) -> RunEnded | None:
    by_node = {part.node: part for part in parts}
    bad = {node: end for node, end in told.items() if end.phase is not RunPhase.SUCCEEDED}
    if not bad:  # what became of the silent ones is unknown
        names = ", ".join(part.name for part in gone)
        return RunEnded(RunPhase.LOST, None, f"all others succeeded; how {names} ended nobody saw")
    node = whole.cause.node if whole.cause is not None and whole.cause.node in bad else min(bad)
    text = bad[node].text
    if whole.cause is not None and whole.cause.text and whole.cause.text not in text:
        text = f"{whole.cause.text}; {text}"
    text = f"{by_node[node].name}: {text}"
    phases = {end.phase for end in bad.values()}
    stopped = phases == {RunPhase.STOPPED}
    if any(part.node == 0 for part in gone) or (gone and stopped):
        text = _lost(whole, gone, stopped) + ("" if stopped else f"; {text}")
    elif stopped:
        text = "stopped on the nodes, not from here"
    elif gone:
        text += _without(gone)
    phase = RunPhase.STOPPED if stopped and not gone else RunPhase.FAILED
    return RunEnded(phase, bad[node].exit_code, text)


def _lost(whole: Whole, gone: list[Part], stopped: bool) -> str:
    """Without the lost nodes the others could not go on. Nobody here stopped them: what started them did."""
    names = ", ".join(part.name for part in gone)
    where = ", where the rendezvous was," if any(part.node == 0 for part in gone) else ""
    verb = "is" if len(gone) == 1 else "are"
    others = "were ended by what started them" if stopped else "failed"
    return (
        f"{names}{where} {verb} lost, and the others {others}: "
        f"`distui relaunch {whole.name}` starts the run anew"
    )
