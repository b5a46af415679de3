"""What a user asks of a run: the `:` command line, the NCCL_DEBUG dialog, and the question before each command. Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import get_args

import msgspec

from ...presets.finding import did_you_mean
from ...presets.nccl import (
    DEFAULT_SUBSYS,
    FLOOD_BYTES,
    LEVELS,
    NcclError,
    Subsystem,
    cost,
    disk_reserve,
    flood_rate,
    parse_level,
    parse_subsys,
    subsystems,
)
from ...presets.secrets import mask
from ...runners import environment
from ...runners.formatting import duration_short, listed, plural, size_short, spans, spans_text
from ...runners.model import Action, Command, Down, Dump, Restart, SetAutostop, SetNccl, Signal, Stop
from ...runners.state import RunState
from . import glyphs
from .frame import name_of, names, silent, without
from .glyphs import Row, fit, labelled
from .run_status import billed, given_up, launching, price, remains


class CommandError(Exception):
    """What was typed is no command; the text is one sentence with what to type."""


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
    "overview": "pane('overview')",
    "ranks": "pane('ranks')",
    "logs": "pane('log')",
    "curves": "pane('curves')",
    "events": "pane('events')",
    "diagnose": "pane('findings')",
    "pause": "pause",
    "theme": "theme",
}
"""Verbs that only change what is shown."""

VERBS = tuple(command.verb for command in get_args(Action))
"""Verbs that become commands for the run."""


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
    if verb not in VERBS:
        verbs = sorted([*VERBS, *ACTIONS])
        raise CommandError(f"no command {verb!r}: {did_you_mean(verb, verbs) or ', '.join(verbs)}")
    return TypedCommand(command=_command(verb, rest, new_id(), tuple(sorted(marked))))


def _command(verb: str, words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    match verb:
        case "restart":
            return _restart(words, new)
        case "nccl":
            return _nccl(words, new, marked)
        case "stop":
            if words:
                raise CommandError(f"stop takes nothing after it, got {' '.join(words)!r}")
            return Stop(id=new)
        case "signal":
            if not words:
                raise CommandError("signal needs a name: type signal SIGUSR1 [RANK …]")
            return Signal(id=new, signal=words[0].upper(), ranks=_ranks(words[1:]) or marked)
        case "dump":
            if not words or words[0] not in ("stacks", "flight", "memory"):
                raise CommandError("dump needs what: type dump stacks, dump flight or dump memory")
            return Dump(id=new, what=words[0], ranks=_ranks(words[1:]) or marked)
        case "down":
            if words:
                raise CommandError("down takes nothing after it: it asks for the cluster's name")
            return Down(id=new, cluster="")
    if words == ["off"]:
        return SetAutostop(id=new, minutes=None)
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}", " ".join(words)):
        raise CommandError("autostop needs minutes without a job: type autostop 30, or autostop off")
    return SetAutostop(id=new, minutes=int(words[0]))


def _restart(words: list[str], new: str) -> Command:
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


def _rank(word: str) -> int:
    if not word.isdecimal():
        raise CommandError(f"{word!r} is not a rank: give its number")
    return int(word)


def _ranks(words: list[str]) -> tuple[int, ...]:
    return tuple(_rank(word) for word in words if word != "rank")


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


DEFAULT_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL where the plan has none."""


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


_CHECKPOINT = _line("checkpoint", "age unknown: unsaved progress will be lost", "warn")


def env_now(state: RunState) -> dict[str, str | None]:
    """Environment changes since the launch; the values of the launch are in the plan."""
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
    ranks, missing = sorted(state.ranks), silent(state)
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
    """How a restart goes on without the nodes that do not answer."""
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
    ranks = sorted(state.ranks)
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
        lines += [_who(state, sorted(state.ranks))] if state.ranks else []
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


HARMLESS = frozenset({"CHLD", "CLD", "CONT", "URG", "WINCH", "STOP", "TSTP", "TTIN", "TTOU"})
"""Signals that end no process, with a handler or without."""


def signal_name(text: str) -> str:
    """A signal's name without SIG: "USR1"."""
    return text.strip().upper().removeprefix("SIG")


def signal(state: RunState, command: Signal) -> Confirmation:
    """A signal to ranks."""
    ranks = sorted(command.ranks) or sorted(state.ranks)
    lines: tuple[Row, ...] = (_who(state, ranks), _line("signals", command.signal))
    if signal_name(command.signal) not in HARMLESS:
        lines = (*lines, _line("ends", "a rank that has no handler for it", "warn"))
    return Confirmation(f"Send {command.signal} to {plural(len(ranks), 'rank')}?", lines, "send", command)


