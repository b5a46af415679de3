"""The `:` command line, and the questions that a command asks first. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ...presets.finding import did_you_mean
from ...presets.nccl import NcclError, parse_level, parse_subsys
from ...presets.secrets import mask
from ...runners import environment
from ...runners.formatting import plural, spans
from ...runners.model import Command, Down, Dump, Restart, SetAutostop, SetNccl, Signal, Stop
from ...runners.state import RunState
from . import glyphs
from .glyphs import Row, fit
from .launching import launching
from .sky_nodes import billed, given_up, price, remains
from .status import listed, names, silent, without

# -----------------------------------------------------------------------------------------------------------
# The `:` command line: the same verbs as the shell's, parsed to commands. Pure.


class CommandError(Exception):
    """What was typed is no command; the text is one sentence that says what to type."""


@dataclass(frozen=True, slots=True)
class TypedCommand:
    """What was typed: a command for the run, or an action of the screen."""

    command: Command | None = None
    action: str = ""


ACTIONS = {
    "quit": "leave",
    "q": "leave",
    "detach": "leave",
    "help": "help",
    "launch": "launch",
    "runs": "runs",
    "logs": "pane('log')",
    "events": "pane('events')",
    "diagnose": "pane('events')",
    "pause": "pause",
    "theme": "theme",
}
"""Verbs that only change what is shown."""


def parse(text: str, new_id: Callable[[], str], marked: frozenset[int] = frozenset()) -> TypedCommand:
    """What the line asks for. Raises CommandError.

    `marked` are the ranks that a command goes to when it names none.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CommandError(f"cannot read {text!r}: {str(error).lower()}") from error
    if not words:
        return TypedCommand()
    verb, rest = words[0], words[1:]
    if verb in ACTIONS:
        return TypedCommand(action=ACTIONS[verb])
    if verb not in _PARSERS:
        verbs = sorted([*_PARSERS, *ACTIONS])
        raise CommandError(f"no command {verb!r}: {did_you_mean(verb, verbs) or ', '.join(verbs)}")
    return TypedCommand(command=_PARSERS[verb](rest, new_id(), tuple(sorted(marked))))


