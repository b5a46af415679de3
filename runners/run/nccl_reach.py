"""Ranks that a change of NCCL_DEBUG can reach, and how; and restarts for it that would change nothing.

Pure. Screen, command line and agent decide by these functions, and so refuse with equal messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ...presets.nccl import DEFAULT_SUBSYS, NcclError, parse_subsys
from .formatting import agreeing, spans_text
from .model import SetNccl
from .state import Attempt, RunState

STANDARD = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": DEFAULT_SUBSYS}
"""Values without a setting in the plan or by a restart."""

UNUSED = "the backend is gloo"


def standing(plan: Mapping[str, str], attempts: Sequence[Attempt]) -> dict[str, str]:
    """Level and subsystems in the environment of the newest attempt at its start."""
    env = {name: plan.get(name, value) for name, value in STANDARD.items()}
    for attempt in attempts:
        env |= {name: attempt.env_diff[name] or STANDARD[name] for name in env if name in attempt.env_diff}
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
    versions: tuple[str, ...] = ()

    @property
    def now(self) -> bool:
        """Whether a change without a restart reaches every rank."""
        return bool(self.live or self.later) and not self.restart and not self.hookless

    @property
    def some(self) -> bool:
        return bool(self.live or self.later)


def reach(state: RunState, ranks: Iterable[int] = ()) -> Reach:
    """Group these ranks; () means all."""
    live, later, restart, hookless = list[int](), list[int](), list[int](), list[int]()
    versions = set[str]()
    for number in sorted(set(ranks) or state.ranks):
        rank = state.ranks.get(number)
        if rank is None:
            continue
        if rank.nccl_version:
            versions.add(rank.nccl_version)
        if rank.nccl_live is False:
            restart.append(number)
        elif rank.nccl_live:
            live.append(number)
        elif rank.hook:
            later.append(number)
        else:
            hookless.append(number)
    return Reach(tuple(live), tuple(later), tuple(restart), tuple(hookless), tuple(sorted(versions)))


def uses_gloo(state: RunState) -> bool:
    """Return whether the ranks communicate without NCCL.

    The plan decides, unless a group of theirs has called NCCL, or a live rank has NCCL but no torch process group, so
    that other code may call it.
    """
    if state.plan is None or state.plan.backend != "gloo" or calls_nccl(called(state)):
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
    return calls_nccl(called(state)) or any(pulse.torch is False for pulse in pulses)


def called(state: RunState) -> set[str]:
    """Backends of the ranks' collectives, with the flight recorders' names ("nccl", "nccl2", "gloo")."""
    pulses = [rank.pulse for rank in state.ranks.values() if rank.pulse is not None]
    return {group.backend for pulse in pulses for group in pulse.groups} - {""}


def calls_nccl(backends: Iterable[str]) -> bool:
    """Whether a backend is NCCL, through any of torch's classes."""
    return any(backend.startswith("nccl") for backend in backends)


def how(state: RunState, ranks: Iterable[int] = ()) -> str:
    """Sentence about how the change reaches each rank."""
    if uses_gloo(state):
        return f"{UNUSED}, so NCCL_DEBUG has no effect"
    if not state.ranks:
        return "no rank has started yet"
    reached = reach(state, ranks)
    nccl = f"NCCL {', '.join(reached.versions)}" if reached.versions else "this NCCL"
    parts = []
    if reached.live:
        parts.append(f"{spans_text('rank', reached.live)} live ({nccl})")
    if reached.later:
        parts.append(
            f"{spans_text('rank', reached.later)} from the first use of NCCL, which is not loaded yet"
        )
    if reached.restart:
        parts.append(
            f"{spans_text('rank', reached.restart)} only by a restart ({nccl} cannot change it live, 2.24 or newer can)"
        )
    if reached.hookless:
        verb = agreeing(reached.hookless, "has", "have")
        parts.append(f"{spans_text('rank', reached.hookless)} only by a restart ({verb} no hook)")
    return "; ".join(parts)


def refusal(state: RunState, command: SetNccl, planned: Mapping[str, str] | None = None) -> str:
    """Why a change is refused, as a sentence; "" if it is not.

    `planned`: the plan's environment, if known. A restart costs work, so it must change something.
    """
    if not command.restart:
        reached = reach(state, command.ranks)
        if not reached.hookless or reached.some or reached.restart:
            return ""
        if uses_gloo(state):
            return f"{UNUSED}, and no rank has a hook: nothing would change"
        return "no rank has a hook that could change NCCL_DEBUG live: only a restart sets it"
    if uses_gloo(state):
        return f"{UNUSED}: a restart would change nothing, so nothing was restarted"
    level = _unchanged(state, command, planned)
    if level:
        return f"NCCL_DEBUG is {level} already: a restart would change nothing, so nothing was restarted"
    return ""


def _unchanged(state: RunState, command: SetNccl, planned: Mapping[str, str] | None) -> str:
    """Return the requested level if the ranks have had it since their start; else ""."""
    try:
        subsys = parse_subsys(command.subsys)
    except NcclError:
        return ""
    if not state.attempts:
        return ""
    env = standing(planned or {}, state.attempts)
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    if planned is None and not any("NCCL_DEBUG" in attempt.env_diff for attempt in state.attempts):
        if state.nccl is not None or len(levels) != 1 or None in levels:
            return ""  # their level at the start is unknown
        env = {"NCCL_DEBUG": str(next(iter(levels))), "NCCL_DEBUG_SUBSYS": DEFAULT_SUBSYS}
    wanted = command.level.strip().upper()
    same = env == {"NCCL_DEBUG": wanted, "NCCL_DEBUG_SUBSYS": subsys}
    return wanted if same and levels <= {wanted, None} else ""