def nccl(state: RunState, command: SetNccl) -> Confirmation:
    """A change of NCCL_DEBUG, live or by a restart."""
    ranks = sorted(command.ranks) or sorted(state.ranks)
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


SECONDS: tuple[float | None, ...] = (None, 5.0, 10.0, 30.0, 60.0, 300.0)
"""How long a level can last, as the dialog offers it; `:nccl` takes any number."""

ENDS_S = 60.0
"""How long a level that writes for every collective lasts by default."""

USUAL = 200.0
"""Collectives a second that are assumed where the rate is unknown."""

_HEAD = 3
"""Rows before the subsystems: level, duration, way."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What is possible now."""

    live: bool
    text: str
    """One sentence for the dialog."""


def ways(state: RunState) -> Ways:
    """Live where every rank's NCCL allows it; an honest restart otherwise."""
    if state.plan is not None and state.plan.backend == "gloo":
        return Ways(False, "this run uses gloo: NCCL_DEBUG changes nothing here")
    if not state.ranks:
        return Ways(False, "no rank has started yet")
    unknown = [number for number, rank in state.ranks.items() if rank.nccl_live is None]
    refused = [number for number, rank in state.ranks.items() if rank.nccl_live is False]
    versions = sorted({rank.nccl_version for rank in state.ranks.values() if rank.nccl_version})
    version = f"NCCL {', '.join(versions)}" if versions else "this NCCL"
    if refused:
        where = spans_text("rank", refused)
        return Ways(False, f"{version} cannot change it live on {where} (2.24 or newer can): restart")
    if len(unknown) == len(state.ranks):
        return Ways(False, "no rank has loaded NCCL yet, or the hook is off: only a restart can change it")
    if unknown:
        return Ways(True, f"{version} changes it live; not yet known for {spans_text('rank', unknown)}")
    return Ways(True, f"{version} changes it live on every rank")


