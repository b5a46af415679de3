"""The end of a run on several nodes, from the ends of its parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..run.formatting import agreeing
from ..run.model import FirstCause, LinkState, RunEnded, RunPhase

GIVE_UP_S = 60.0
"""Seconds without a link before a node counts as lost, if all others have ended."""
STOP_GIVE_UP_S = 15.0
"""`GIVE_UP_S` for a run that is being stopped."""
UNHEARD_S = 600.0
"""`GIVE_UP_S` for a stop after which no part has ended: a node that answers until then still gets the stop."""


@dataclass(frozen=True, slots=True)
class NodeEnding:
    node: int
    host: str
    ended: RunEnded | None = None
    read: bool = True
    """For an ended part: whether the hub has read its journal and logs to the end."""
    link: LinkState | None = None
    silent_s: float = 0.0
    """Seconds since the link's state last changed."""

    @property
    def name(self) -> str:
        return f"node {self.node} ({self.host})" if self.host else f"node {self.node}"

    def is_settled(self, patient_s: float) -> bool:
        """Return True if the part has ended and is read, or if the node counts as lost."""
        if self.ended is not None:
            return self.read
        return self.link is LinkState.LOST and self.silent_s >= patient_s


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Data that decides the end of the run, besides its parts."""

    name: str
    stopping: bool = False
    stop_text: str = "stopped"
    """Text of the end of a stopped run."""
    nnodes_min: int | None = None
    """Minimum number of nodes for an elastic run to continue and succeed."""
    cause: FirstCause | None = None
    """First cause of the newest attempt."""
    cluster_down: bool = False
    idle: str = ""
    """`AttemptEnded.idle` of the newest attempt."""

    def needed(self, nnodes: int) -> int:
        """Return how many of `nnodes` nodes have to succeed."""
        return min(nnodes, self.nnodes_min or nnodes)


def ending(whole: WholeRun, parts: list[NodeEnding]) -> RunEnded | None:
    """Return the end of the run; None while it continues."""
    patient_s = patience(whole.stopping, any(part.ended for part in parts), whole.cluster_down)
    if not parts or not all(part.is_settled(patient_s) for part in parts):
        return None
    return _outcome(whole, parts)


def _outcome(whole: WholeRun, parts: list[NodeEnding]) -> RunEnded | None:
    """Return the end of a run whose nodes have all ended or are gone."""
    gone = [part for part in parts if part.ended is None]
    ended = {part.node: part.ended for part in parts if part.ended is not None}
    bad = {node: end for node, end in ended.items() if end.phase is not RunPhase.SUCCEEDED}
    # A run whose ranks all succeeded at the moment of the stop has succeeded, as in an agent.
    if whole.stopping and (bad or gone):
        return RunEnded(RunPhase.STOPPED, 1, whole.stop_text + _unanswered(whole, gone))
    if not ended:
        return _all_gone(whole)
    if len(ended) - len(bad) >= whole.needed(len(parts)):
        return _succeeded(whole, gone)
    return _failed(whole, parts, bad, gone)


def patience(stopping: bool, some_ended: bool, cluster_down: bool) -> float:
    """Seconds without a link before a node counts as lost; for a stop, counted from the stop."""
    if cluster_down:
        return 0.0
    if not stopping:
        return GIVE_UP_S
    return STOP_GIVE_UP_S if some_ended else UNHEARD_S


def _all_gone(whole: WholeRun) -> RunEnded | None:
    """End of a run without an answer from any node: None, unless the cluster is known to be down."""
    if not whole.cluster_down:
        return None
    return RunEnded(RunPhase.LOST, None, "the cluster was taken down before the run's end was reported")


def _succeeded(whole: WholeRun, gone: list[NodeEnding]) -> RunEnded:
    but = f", but {whole.idle}" if whole.idle else ""
    return RunEnded(
        RunPhase.SUCCEEDED, 0, f"every rank ended with exit code 0{but}" + _unanswered(whole, gone)
    )


def _names(parts: list[NodeEnding]) -> str:
    return ", ".join(part.name for part in parts)


def _unanswered(whole: WholeRun, gone: list[NodeEnding]) -> str:
    if not gone:
        return ""
    if whole.cluster_down:
        return f"; how {_names(gone)} ended is unknown"
    return f"; {_names(gone)} did not answer: whatever runs there still does"


def _failed(
    whole: WholeRun, parts: list[NodeEnding], bad: Mapping[int, RunEnded], gone: list[NodeEnding]
) -> RunEnded:
    if not bad:  # the end of the silent nodes is unknown
        return RunEnded(RunPhase.LOST, None, f"all others succeeded; how {_names(gone)} ended is unknown")
    failed = {node: end for node, end in bad.items() if end.phase is not RunPhase.STOPPED}
    if not failed:
        exit_code = bad[min(bad)].exit_code
        if gone:
            return RunEnded(RunPhase.FAILED, exit_code, _lost(whole, gone, stopped=True))
        return RunEnded(RunPhase.STOPPED, exit_code, "stopped on the nodes, not from here")
    cause = whole.cause
    node = cause.node if cause is not None and cause.node in failed else min(failed)
    text = failed[node].text
    if cause is not None and cause.text not in text:
        text = f"{cause.text}; {text}"
    text = f"{_name(parts, node)}: {text}"
    if _has_head(gone):
        text = f"{_lost(whole, gone, stopped=False)}; {text}"
    else:
        text += _unanswered(whole, gone)
    return RunEnded(RunPhase.FAILED, failed[node].exit_code, text)


def _name(parts: list[NodeEnding], node: int) -> str:
    return next(part.name for part in parts if part.node == node)


def _has_head(parts: list[NodeEnding]) -> bool:
    """Whether node 0, which holds the rendezvous, is among the parts."""
    return any(part.node == 0 for part in parts)


def _lost(whole: WholeRun, gone: list[NodeEnding], stopped: bool) -> str:
    """Return the text of a failure because of lost nodes. `stopped`: the launcher of the others stopped them."""
    where = ", where the rendezvous was," if _has_head(gone) else ""
    verb = agreeing(gone, "is", "are")
    others = "were ended by what started them" if stopped else "failed"
    return (
        f"{_names(gone)}{where} {verb} lost, and the others {others}: "
        f"`distui rerun {whole.name}` starts it again"
    )
