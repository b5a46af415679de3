"""What a launch through SkyPilot or ssh does to a RunState: links to its nodes, stages, cluster; see folds.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .members import Node, Progress
from .model import ClusterChanged, LinkChanged, LinkState, RunPhase, StageChanged, Stamped

if TYPE_CHECKING:
    from .state import RunState

_MANAGED = {"RUNNING": RunPhase.RUNNING, "RECOVERING": RunPhase.RESTARTING}
"""What SkyPilot calls a managed job that has started; its ranks are not seen."""


def _link_changed(state: RunState, at: Stamped, event: LinkChanged) -> None:
    node = state.nodes[at.node]
    before, node.link = node.link, event.state
    node.host = event.host or node.host
    node.link_text, node.retry_at = event.text, event.retry_at
    if event.state is not before:
        node.link_since = at.time
        _tell_of_link(state, at, node, before)


def _tell_of_link(state: RunState, at: Stamped, node: Node, before: LinkState | None) -> None:
    if node.link is LinkState.LOST:
        state.notice(at, f"the link is lost: {node.link_text}")
    elif node.link is LinkState.UP and before is LinkState.LOST:
        state.notice(at, "the link is back")


def _stage_changed(state: RunState, at: Stamped, event: StageChanged) -> None:
    known = state.stages.get((event.stage, at.node))
    if known is None or (event.state == "begun" and known.ended is not None):
        known = state.stages[(event.stage, at.node)] = Progress(event.stage, at.node, at.time)
    known.text = event.text or known.text
    if event.state != "begun":
        known.ended, known.failed = at.time, event.state == "failed"
    if event.text:
        state.notice(at, f"{event.stage}: {event.text}")


def _cluster_changed(state: RunState, at: Stamped, event: ClusterChanged) -> None:
    known = state.cluster = event.cluster
    if known.managed and not state.phase.ended and known.state in _MANAGED:
        state.phase = _MANAGED[known.state]


LAUNCH_FOLDS: dict[type, Callable[[RunState, Stamped, Any], None]] = {
    LinkChanged: _link_changed,
    StageChanged: _stage_changed,
    ClusterChanged: _cluster_changed,
}
