"""What a change of the run would do, in words, before it is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...presets.secrets import mask
from ...runners.model import Command, Restart, SetNccl, Signal, Stop
from ...runners.state import RunState
from .cells import Row, fit, numbers, plural

DEFAULT_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL where the plan does not say."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The question and what `y` would send."""

    title: str
    lines: tuple[Row, ...]
    verb: str
    """What `y` does, one or two words."""
    command: Command


def _alive(state: RunState) -> list[int]:
    return sorted(state.ranks)


def _nodes(state: RunState, ranks: Iterable[int]) -> str:
    wanted = sorted({state.ranks[rank].place.node for rank in ranks if rank in state.ranks})
    names = [state.nodes[node].host or f"node {node}" for node in wanted if node in state.nodes]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"{plural(len(names), 'node')} ({shown})" if names else "every node"


def _line(label: str, text: str, style: str = "text") -> Row:
    return ((fit(label, 12), "dim"), (text, style))


def _who(state: RunState, ranks: list[int]) -> Row:
    return _line("ranks", f"{numbers(ranks) or 'none yet'}, on {_nodes(state, ranks)}")


def _ladder(state: RunState, grace_s: float | None = None) -> Row:
    grace = grace_s if grace_s is not None else (state.plan.grace_s if state.plan else DEFAULT_GRACE_S)
    return _line("signals", f"SIGTERM, {grace:g} s later SIGKILL")


_CHECKPOINT = _line("checkpoint", "age unknown: what was not saved is lost", "warn")


def env_now(state: RunState) -> dict[str, str | None]:
    """Environment changes made since the launch; the launch's own values stand in the plan."""
    known: dict[str, str | None] = {}
    for attempt in state.attempts:
        known.update(attempt.env_diff)
    return known


def diff_rows(state: RunState, env: Mapping[str, str], unset: Iterable[str]) -> list[Row]:
    """The environment diff of the next attempt, secrets masked."""
    before = env_now(state)
    changes: dict[str, str | None] = {**env, **dict.fromkeys(unset)}
    rows = [_line("environment", "unchanged")] if not changes else []
    for name, value in sorted(changes.items()):
        old = before.get(name, "") if name in before else "as launched"
        shown_old = "unset" if old is None else mask(name, old) if name in before else old
        shown_new = "unset" if value is None else mask(name, value)
        rows.append(_line("environment", f"{name}  {shown_old} → {shown_new}", "accent"))
    return rows


def restart(state: RunState, command: Restart) -> Confirmation:
    """Restart of the worker group: always all ranks, because torch allows no less."""
    ranks = _alive(state)
    lines = (
        _who(state, ranks),
        _line("", "the worker group restarts as a whole: torch cannot restart one rank alone", "dim"),
        _ladder(state),
        _CHECKPOINT,
        *diff_rows(state, command.env, command.unset),
    )
    return Confirmation(f"Restart {plural(len(ranks), 'rank')} of {state.name}?", lines, "restart", command)


def stop(state: RunState, command: Stop) -> Confirmation:
    """The end of the run."""
    ranks = _alive(state)
    lines = (
        _who(state, ranks),
        _ladder(state, command.grace_s),
        _CHECKPOINT,
        _line("afterwards", "the run is over; its logs and its ledger stay"),
    )
    return Confirmation(f"Stop {state.name}?", lines, "stop", command)


def signal(state: RunState, command: Signal) -> Confirmation:
    """A signal to ranks."""
    ranks = sorted(command.ranks) or _alive(state)
    lines = (_who(state, ranks), _line("signals", command.signal))
    return Confirmation(f"Send {command.signal} to {plural(len(ranks), 'rank')}?", lines, "send", command)


def nccl(state: RunState, command: SetNccl) -> Confirmation:
    """A change of NCCL_DEBUG, live or by a restart."""
    ranks = sorted(command.ranks) or _alive(state)
    old = {state.ranks[rank].nccl_debug or "unknown" for rank in ranks if rank in state.ranks}
    change = f"{' / '.join(sorted(old)) or 'unknown'} → {command.level}"
    lines: list[Row] = [_who(state, ranks), _line("NCCL_DEBUG", change, "accent")]
    if command.subsys:
        lines.append(_line("subsystems", command.subsys))
    if command.restart:
        lines += [_line("how", "restart of the worker group", "warn"), _ladder(state), _CHECKPOINT]
    else:
        lines.append(_line("how", "live: the ranks go on"))
    if command.seconds is not None:
        lines.append(_line("for", f"{command.seconds:g} s, then back"))
    return Confirmation(f"Set NCCL_DEBUG={command.level}?", tuple(lines), "set it", command)


def confirmation(state: RunState, command: Command) -> Confirmation | None:
    """The question for a command; None for commands that change nothing."""
    if isinstance(command, Restart):
        return restart(state, command)
    if isinstance(command, Stop):
        return stop(state, command)
    if isinstance(command, Signal):
        return signal(state, command)
    if isinstance(command, SetNccl):
        return nccl(state, command)
    return None
