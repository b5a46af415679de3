"""The question before each command: affected ranks, cost and loss. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...presets.plurals import plural
from ...presets.secrets import mask
from ...runners.run import saving
from ...runners.run.commands import Command, Down, Profile, Restart, SetAutostop, SetNccl, Signal, Stop
from ...runners.run.formatting import duration_exact, listed, spans
from ...runners.run.nccl_reach import USES_GLOO, describe_reach, reach, uses_gloo
from ...runners.run.signal_names import HARMLESS, number_of, signal_name
from ...runners.run.state import RunState
from ...runners.telemetry.losses import what_is_lost
from ...runners.telemetry.progress import advance_of
from . import glyphs
from .frame import names, silent, without
from .glyphs import Row, label_row
from .run_status import billed, given_up, launching, price, remains

DEFAULT_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL if the plan has none."""


class Target(Struct, frozen=True):
    """The subject of a question at the time of asking."""

    run: str
    attempt: int
    ranks: tuple[int, ...]
    ended: bool
    silent: tuple[int, ...]
    """Nodes that do not answer."""


def target(state: RunState) -> Target:
    """Return the subject of a question that is asked now."""
    return Target(
        state.run, state.attempt, tuple(sorted(state.ranks)), state.phase.ended, tuple(silent(state))
    )


def changed_since(before: Target, state: RunState) -> str:
    """Return the changes since a question was asked, in a sentence; "" if there are none."""
    now = target(state)
    if now == before:
        return ""
    if now.run != before.run:
        return f"the question was about another run than {state.name}"
    if now.ended and not before.ended:
        return f"run {state.name} has ended meanwhile"
    if now.attempt != before.attempt:
        return f"attempt {now.attempt} has begun meanwhile"
    if now.ranks != before.ranks:
        return f"the ranks have changed meanwhile ({len(before.ranks)} before, {len(now.ranks)} now)"
    if now.silent != before.silent:
        return "which nodes answer has changed meanwhile"
    return f"run {state.name} goes on again"


class Confirmation(Struct, frozen=True):
    """The question, and the command that `y` sends."""

    title: str
    lines: tuple[Row, ...]
    verb: str
    """The action of `y`, in a few words."""
    command: Command
    other_verb: str = ""
    """The action of `a`; "" if there is no alternative."""
    other: Command | None = None
    typed: str = ""
    """The text to type instead of `y`; "" if none is needed."""
    more: tuple[Row, ...] = ()
    """The rows that `e` shows instead of `lines`; () if `lines` has all."""
    save_verb: str = ""
    """The action of `s`; "" if the script cannot save on request."""


def _nodes(state: RunState, ranks: Iterable[int]) -> str:
    wanted = sorted({state.ranks[rank].place.node for rank in ranks if rank in state.ranks})
    named = names(state)
    hosts = [named[node] for node in wanted if node in named]
    return f"{plural(len(hosts), 'node')} ({listed(hosts)})" if hosts else "every node"


def _silent(state: RunState) -> list[Row]:
    """Return which nodes do not answer, and why."""
    missing, named = silent(state), names(state)
    if not missing:
        return []
    why = state.nodes[missing[0]].link_text
    text = f"{listed([named[node] for node in missing])}{': ' + why if why else ''}"
    return [_line("no answer", f"{glyphs.BAD} {text}", "bad")]


def _line(label: str, text: str, style: str = "text") -> Row:
    return label_row(label, 12, text, style)


def _who(state: RunState, ranks: list[int]) -> Row:
    return _line("ranks", f"{spans(ranks) or 'none yet'}, on {_nodes(state, ranks)}")


def _ladder(state: RunState, grace_s: float | None = None) -> Row:
    if grace_s is None:
        grace_s = state.plan.grace_s if state.plan else DEFAULT_GRACE_S
    return _line("signals", f"SIGTERM, {grace_s:g} s later SIGKILL")


def _lost(state: RunState, now: float) -> Row:
    """Return the unsaved work."""
    loss = what_is_lost(state, now)
    return _line("you lose", loss.text, "warn" if loss.units else "text")


SHOWN = 4
"""Maximum number of listed environment changes; a longer list is only counted, and `e` shows it."""


def folded(rows: list[Row], most: int = SHOWN) -> list[Row]:
    """Return the environment rows, or their number if there are too many."""
    return (
        rows
        if len(rows) <= most
        else [_line("environment", f"{len(rows)} variables, e shows them", "accent")]
    )


def env_now(state: RunState) -> dict[str, str | None]:
    """Return environment changes since the launch; the values of the launch are in the plan."""
    changes: dict[str, str | None] = {}
    for attempt in state.attempts:
        changes.update(attempt.env_diff)
    return changes


