"""Decide which ranks a change of NCCL_DEBUG can reach, and refuse restarts that would change nothing.

Pure. Screen, command line and agent decide by these functions, and so refuse with equal messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ...presets.nccl import DEFAULT_SUBSYS, NcclError, parse_subsys
from .commands import SetNccl
from .formatting import agreeing, spans_text
from .state import Attempt, RunState

DEFAULTS = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": DEFAULT_SUBSYS}
"""Values of variables that neither the plan nor a restart sets."""

USES_GLOO = "the backend is gloo"
"""The reason for a refusal, and the beginning of the report of a change."""


def levels_at_start(plan_env: Mapping[str, str], attempts: Sequence[Attempt]) -> dict[str, str]:
    """Return NCCL_DEBUG and NCCL_DEBUG_SUBSYS in the environment of the newest attempt at its start."""
    env = {name: plan_env.get(name, default) for name, default in DEFAULTS.items()}
    for attempt in attempts:
        for name in env.keys() & attempt.env_diff.keys():
            env[name] = attempt.env_diff[name] or DEFAULTS[name]
    return env


class Reach(Struct, frozen=True):
    """Ranks grouped by how a change of NCCL_DEBUG reaches them."""

    live: tuple[int, ...] = ()
    """Ranks with an NCCL that changes the level immediately."""
    later: tuple[int, ...] = ()
    """Ranks with the hook but without a loaded NCCL: the level applies from its first use."""
    restart: tuple[int, ...] = ()
    """Ranks with an NCCL that cannot change the level live."""
    hookless: tuple[int, ...] = ()
    """Ranks without a hook: the level only applies from their next start, by the environment."""

    @property
    def live_for_any(self) -> bool:
        """Whether a change without a restart reaches at least one rank."""
        return bool(self.live or self.later)

    @property
    def live_for_all(self) -> bool:
        """Whether a change without a restart reaches every rank."""
        return self.live_for_any and not self.restart and not self.hookless


def reach(state: RunState, ranks: Iterable[int] = ()) -> Reach:
    """Group these ranks; () means all."""
    live, later, restart, hookless = list[int](), list[int](), list[int](), list[int]()
    for number in sorted(set(ranks) or state.ranks):
        rank = state.ranks.get(number)
        if rank is None:
            continue
        if rank.nccl_live is False:
            restart.append(number)
        elif rank.nccl_live:
            live.append(number)
        elif rank.hook:
            later.append(number)
        else:
            hookless.append(number)
    return Reach(tuple(live), tuple(later), tuple(restart), tuple(hookless))


def uses_gloo(state: RunState) -> bool:
    """Return whether the ranks communicate without NCCL.

    The plan decides, unless a group of theirs has called NCCL, or a live rank has NCCL but no torch process group, so
    that other code may call it.
    """
    if state.plan is None or state.plan.backend != "gloo" or calls_nccl(used_backends(state)):
        return False
    groups = {number: rank.pulse.groups if rank.pulse else () for number, rank in state.ranks.items()}
    return state.phase.ended or not any(
        rank.nccl_version and not groups[number] for number, rank in state.ranks.items()
    )


def instead_of_gloo(state: RunState) -> bool:
    """Return whether ranks use NCCL although the plan has gloo.

    A loaded NCCL is no evidence in a process with torch, because CUDA builds of torch load it themselves.
    """
    if state.plan is None or state.plan.backend != "gloo":
        return False
    pulses = [rank.pulse for rank in state.ranks.values() if rank.pulse is not None and rank.nccl_version]
    return calls_nccl(used_backends(state)) or any(pulse.torch is False for pulse in pulses)


def used_backends(state: RunState) -> set[str]:
    """Return the backends of the ranks' collectives, with the flight recorders' names ("nccl", "nccl2", "gloo")."""
    pulses = [rank.pulse for rank in state.ranks.values() if rank.pulse is not None]
    return {group.backend for pulse in pulses for group in pulse.groups} - {""}


def calls_nccl(backends: Iterable[str]) -> bool:
    """Return whether a backend is NCCL, through any of torch's classes."""
    return any(backend.startswith("nccl") for backend in backends)