@dataclass(frozen=True, slots=True)
class Disk:
    """The node with the least room."""

    name: str
    free: int
    total: int
    """Bytes both."""

    @property
    def room(self) -> int:
        """Bytes that may be written."""
        return max(0, self.free - disk_reserve(self.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclForm:
    """What is chosen so far."""

    level: str
    seconds: float | None = None
    restart: bool = False
    chosen: frozenset[str] = frozenset()
    offered: tuple[Subsystem, ...] = ()
    """Subsystems that this NCCL has."""
    ways: Ways = field(default_factory=lambda: Ways(False, ""))
    ranks: tuple[int, ...] = ()
    """() means all."""
    timed: bool = True
    """Whether the duration follows the level: until the user chooses a duration."""
    rate: float | None = None
    """Collectives a second of a rank, by the flight recorder; None: unknown."""
    together: int = 1
    """Most of these ranks on one node."""
    disk: Disk | None = None

    @property
    def subsys(self) -> str:
        """What is chosen, as NCCL_DEBUG_SUBSYS takes it."""
        return ",".join(flag.name for flag in self.offered if flag.name in self.chosen)

    @property
    def floods(self) -> bool:
        """Whether it writes for every collective, or is TRACE."""
        return self.level == "TRACE" or flood_rate(self.level, self.subsys, 1.0, 1) > 0


def begin(state: RunState, marked: frozenset[int]) -> NcclForm:
    """The dialog as it opens: the level that the ranks have now."""
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    versions = {rank.nccl_version for rank in state.ranks.values() if rank.nccl_version}
    possible = ways(state)
    ranks = tuple(sorted(marked & set(state.ranks)))
    asked = ranks or tuple(state.ranks)
    level = levels.pop() if len(levels) == 1 else None
    return NcclForm(
        level=level if level in LEVELS else "WARN",
        restart=not possible.live,
        offered=subsystems(versions.pop() if len(versions) == 1 else None),
        ways=possible,
        ranks=ranks,
        rate=collectives_a_second(state),
        together=max(Counter(state.ranks[rank].place.node for rank in asked).values(), default=1),
        disk=_fullest(state, {state.ranks[rank].place.node for rank in asked}),
    )


def collectives_a_second(state: RunState) -> float | None:
    """Median over the ranks; None without a flight recorder."""
    rates = []
    for rank in state.ranks.values():
        done = rank.pulse.recent if rank.pulse is not None else ()
        if len(done) > 1 and (took := done[-1].created - done[0].created) > 0:
            rates.append((len(done) - 1) / took)
    return median(rates) if rates else None


def _fullest(state: RunState, nodes: set[int]) -> Disk | None:
    """The disk with the least room of those that these nodes write to; None where none is known."""
    disks = [
        Disk(name_of(state, number), node.metrics.disk_free, node.metrics.disk_total)
        for number, node in state.nodes.items()
        if number in nodes
        and node.metrics is not None
        and node.metrics.disk_free is not None
        and node.metrics.disk_total is not None
    ]
    return min(disks, key=lambda disk: disk.free, default=None)


def change(form: NcclForm, row: int, step: int) -> NcclForm:
    """The form after the value of a row was changed: the next (1) or previous (-1) one.

    What floods gets an end, as long as nobody chose the duration.
    """
    if row == 1:
        now = SECONDS.index(form.seconds)
        return replace(form, seconds=SECONDS[(now + step) % len(SECONDS)], timed=False)
    if row == 2:
        return replace(form, restart=not form.restart if form.ways.live else True)
    if row == 0:
        form = replace(form, level=LEVELS[(LEVELS.index(form.level) + step) % len(LEVELS)])
    elif row < _HEAD + len(form.offered):
        form = replace(form, chosen=form.chosen ^ {form.offered[row - _HEAD].name})
    return replace(form, seconds=ENDS_S if form.floods else None) if form.timed else form


def form_rows(form: NcclForm, width: int) -> list[Row]:
    """One row a choice; brackets mark what is chosen, not colour."""
    level = "  ".join(f"({'x' if name == form.level else ' '}) {name}" for name in LEVELS)
    seconds = "  ".join(
        f"({'x' if end == form.seconds else ' '}) {'ever' if end is None else f'{end:g}s'}"
        for end in SECONDS
    )
    live = "(x) live  ( ) restart" if not form.restart else "( ) live  (x) restart"
    how = live if form.ways.live else "(x) restart of the worker group"
    rows: list[Row] = [
        ((fit("level", 7), "dim"), (level, "text")),
        ((fit("for", 7), "dim"), (seconds, "text")),
        ((fit("how", 7), "dim"), (how, "text")),
    ]
    for flag in form.offered:
        on = flag.name in form.chosen
        head = f"[{'x' if on else ' '}] {fit(flag.name, 10)} "
        rows.append(((head, "head" if on else "text"), (fit(flag.text, max(10, width - len(head))), "dim")))
    return rows


def note_rows(form: NcclForm, width: int) -> list[Row]:
    """Below the choices: what is possible, what it writes, the disk, and what ends it."""
    each = USUAL if form.rate is None else max(form.rate, 0.1)
    rate = flood_rate(form.level, form.subsys, each, form.together)
    notes = (
        ("live", form.ways.text),
        ("writes", _written(form, each)),
        ("disk", _room(form, rate)),
        ("ends", _ends(form)),
    )
    return [row for label, text in notes for row in labelled((fit(label, 7), "dim"), text, width, "dim")]


def _written(form: NcclForm, each: float) -> str:
    words = cost(form.level, form.subsys, float(f"{each:.2g}"), form.together)
    if words:
        return f"{words} a node{', if there are so many' if form.rate is None else ''}"
    if form.level == "TRACE":
        return "without bound where NCCL was built for TRACE, else what INFO does"
    which = "" if form.chosen or form.level != "INFO" else f"{DEFAULT_SUBSYS} (none is chosen): "
    return f"{which}little once the job runs"


def _room(form: NcclForm, rate: float) -> str:
    disk = form.disk
    if disk is None:
        return "how much is free is not known"
    lasts = f": enough for {duration_short(disk.room / rate)}" if rate > 0 else ""
    return f"{size_short(disk.free)} of {size_short(disk.total)} free on {disk.name}{lasts}"


def _ends(form: NcclForm) -> str:
    """What ends a flood."""
    after = "when somebody changes it" if form.seconds is None else f"after {form.seconds:g} s"
    if not form.ways.live:
        return f"{after}; nothing takes it back earlier, because it cannot be changed live"
    least = size_short(disk_reserve(form.disk.total)) if form.disk is not None else "5 %"
    return f"{after}; earlier above {FLOOD_BYTES / 1e6:.0f} MB/s a node, or with less than {least} of disk free"


def command(form: NcclForm, command_id: str) -> SetNccl:
    """What the form asks for."""
    return SetNccl(
        id=command_id,
        level=form.level,
        subsys=form.subsys,
        ranks=form.ranks,
        seconds=form.seconds,
        restart=form.restart,
    )