def diff_rows(state: RunState, env: Mapping[str, str], unset: Iterable[str]) -> list[Row]:
    """Return the environment diff of the next attempt, secrets masked."""
    before = env_now(state)
    changes: dict[str, str | None] = {**env, **dict.fromkeys(unset)}
    rows = [_line("environment", "unchanged")] if not changes else []
    for name, value in sorted(changes.items()):
        if name in before:
            old = before[name]
            shown_old = "unset" if old is None else mask(name, old)
        else:
            shown_old = "as launched"
        shown_new = "unset" if value is None else mask(name, value)
        rows.append(_line("environment", f"{name}  {shown_old} → {shown_new}", "accent"))
    return rows


def restart(state: RunState, command: Restart, now: float, save_s: float | None = None) -> Confirmation:
    """Return the question for a restart of the worker group: always all ranks, since torch supports no less.

    `save_s` is the maximum seconds for a save before the restart.
    """
    ranks, missing = sorted(state.ranks), silent(state)
    diff = diff_rows(state, command.env, command.unset)
    lines = (
        _who(state, ranks),
        *_silent(state),
        *_going_on(state, missing),
        _lost(state, now) if save_s is None else _saved_first(state, save_s),
        *folded(diff),
        _ladder(state),
        _line("", "the worker group restarts as a whole: torch cannot restart a single rank", "dim"),
    )
    title = f"Restart {plural(len(ranks), 'rank')} of {state.name}?"
    more = tuple(diff) if len(diff) > SHOWN else ()
    asked = _either(state, title, lines, "restart", command, more)
    if missing or saving.way(state) is None:
        return asked
    return replace(asked, save_verb="save, then restart")


def _saved_first(state: RunState, seconds: float) -> Row:
    asked = saving.way(state)
    how = "" if asked is None else f" ({saving.words(asked)})"
    return _line(
        "saves", f"first{how}: without a new checkpoint within {seconds:g} s nothing is restarted", "accent"
    )


def _either(
    state: RunState,
    title: str,
    lines: tuple[Row, ...],
    verb: str,
    command: Restart | SetNccl,
    more: tuple[Row, ...] = (),
) -> Confirmation:
    """Return the question for a restart; if nodes do not answer, it offers an alternative."""
    missing = silent(state)
    if not missing or command.reachable or len(missing) == len(state.nodes):
        return Confirmation(title, lines, verb, command, more=more)
    other = msgspec.structs.replace(command, reachable=True)
    return Confirmation(
        title,
        lines,
        "only if all answer",
        command,
        f"go on without {without(state, missing)}",
        other,
        more=more,
    )


def _going_on(state: RunState, missing: list[int]) -> list[Row]:
    """Return how a restart continues without the nodes that do not answer."""
    if not missing or state.plan is None:
        return []
    left, least, who = len(state.nodes) - len(missing), state.plan.nnodes_min, without(state, missing)
    if least is not None and left >= least:
        return [
            _line("going on", f"without {who}: elastic, with {plural(left, 'node')} (at least {least})")
        ]
    wanted = plural(state.plan.nnodes if least is None else least, "node")
    return [_line("going on", f"without {who} the ranks wait until there are {wanted}", "warn")]


def stop(state: RunState, command: Stop, now: float) -> Confirmation:
    if launching(state):
        line = _line("launch", given_up(state, now))
        return Confirmation(f"Give up the launch of {state.name}?", (line,), "give it up", command)
    ranks = sorted(state.ranks)
    lines: list[Row] = [_who(state, ranks), *_silent(state)]
    if silent(state):
        lines.append(_line("", "its processes go on until it is reachable", "warn"))
    lines += [
        _lost(state, now),
        _ladder(state, command.grace_s),
        _line("afterwards", "the run ends; logs and history are kept"),
    ]
    left = remains(state, now)
    if left:
        lines.append(_line("cluster", left.removeprefix("cluster "), "warn"))
    return Confirmation(f"Stop {state.name}?", tuple(lines), "stop", command)


def down(state: RunState, command: Down, now: float) -> Confirmation:
    """Return the question for taking the cluster down; the user must type its name."""
    cluster = billed(state)
    name, live = "" if cluster is None else cluster.name, not state.phase.ended
    lines: list[Row] = []
    if cluster is not None:
        where = "  ".join(part for part in (cluster.infra, cluster.resources, cluster.state) if part)
        lines += [_line("cluster", f"{name}  {where}"), _line("cost", price(cluster, now))]
    if live:
        lines.append(_line("run", f"{state.name} is on it: its ranks are stopped first", "warn"))
        lines += [_who(state, sorted(state.ranks))] if state.ranks else []
    lines.append(_line("lost", "all on its disks: checkpoints, logs, data that was not copied", "warn"))
    if live and state.ranks:
        lines.append(_line("unsaved", what_is_lost(state, now).text, "warn"))
    return Confirmation(f"Take cluster {name} down?", tuple(lines), "take it down", command, typed=name)


