"""The keys of a run that would do nothing now. Pure."""

from __future__ import annotations

from msgspec import Struct


class Situation(Struct, frozen=True):
    """What decides about keys, besides focus and permissions."""

    ended: bool
    in_past: bool
    has_map: bool
    """Whether the map of GPUs is on the screen."""
    has_time: bool
    """Whether the row under the cursor of the events has a time."""
    has_finding: bool
    has_pattern: bool
    """Whether the log has a filter."""
    panes: int
    """Number of panes on the screen."""
    is_maximised: bool


def idle_keys(now: Situation) -> frozenset[str]:
    """Return the ids of actions that would do nothing, or would only say why not."""
    idle: set[str] = set()
    if now.ended:
        idle |= {"stop", "nccl", "profile", "stacks"}
    elif now.in_past:
        idle |= {"restart", "stop", "nccl", "profile", "stacks"}
    if not now.has_map:
        idle.add("metric")
    if not now.has_finding:
        idle |= {"finding", "finding.evidence", "finding.copy"}
    if not now.has_time:
        idle.add("event")
    if now.panes < 2 and not now.is_maximised:
        idle.add("maximise")
    if not now.has_pattern:
        idle |= {"log.next", "log.previous"}
    return frozenset(idle)