def _restart(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    env: dict[str, str] = {}
    unset: list[str] = []
    taking = env_words = "env"
    for word in words:
        if word in ("env", "unset", "--env", "--unset"):
            taking = word.removeprefix("--")
        elif taking == env_words:
            name, sign, value = word.partition("=")
            if not sign or not name:
                raise CommandError(f"{word!r} is not K=V: type restart env NAME=VALUE … [unset NAME …]")
            env[name] = value
        else:
            unset.append(word)
    if refused := environment.refusal({**env, **dict.fromkeys(unset)}):
        raise CommandError(refused)
    return Restart(id=new, env=env, unset=tuple(unset))


def _stop(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    if words:
        raise CommandError(f"stop takes nothing after it, got {' '.join(words)!r}")
    return Stop(id=new)


def _rank(word: str) -> int:
    if not word.isdigit():
        raise CommandError(f"{word!r} is not a rank: give its number")
    return int(word)


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise CommandError(f"{word!r} is not a number of seconds above 0")
    return value


def _nccl(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    usage = "type nccl LEVEL [SUBSYS,…] [rank N] [for SECONDS] [restart]"
    if not words:
        raise CommandError(f"a level is missing: {usage}")
    level, rest = words[0], words[1:]
    subsys, ranks, seconds, again = "", list[int](), None, False
    while rest:
        word = rest.pop(0)
        if word in ("rank", "for") and not rest:
            raise CommandError(f"a number is missing after {word!r}: {usage}")
        if word == "restart":
            again = True
        elif word == "rank":
            ranks.append(_rank(rest.pop(0)))
        elif word == "for":
            seconds = _seconds(rest.pop(0))
        elif not subsys:
            subsys = word
        else:
            raise CommandError(f"cannot read {word!r}: {usage}")
    try:
        level, subsys = parse_level(level), parse_subsys(subsys) if subsys else ""
    except NcclError as error:
        raise CommandError(str(error)) from error
    chosen = tuple(ranks) or marked
    return SetNccl(id=new, level=level, subsys=subsys, ranks=chosen, seconds=seconds, restart=again)


def _signal(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    if not words:
        raise CommandError("signal needs a name: type signal SIGUSR1 [RANK …]")
    ranks = tuple(_rank(word) for word in words[1:] if word != "rank") or marked
    return Signal(id=new, signal=words[0].upper(), ranks=ranks)


def _dump(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    if not words or words[0] not in ("stacks", "flight", "memory"):
        raise CommandError("dump needs what: type dump stacks, dump flight or dump memory")
    ranks = tuple(_rank(word) for word in words[1:] if word != "rank") or marked
    return Dump(id=new, what=words[0], ranks=ranks)


def _down(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    if words:
        raise CommandError("down takes nothing after it: it asks for the cluster's name")
    return Down(id=new, cluster="")


def _autostop(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    if words == ["off"]:
        return SetAutostop(id=new, minutes=None)
    if (
        len(words) != 1
        or not words[0].isascii()
        or not words[0].isdecimal()
        or not 0 < int(words[0]) < 10**6
    ):
        raise CommandError("autostop needs minutes without a job: type autostop 30, or autostop off")
    return SetAutostop(id=new, minutes=int(words[0]))


_PARSERS: dict[str, Callable[[list[str], str, tuple[int, ...]], Command]] = {
    "restart": _restart,
    "stop": _stop,
    "nccl": _nccl,
    "signal": _signal,
    "dump": _dump,
    "down": _down,
    "autostop": _autostop,
}


# -----------------------------------------------------------------------------------------------------------
# What a change of the run would do, in words, before it is done.


DEFAULT_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL where the plan does not say."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The question and what `y` would send."""

    title: str
    lines: tuple[Row, ...]
    verb: str
    """What `y` does, a few words."""
    command: Command
    other_verb: str = ""
    """What `a` does; "" where there is no second way."""
    other: Command | None = None
    typed: str = ""
    """What has to be typed instead of `y`; "" where nothing has."""


def _alive(state: RunState) -> list[int]:
    return sorted(state.ranks)


def _nodes(state: RunState, ranks: Iterable[int]) -> str:
    wanted = sorted({state.ranks[rank].place.node for rank in ranks if rank in state.ranks})
    named = names(state)
    hosts = [named[node] for node in wanted if node in named]
    return f"{plural(len(hosts), 'node')} ({listed(hosts)})" if hosts else "every node"


def _silent(state: RunState) -> list[Row]:
    """Which nodes do not answer, and why."""
    missing, named = silent(state), names(state)
    if not missing:
        return []
    why = state.nodes[missing[0]].link_text
    text = f"{listed([named[node] for node in missing])}{': ' + why if why else ''}"
    return [_line("no answer", f"{glyphs.BAD} {text}", "bad")]


def _line(label: str, text: str, style: str = "text") -> Row:
    return ((fit(label, 12), "dim"), (text, style))


def _who(state: RunState, ranks: list[int]) -> Row:
    return _line("ranks", f"{spans(ranks) or 'none yet'}, on {_nodes(state, ranks)}")


def _ladder(state: RunState, grace_s: float | None = None) -> Row:
    grace = grace_s if grace_s is not None else (state.plan.grace_s if state.plan else DEFAULT_GRACE_S)
    return _line("signals", f"SIGTERM, {grace:g} s later SIGKILL")


_CHECKPOINT = _line("checkpoint", "age unknown: what was not saved is lost", "warn")


def env_now(state: RunState) -> dict[str, str | None]:
    """Environment changes made since the launch; the launch's own values stand in the plan."""
    changes: dict[str, str | None] = {}
    for attempt in state.attempts:
        changes.update(attempt.env_diff)
    return changes


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
    ranks, missing = _alive(state), silent(state)
    lines = (
        _who(state, ranks),
        *_silent(state),
        *_going_on(state, missing),
        _line("", "the worker group restarts as a whole: torch cannot restart one rank alone", "dim"),
        _ladder(state),
        _CHECKPOINT,
        *diff_rows(state, command.env, command.unset),
    )
    title = f"Restart {plural(len(ranks), 'rank')} of {state.name}?"
    return _either(state, title, lines, "restart", command)


def _either(
    state: RunState, title: str, lines: tuple[Row, ...], verb: str, command: Restart | SetNccl
) -> Confirmation:
    """The question for a restart; where nodes do not answer, it has two ways."""
    missing = silent(state)
    if not missing or command.reachable or len(missing) == len(state.nodes):
        return Confirmation(title, lines, verb, command)
    other = msgspec.structs.replace(command, reachable=True)
    return Confirmation(
        title, lines, "only if all answer", command, f"go on without {without(state, missing)}", other
    )


def _going_on(state: RunState, missing: list[int]) -> list[Row]:
    """What becomes of a restart that leaves nodes out."""
    if not missing or state.plan is None:
        return []
    left, least, who = len(state.nodes) - len(missing), state.plan.nnodes_min, without(state, missing)
    if least is not None and left >= least:
        return [
            _line("going on", f"without {who}: elastic, with {plural(left, 'node')} (at least {least})")
        ]
    wanted = plural(state.plan.nnodes if least is None else least, "node")
    return [_line("going on", f"without {who} the ranks wait until there are {wanted}", "warn")]


def stop(state: RunState, command: Stop, now: float | None = None) -> Confirmation:
    """The end of the run."""
    if launching(state):
        line = _line("launch", given_up(state, now))
        return Confirmation(f"Give up the launch of {state.name}?", (line,), "give it up", command)
    ranks = _alive(state)
    lines: list[Row] = [_who(state, ranks), *_silent(state)]
    if silent(state):
        lines.append(_line("", "what runs there goes on until it can be told", "warn"))
    lines += [
        _ladder(state, command.grace_s),
        _CHECKPOINT,
        _line("afterwards", "the run is over; its logs and its ledger stay"),
    ]
    left = remains(state, now)
    if left:
        lines.append(_line("cluster", left.removeprefix("cluster "), "warn"))
    return Confirmation(f"Stop {state.name}?", tuple(lines), "stop", command)


def down(state: RunState, command: Down, now: float | None = None) -> Confirmation:
    """The end of the cluster. Its name has to be typed."""
    cluster = billed(state)
    name, live = "" if cluster is None else cluster.name, not state.phase.ended
    lines: list[Row] = []
    if cluster is not None:
        where = "  ".join(part for part in (cluster.infra, cluster.resources, cluster.state) if part)
        lines += [_line("cluster", f"{name}  {where}"), _line("cost", price(cluster, now))]
    if live:
        lines.append(_line("run", f"{state.name} is on it: its ranks are stopped first", "warn"))
        lines += [_who(state, _alive(state))] if state.ranks else []
    lines.append(_line("lost", "all on its disks: checkpoints, logs, data that was not copied", "warn"))
    return Confirmation(f"Take cluster {name} down?", tuple(lines), "take it down", command, typed=name)


def autostop(state: RunState, command: SetAutostop, now: float | None = None) -> Confirmation:
    """When the cluster goes by itself."""
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


def no_cluster(state: RunState) -> str:
    """Why there is no cluster to take down, in a sentence; "" where there is one."""
    cluster = state.cluster
    if billed(state) is not None:
        return ""
    if cluster is not None and cluster.down:
        return f"cluster {cluster.name} is down already"
    if cluster is not None and cluster.managed:
        return "SkyPilot takes the cluster of a managed job down itself: x ends the job"
    return "this run has no cluster of SkyPilot's: there is nothing to take down"


HARMLESS = frozenset({"CHLD", "CLD", "CONT", "URG", "WINCH", "STOP", "TSTP", "TTIN", "TTOU"})
"""Signals that end no process, whatever it does with them."""


def signal_name(text: str) -> str:
    """A signal's name without SIG: "USR1"."""
    return text.strip().upper().removeprefix("SIG")


def signal(state: RunState, command: Signal) -> Confirmation:
    """A signal to ranks."""
    ranks = sorted(command.ranks) or _alive(state)
    lines: tuple[Row, ...] = (_who(state, ranks), _line("signals", command.signal))
    if signal_name(command.signal) not in HARMLESS:
        lines = (*lines, _line("ends", "a rank that has no handler for it", "warn"))
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
        lines += [_line("how", "restart of the worker group", "warn"), *_silent(state)]
        lines += [*_going_on(state, silent(state)), _ladder(state), _CHECKPOINT]
    else:
        lines.append(_line("how", "live: the ranks go on"))
    if command.seconds is not None:
        lines.append(_line("for", f"{command.seconds:g} s, then back"))
    title = f"Set NCCL_DEBUG={command.level}?"
    if not command.restart:
        return Confirmation(title, tuple(lines), "set it", command)
    return _either(state, title, tuple(lines), "set it", command)


def confirmation(state: RunState, command: Command, now: float | None = None) -> Confirmation | None:
    """The question for a command; None for commands that change nothing. `now`: unix time, for costs."""
    if isinstance(command, Restart):
        return restart(state, command)
    if isinstance(command, Stop):
        return stop(state, command, now)
    if isinstance(command, Signal):
        return signal(state, command)
    if isinstance(command, SetNccl):
        return nccl(state, command)
    if isinstance(command, Down):
        return down(state, command, now)
    if isinstance(command, SetAutostop):
        return autostop(state, command, now)
    return None