def autostop(state: RunState, command: SetAutostop, now: float) -> Confirmation:
    """Return the question for the cluster's automatic stop."""
    cluster = billed(state)
    name = "" if cluster is None else cluster.name
    lines = [] if cluster is None else [_line("cluster", name), _line("cost", price(cluster, now))]
    if command.minutes is None:
        lines.append(_line("afterwards", "it stays, and is billed, until :down", "warn"))
        return Confirmation(f"Never take {name} down by itself?", tuple(lines), "set it", command)
    minutes = plural(command.minutes, "minute")
    lines += [
        _line("afterwards", f"SkyPilot takes it down after {minutes} without a job"),
        _line("lost", "then all on its disks: checkpoints, logs, data that was not copied", "warn"),
    ]
    return Confirmation(f"Take {name} down after {minutes} without a job?", tuple(lines), "set it", command)


def signal(state: RunState, command: Signal) -> Confirmation:
    ranks = sorted(command.ranks) or sorted(state.ranks)
    number = number_of(command.signal)
    name = command.signal if number is None else number.name
    lines = [_who(state, ranks), _line("signal", name if number is None else f"{name} ({int(number)})")]
    if signal_name(name) == "KILL":
        lines.append(_line("ends", "these ranks at once, and with them the whole attempt", "warn"))
    elif signal_name(name) not in HARMLESS:
        lines.append(
            _line("ends", "a rank that has no handler for it, and with it the whole attempt", "warn")
        )
    return Confirmation(
        f"Send {name} to {plural(len(ranks), 'rank')} of {state.name}?", tuple(lines), "send", command
    )


def profile(state: RunState, command: Profile, now: float) -> Confirmation:
    """Return the question for recording some steps under torch.profiler.

    `now`: unix time by the clock of `state`.
    """
    ranks = sorted(command.ranks) or sorted(state.ranks)
    steps = plural(command.steps, "step")
    lines = [
        _who(state, ranks),
        _line("records", f"{steps} of every rank, with torch.profiler"),
        _line("costs", "these steps take longer; each rank writes some MB"),
        _line("traces", "in the run's directory; for Perfetto and HTA"),
    ]
    still_s = advance_of(state, now).still_s
    if still_s is not None:
        why = f"no step for {duration_exact(still_s)}; without steps nothing is recorded: w shows stacks"
        lines.append(_line("but", why, "warn"))
    return Confirmation(
        f"Profile {plural(len(ranks), 'rank')} of {state.name}?", tuple(lines), "profile", command
    )


def nccl(state: RunState, command: SetNccl, now: float) -> Confirmation:
    """Return the question for a change of NCCL_DEBUG.

    `nccl_reach.refusal` has already refused a change without effect.
    """
    ranks = sorted(command.ranks) or sorted(state.ranks)
    old = {state.ranks[rank].nccl_debug or "unknown" for rank in ranks if rank in state.ranks}
    change = f"{' / '.join(sorted(old)) or 'unknown'} → {command.level}"
    lines: list[Row] = [_who(state, ranks), _line("NCCL_DEBUG", change, "accent")]
    if command.subsys:
        lines.append(_line("subsystems", command.subsys))
    if command.restart:
        lines.append(_line("how", f"a restart of all {plural(len(state.ranks), 'rank')}", "warn"))
        lines += [*_silent(state), *_going_on(state, silent(state)), _lost(state, now), _ladder(state)]
    else:
        lines += _live(state, command, ranks)
    if command.seconds is not None:
        lines.append(_line("for", f"{command.seconds:g} s, then back"))
    title = f"Set NCCL_DEBUG={command.level} in {state.name}?"
    if not command.restart:
        return Confirmation(title, tuple(lines), "set it", command)
    return _either(state, title, tuple(lines), "set it", command)


def _live(state: RunState, command: SetNccl, ranks: list[int]) -> list[Row]:
    """Return the effect of a change without a restart, and the ranks that it does not reach."""
    if uses_gloo(state):
        lines = [_line("how", f"{USES_GLOO}: c10d's logging changes now; the ranks go on", "warn")]
        if command.seconds is None and not command.ranks:
            lines.append(_line("", f"NCCL_DEBUG={command.level} is kept for the next start"))
        return lines
    reached = reach(state, ranks)
    if reached.live_for_all:
        return [_line("how", "live: the ranks go on")]
    return [
        _line("how", "live if that is possible: the ranks go on", "warn"),
        _line("obey", describe_reach(state, ranks)),
    ]


def confirmation(state: RunState, command: Command, now: float) -> Confirmation | None:
    """Return the question for a command; None for commands that change nothing.

    `now` is unix time, for costs and losses.
    """
    if isinstance(command, Restart):
        return restart(state, command, now)
    if isinstance(command, Stop):
        return stop(state, command, now)
    if isinstance(command, Signal):
        return signal(state, command)
    if isinstance(command, SetNccl):
        return nccl(state, command, now)
    if isinstance(command, Profile):
        return profile(state, command, now)
    if isinstance(command, Down):
        return down(state, command, now)
    if isinstance(command, SetAutostop):
        return autostop(state, command, now)
    return None