def describe_reach(state: RunState, ranks: Iterable[int] = ()) -> str:
    """Return a sentence about how the change reaches each rank."""
    if uses_gloo(state):
        return f"{USES_GLOO}: INFO and TRACE raise c10d's logging now; a lasting level is also kept for the next start"
    if not state.ranks:
        return "no rank has started yet"
    reached = reach(state, ranks)
    parts = []
    if reached.live:
        parts.append(f"{spans_text('rank', reached.live)} live ({_versions_text(state, reached.live)})")
    if reached.later:
        parts.append(
            f"{spans_text('rank', reached.later)} from the first use of NCCL, which is not loaded yet"
        )
    if reached.restart:
        nccl = _versions_text(state, reached.restart)
        parts.append(
            f"{spans_text('rank', reached.restart)} only by a restart ({nccl} cannot change it live, 2.24 or newer can)"
        )
    if reached.hookless:
        verb = agreeing(reached.hookless, "has", "have")
        parts.append(f"{spans_text('rank', reached.hookless)} only by a restart ({verb} no hook)")
    return "; ".join(parts)


def _versions_text(state: RunState, ranks: Iterable[int]) -> str:
    """Return the NCCL versions of these ranks, such as "NCCL 2.21.5"."""
    versions = {version for number in ranks if (version := state.ranks[number].nccl_version)}
    return f"NCCL {', '.join(sorted(versions))}" if versions else "this NCCL"


def refusal(state: RunState, command: SetNccl, planned: Mapping[str, str] | None = None) -> str:
    """Return why a change is refused, as a sentence; "" if it is not.

    `planned`: the plan's environment, if known. A restart costs work, so it must change something.
    """
    if not command.restart:
        if not _all_hookless(reach(state, command.ranks)):
            return ""  # the agent asks the hooks, and reports the ranks that could not change it
        if uses_gloo(state):
            return f"{USES_GLOO}, and no rank has a hook: nothing would change"
        return "no rank has a hook that could change NCCL_DEBUG live: only a restart sets it"
    if uses_gloo(state):
        return f"{USES_GLOO}: a restart would change nothing, so nothing was restarted"
    level = _unchanged(state, command, planned)
    if level:
        return f"NCCL_DEBUG is {level} already: a restart would change nothing, so nothing was restarted"
    return ""


def _all_hookless(reached: Reach) -> bool:
    return bool(reached.hookless) and not (reached.live or reached.later or reached.restart)


def _unchanged(state: RunState, command: SetNccl, planned: Mapping[str, str] | None) -> str:
    """Return the requested level if the ranks have had it since their start; else ""."""
    try:
        subsys = parse_subsys(command.subsys)
    except NcclError:
        return ""
    at_start = _known_at_start(state, planned)
    requested = {"NCCL_DEBUG": command.level.strip().upper(), "NCCL_DEBUG_SUBSYS": subsys}
    if at_start != requested:
        return ""
    changed_live = _reported_levels(state) - {requested["NCCL_DEBUG"], None}
    return "" if changed_live else requested["NCCL_DEBUG"]


def _known_at_start(state: RunState, planned: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the level and subsystems of the newest attempt at its start; None if they are unknown."""
    if not state.attempts:
        return None
    if planned is not None or any("NCCL_DEBUG" in attempt.env_diff for attempt in state.attempts):
        return levels_at_start(planned or {}, state.attempts)
    levels = _reported_levels(state)
    if state.nccl is not None or len(levels) != 1:
        return None  # a live change hides the level at the start
    (level,) = levels
    return None if level is None else {"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": DEFAULT_SUBSYS}


def _reported_levels(state: RunState) -> set[str | None]:
    """Return the levels that the ranks' hooks reported last; None is one of them if a hook reported none."""
    return {rank.nccl_debug for rank in state.ranks.values()}
