"""The `:` command line of the cockpit: parsing, usage and completion. Pure."""

from __future__ import annotations

import re
import shlex
import signal as signals
from collections.abc import Callable
from typing import get_args

from msgspec import Struct

from ...presets.finding import did_you_mean
from ...presets.nccl import LEVELS, SUBSYSTEMS, NcclError, parse_level, parse_subsys
from ...runners import environment, run_notes
from ...runners.errors import RunError
from ...runners.model import (
    Action,
    Command,
    Down,
    Dump,
    Profile,
    Restart,
    SetAutostop,
    SetNccl,
    Signal,
    Stop,
)
from ..option_values import common_start
from ..user_settings import ALL_THEMES


class CommandError(Exception):
    """The typed text is no command; the message is one sentence with what to type."""


class TypedCommand(Struct, frozen=True):
    """A typed command for the run, or an action of the screen."""

    command: Command | None = None
    action: str = ""


ACTIONS = {
    "quit": "leave",
    "q": "leave",
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
"""Verbs that only change the view."""

VERBS = tuple(command.verb for command in get_args(Action))
"""Verbs that become commands for the run."""


MARKS = {"note": "note", "tag": "tags"}
"""Verbs that write the user's own words on the run, and the kind of words."""
COMPARE = "compare"
"""The verb that compares this run with another one."""

TIMES = {"at": "at", "play": "pace", "live": "live"}
"""Verbs that change the displayed time, and their actions."""

TABLES = ("ranks", "gpus")
"""Tables of `columns`."""

PLACES = ("line",)
"""First words that jump to a place in the log; percentages do, too."""

WORDS = tuple(sorted({*VERBS, *ACTIONS, *TIMES, *PLACES, *MARKS, "columns", COMPARE}))
"""Every first word."""

USAGE = {
    "restart": "restart [env NAME=VALUE …] [unset NAME …]   the worker group, with a changed environment",
    "nccl": "nccl LEVEL [SUBSYS,…] [rank N] [for SECONDS] [restart]   NCCL_DEBUG, live where NCCL can",
    "stop": "stop   end the run",
    "signal": "signal NAME|NUMBER [RANK …]   to the named ranks, else the marked ones, else all",
    "dump": "dump stacks|flight|memory [RANK …]   what the ranks do",
    "profile": "profile [RANK …] [steps N]   steps of ranks by torch.profiler, summed up",
    "down": "down   tear the run's cluster down",
    "autostop": "autostop MINUTES|off   when SkyPilot tears the idle cluster down",
    "at": "at 14:32:07 | -5m | step 1200 | first-cause | start   the whole screen as it was then; esc goes back",
    "play": "play [SPEED]   let the past go on from there, 4 times as fast: play 4",
    "columns": "columns [ranks|gpus]   choose the columns of a table, their order, and the sort; kept",
    "note": "note TEXT   a note on the run, which the list of runs shows; note alone takes it away",
    "tag": "tag +good -bad …   tags of the run",
    "compare": "compare RUN[@ATTEMPT] | @ATTEMPT   another run, or an attempt of this one, over this one",
    "logs": "logs [RANK]   the log, of one rank",
    "theme": "theme [NAME]   the next of distui's own themes, or any of Textual's: Tab lists them; kept",
    "line": "line N   go to a line of the log that is shown; 50% goes to its middle",
}
"""One line of help by verb; other verbs take no words."""


class RunNames(Struct, frozen=True):
    """Names of the run for completion."""

    ranks: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()


def help_line(text: str, names: RunNames) -> str:
    """Return one line of help for a partial command: the usage of its verb, or the matching verbs."""
    verb, blank, _ = text.lstrip().partition(" ")
    if verb in USAGE:
        return USAGE[verb]
    if verb.endswith("%"):
        return "N%   go to that part of the log that is shown"
    if verb in WORDS:
        return f"{verb}   takes nothing after it"
    fitting = candidates(text, names) if not blank else []
    if fitting:
        return "  ".join(fitting)
    return f"no command {verb!r}: {did_you_mean(verb, WORDS) or 'Tab on an empty line lists them'}"


def candidates(text: str, names: RunNames) -> list[str]:
    """Return the candidates for the last word, as whole words; [] if any word or none matches."""
    head, _, last = text.rpartition(" ")
    words = head.split()
    return [word for word in _choices(words, names) if _piece(word, last)]


def _piece(word: str, last: str) -> bool:
    """Whether a word starts with the typed text, or with the last part of a comma-separated list."""
    return word.upper().startswith(last.rpartition(",")[2].upper())


def _choices(words: list[str], names: RunNames) -> list[str]:
    """Return the words that may follow these."""
    if not words:
        return list(WORDS)
    verb, rest = words[0], words[1:]
    ranks = [str(rank) for rank in names.ranks]
    heads = [word for word in rest if word in _HEADS]
    match verb:
        case "restart" if heads:
            ends = "=" if heads[-1].endswith("env") else ""
            return [*(name + ends for name in names.variables), "env", "unset"]
        case "restart":
            return ["env", "unset"]
        case "nccl" if not rest:
            return list(LEVELS)
        case "nccl" if rest[-1] == "rank":
            return ranks
        case "nccl" if rest[-1] == "for":
            return ["10", "30", "60"]
        case "nccl":
            return ["rank", "for", "restart", *(each.name for each in SUBSYSTEMS)]
        case "signal" if not rest:
            return ["USR1", "USR2", "TERM", "INT", "HUP", "KILL", "CONT", "STOP"]
        case "dump" if not rest:
            return ["stacks", "flight", "memory"]
        case "profile" if rest and rest[-1] == "steps":
            return ["1", "3", "10"]
        case "profile":
            others = [rank for rank in ranks if rank not in rest]
            return others if "steps" in rest else [*others, "steps"]
        case "signal" | "dump" | "logs":
            return [rank for rank in ranks if rank not in rest]
        case "autostop":
            return ["off"]
        case "columns" if not rest:
            return list(TABLES)
        case "theme" if not rest:
            return list(ALL_THEMES)
        case "at" if not rest:
            return ["first-cause", "start", "step"]
    return []


def completed(text: str, names: RunNames) -> str:
    """Return the line after Tab: completed as far as all candidates agree, with a blank after a unique one."""
    fitting = candidates(text, names)
    if not fitting:
        return text
    head, blank, last = text.rpartition(" ")
    before = last.rpartition(",")
    common = common_start(fitting)
    if len(fitting) == 1 and not common.endswith("="):
        common += " "
    return f"{head}{blank}{before[0]}{before[1]}{common}"


def parse(text: str, new_id: Callable[[], str], marked: frozenset[int] = frozenset()) -> TypedCommand:
    """Parse a line. Raises CommandError. `marked` are the target ranks of a command that names none."""
    try:
        words = text.split() if text.strip().startswith("note ") else shlex.split(text)
    except ValueError as error:
        raise CommandError(f"cannot read {text!r}: {str(error).lower()}") from error
    if not words:
        return TypedCommand()
    verb, rest = words[0], words[1:]
    if verb == "logs" and rest:
        return TypedCommand(action=f"rank_log({_rank(rest[-1])})")
    if verb == COMPARE:
        if len(rest) != 1:
            raise CommandError(
                "compare needs the other run: type compare RUN, compare RUN@2, or compare @1"
            )
        return TypedCommand(action=f"compare({rest[0]!r})")
    if verb in MARKS:
        return TypedCommand(action=f"mark_run({MARKS[verb]!r}, {_marks(verb, text, rest)!r})")
    if verb == "columns":
        return TypedCommand(action=f"columns({_table(rest)!r})")
    if verb == "theme" and rest:
        return TypedCommand(action=f"theme({_theme(rest)!r})")
    if verb in TIMES:
        return TypedCommand(action=f"{TIMES[verb]}({' '.join(rest)!r})" if verb != "live" else "live")
    if verb in PLACES or re.fullmatch(r"\d+%", text.strip()):
        return TypedCommand(action=f"log_jump({' '.join(words)!r})")
    if verb in ACTIONS:
        return TypedCommand(action=ACTIONS[verb])
    if verb not in VERBS:
        meant = did_you_mean(verb, WORDS)
        raise CommandError(f"no command {verb!r}: {meant or 'Tab lists them'}")
    return TypedCommand(command=_command(verb, rest, new_id(), tuple(sorted(marked))))


def _marks(verb: str, text: str, words: list[str]) -> str:
    """Return a note verbatim, or the words of tags."""
    if verb == "note":
        return text.strip().removeprefix(verb).strip()
    if not words:
        raise CommandError("no tags: type tag good, or tag +good -bad")
    try:
        run_notes.words_of(words)
    except RunError as error:
        raise CommandError(str(error)) from error
    return " ".join(words)


def _table(words: list[str]) -> str:
    """Return the table of `columns`; "" for the focused one."""
    if len(words) > 1 or (words and words[0] not in TABLES):
        raise CommandError(
            f"no table {' '.join(words)!r}: type columns ranks, columns gpus, or columns alone"
        )
    return words[0] if words else ""


def _theme(words: list[str]) -> str:
    name = " ".join(words)
    if name not in ALL_THEMES:
        raise CommandError(
            f"no theme {name!r}: {did_you_mean(name, ALL_THEMES) or 'Tab behind theme lists them'}"
        )
    return name


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
            return Signal(id=new, signal=_signal(words[0]), ranks=_ranks(words[1:]) or marked)
        case "dump":
            if not words or words[0] not in ("stacks", "flight", "memory"):
                raise CommandError("dump needs what: type dump stacks, dump flight or dump memory")
            return Dump(id=new, what=words[0], ranks=_ranks(words[1:]) or marked)
        case "profile":
            return _profile(words, new, marked)
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
    for at, word in enumerate(words):
        if word in _HEADS:
            taking = word.removeprefix("--")
            if at + 1 == len(words) or words[at + 1] in _HEADS:
                wanted = "NAME=VALUE" if taking == env_words else "NAME"
                raise CommandError(
                    f"nothing follows {word!r}: type restart {taking} {wanted}, or restart alone"
                )
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


_HEADS = ("env", "unset", "--env", "--unset")


def number_of(text: str) -> signals.Signals | None:
    """Return the signal of a name, with or without SIG, or of a number; None if there is none."""
    word = text.strip().upper().removeprefix("SIG")
    try:
        number = int(word) if word.isascii() and word.isdecimal() and len(word) < 4 else None
        return signals.Signals(number) if number is not None else signals.Signals[f"SIG{word}"]
    except (KeyError, ValueError):
        return None


def _signal(word: str) -> str:
    number = number_of(word)
    if number is None:
        meant = did_you_mean(word.upper().removeprefix("SIG"), [each.name[3:] for each in signals.Signals])
        raise CommandError(f"no signal {word!r}: {meant or 'type one as in USR1, TERM or 10'}")
    return number.name


def _rank(word: str) -> int:
    if not word.isdecimal():
        raise CommandError(f"{word!r} is not a rank: give its number")
    return int(word)


def _ranks(words: list[str]) -> tuple[int, ...]:
    return tuple(_rank(word) for word in words if word != "rank")


def _profile(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    steps = 3
    if "steps" in words:
        at = words.index("steps")
        number = words[at + 1 : at + 2]
        if not number or not re.fullmatch(r"0*[1-9][0-9]{0,5}", number[0]):
            raise CommandError("a number is missing after 'steps': type profile [RANK …] steps 3")
        steps, words = int(number[0]), [*words[:at], *words[at + 2 :]]
    return Profile(id=new, ranks=_ranks(words) or marked, steps=steps)


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
