"""Progress of the commands that a run executes now, and of its launch, for every viewer. Pure."""

from __future__ import annotations

from typing import NamedTuple

from .commands import Down, Profile, Save, Stop
from .formatting import NA, duration_exact, elapsed
from .model import HUB, ProfileArmed, RankPhase, RunPhase
from .state import LIVING, OpenCommand, RunState

_LASTING = {Save.verb: "saving a checkpoint", Down.verb: "taking the cluster down"}
"""Commands that take a while, by verb, with their words."""


class Stopping(NamedTuple):
    """Ranks that are being ended by a command, or because another rank failed."""

    lasted_s: float | None
    """Seconds since the request or the failure."""
    grace_s: float
    """Seconds from then until the ranks are killed."""

    def text(self) -> str:
        """Return "3/30 s"."""
        lasted = NA if self.lasted_s is None else f"{self.lasted_s:.0f}"
        return f"{lasted}/{self.grace_s:.0f} s"


def stopping(state: RunState, now: float) -> Stopping | None:
    """Return how long ranks have been ending by a command; None if no command ends them. `now`: unix time."""
    for command in state.open_commands.values():
        if (ending := _ending(state, command, now)) is not None:
            return ending
    return None


def _ending(state: RunState, command: OpenCommand, now: float) -> Stopping | None:
    """Return how long a command has been ending ranks; None if none of its attempt live."""
    grace_s = command.received.grace_s
    if grace_s is None or command.attempt != state.attempt or state.phase.ended:
        return None
    if not any(rank.phase in LIVING for rank in state.ranks.values()):
        return None
    return Stopping(elapsed(command.at, now), grace_s)


_FAILED = (RankPhase.FAILED, RankPhase.KILLED, RankPhase.LOST)


def stopping_after_failure(state: RunState, now: float) -> dict[int, Stopping]:
    """Return how long each node's launcher has been ending the ranks next to a failed one. `now`: unix time.

    A launcher ends the ranks on its node only. A managed command decides which ranks it ends.
    """
    plan = state.plan
    if plan is None or plan.launcher != "torchrun" or state.phase.ended:
        return {}
    failed: dict[int, float] = {}
    for rank in state.ranks.values():
        if rank.phase in _FAILED and rank.ended is not None:
            node = rank.place.node
            failed[node] = min(rank.ended, failed.get(node, rank.ended))
    return {node: Stopping(elapsed(at, now), plan.grace_s) for node, at in failed.items()}


def under_way(state: RunState, now: float) -> list[str]:
    """Return the progress of a launch and of each command: "restarting: stopping ranks 3/30 s". `now`: unix time."""
    if state.phase.ended:
        return []
    texts = [_command_text(state, command, now) for command in state.open_commands.values()]
    return [text for text in (_launch_text(state, now), *texts) if text]


def _launch_text(state: RunState, now: float) -> str:
    """Return the newest stage of a launch in progress; "" once there are ranks, or a managed job runs."""
    if state.phase is not RunPhase.STARTING or state.ranks or state.attempts:
        return ""
    stages = [each for each in state.stages.values() if each.node == HUB and each.ended is None]
    return f"launching: {stages[-1].stage} {_lasted(stages[-1].began, now)}" if stages else ""


def _command_text(state: RunState, command: OpenCommand, now: float) -> str:
    verb, lasted = command.received.verb, _lasted(command.at, now)
    if command.received.grace_s is not None:
        return _group_text(state, command, now)
    if verb == Profile.verb:
        return (
            f"profile requested {lasted} ago" if command.armed is None else _profile(state, command.armed)
        )
    return f"{_LASTING[verb]} {lasted}" if verb in _LASTING else ""


def _group_text(state: RunState, command: OpenCommand, now: float) -> str:
    """Return the progress of a restart or a stop."""
    ending, lasted = _ending(state, command, now), _lasted(command.at, now)
    if command.received.verb == Stop.verb:
        return f"stopping {lasted}" if ending is None else f"stopping: ranks {ending.text()}"
    if ending is None:
        return f"restarting: starting ranks {lasted}"
    return f"restarting: stopping ranks {ending.text()}"


def _profile(state: RunState, armed: ProfileArmed) -> str:
    """Return the recorded steps of a profile, by the rank with the fewest."""
    ranks = [state.ranks[number] for number in armed.ranks or state.ranks if number in state.ranks]
    counts = [
        rank.sample.step for rank in ranks if rank.sample is not None and rank.sample.step is not None
    ]
    if not counts:
        return f"profile of {armed.steps} steps"
    recorded = min(counts) - armed.first + 1
    if recorded >= armed.steps:
        return "profile: writing traces"
    return f"profile {max(0, recorded)}/{armed.steps} steps"


def _lasted(began: float, now: float) -> str:
    return duration_exact(elapsed(began, now))
