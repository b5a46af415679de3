"""The `:` command line of the cockpit: its verbs, usage and completion. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from msgspec import Struct

from ...presets.nccl import LEVELS, subsystems
from ...presets.spelling import did_you_mean, nearest
from ...runners.run.commands import Command
from ...runners.run.formatting import seconds_of
from ..option_values import common_start
from . import typed_commands
from .themes import ALL_THEMES
from .typed_commands import DUMPS, HEADS, CommandError, rank_number


class TypedCommand(Struct, frozen=True):
    """A typed command for the run, or an action of the cockpit, as in its table of keys."""

    command: Command | None = None
    action: str = ""


class RunNames(Struct, frozen=True):
    """Names of the run for completion."""

    ranks: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()


class TypedVerb(Struct, frozen=True):
    """A first word of the line. It makes either a command for the run or an action of the screen."""

    usage: str = ""
    """One line of help; "" if the verb takes nothing after it."""
    command: Callable[[list[str], str, tuple[int, ...]], Command] | None = None
    """Returns the command for the words after the verb, the command's id, and the marked ranks."""
    action: Callable[[list[str]], str] | str = ""
    """The action, or a function that returns it for the words after the verb."""
    following: Callable[[list[str], RunNames], Sequence[str]] = lambda words, names: ()
    """Returns the words that may follow these words after the verb."""


def _logs(words: list[str]) -> str:
    return f"screen.rank_log({rank_number(words[-1])})" if words else "screen.pane('log')"


def _help(words: list[str]) -> str:
    return f"help({' '.join(words)!r})" if words else "help"


def _filter(words: list[str]) -> str:
    return f"screen.filter({' '.join(words)!r})" if words else "screen.filter"


def _node(words: list[str]) -> str:
    if len(words) != 1:
        raise CommandError("node needs one name: type node NAME, or node NUMBER")
    return f"screen.node({words[0]!r})"


def _compare(words: list[str]) -> str:
    if len(words) != 1:
        raise CommandError("compare needs the other run: type compare RUN, compare RUN@2, or compare @1")
    return f"run.compare({words[0]!r})"


def _back(words: list[str]) -> str:
    seconds = seconds_of("".join(words).removeprefix("-"))
    if seconds is None:
        raise CommandError("back needs a duration: type back 10m, back 30s, or back 2h")
    return f"run.back({seconds})"


def _theme(words: list[str]) -> str:
    name = " ".join(words)
    if not name:
        return "theme"
    if name not in ALL_THEMES:
        raise CommandError(
            f"no theme {name!r}: {did_you_mean(name, ALL_THEMES) or 'Tab after theme lists them'}"
        )
    return f"theme({name!r})"


def _first(*choices: str) -> Callable[[list[str], RunNames], Sequence[str]]:
    return lambda words, names: () if words else choices


def _first_then_ranks(*choices: str) -> Callable[[list[str], RunNames], Sequence[str]]:
    return lambda words, names: _other_ranks(words, names) if words else choices


def _other_ranks(words: list[str], names: RunNames) -> list[str]:
    return [str(rank) for rank in names.ranks if str(rank) not in words]


def _after_restart(words: list[str], names: RunNames) -> list[str]:
    heads = [word for word in words if word in HEADS]
    if not heads:
        return ["env", "unset"]
    sign = "=" if heads[-1].endswith("env") else ""
    return [*(name + sign for name in names.variables), "env", "unset"]


def _after_nccl(words: list[str], names: RunNames) -> Sequence[str]:
    match words[-1:]:
        case []:
            return LEVELS
        case ["rank"]:
            return [str(rank) for rank in names.ranks]
        case ["for"]:
            return ["10", "30", "60"]
    return ["rank", "for", "restart", *(each.name for each in subsystems())]


def _after_profile(words: list[str], names: RunNames) -> list[str]:
    if words[-1:] == ["steps"]:
        return ["1", "3", "10"]
    ranks = _other_ranks(words, names)
    return ranks if "steps" in words else [*ranks, "steps"]


VERBS = {
    "quit": TypedVerb(action="leave"),
    "q": TypedVerb(action="leave"),
    "help": TypedVerb("help [TOPIC]   the keys, or those about a topic", action=_help),
    "launch": TypedVerb(action="launch"),
    "runs": TypedVerb(action="runs"),
    "overview": TypedVerb(action="screen.pane('overview')"),
    "ranks": TypedVerb(action="screen.pane('ranks')"),
    "curves": TypedVerb(action="screen.pane('curves')"),
    "events": TypedVerb(action="screen.pane('events')"),
    "findings": TypedVerb(action="screen.pane('findings')"),
    "diagnose": TypedVerb(action="screen.pane('findings')"),
    "filter": TypedVerb("filter [WORDS]   the focused list, as after /", action=_filter),
    "node": TypedVerb("node NAME|NUMBER   its GPUs and ranks only; esc shows all", action=_node),
    "sort": TypedVerb(action="table.sort"),
    "columns": TypedVerb(action="table.columns"),
    "pause": TypedVerb(action="screen.pause"),
    "live": TypedVerb(action="run.live"),
    "restart": TypedVerb(
        "restart [env NAME=VALUE …] [unset NAME …]   the worker group, with a changed environment",
        command=typed_commands.restart,
        following=_after_restart,
    ),
    "nccl": TypedVerb(
        "nccl LEVEL [SUBSYS,…] [rank N] [for SECONDS] [restart]   NCCL_DEBUG, live if NCCL can",
        command=typed_commands.set_nccl,
        following=_after_nccl,
    ),
    "stop": TypedVerb("stop   end the run", command=typed_commands.stop),
    "signal": TypedVerb(
        "signal NAME|NUMBER [RANK …]   to the named ranks, else the marked ones, else all",
        command=typed_commands.send_signal,
        following=_first_then_ranks("USR1", "USR2", "TERM", "INT", "HUP", "KILL", "CONT", "STOP"),
    ),
    "dump": TypedVerb(
        "dump stacks|flight|memory [RANK …]   what the ranks do",
        command=typed_commands.dump,
        following=_first_then_ranks(*DUMPS),
    ),
    "profile": TypedVerb(
        "profile [RANK …] [steps N]   steps of ranks by torch.profiler, summed up",
        command=typed_commands.profile,
        following=_after_profile,
    ),
    "down": TypedVerb("down   tear the run's cluster down", command=typed_commands.take_down),
    "autostop": TypedVerb(
        "autostop MINUTES|off   when SkyPilot tears the idle cluster down",
        command=typed_commands.autostop,
        following=_first("off"),
    ),
    "at": TypedVerb(
        "at 14:32:07 | -5m | step 1200 | first-cause | start   the whole screen as it was then; esc goes back",
        action=lambda words: f"run.at({' '.join(words)!r})",
        following=_first("first-cause", "start", "step"),
    ),
    "back": TypedVerb(
        "back 30s | 10m | 2h   so far back in time from what the screen shows; esc returns to live",
        action=_back,
        following=_first("1m", "10m", "1h"),
    ),
    "compare": TypedVerb(
        "compare RUN[@ATTEMPT] | @ATTEMPT   another run, or an attempt of this one, over this one",
        action=_compare,
    ),
    "logs": TypedVerb("logs [RANK]   the log, of one rank", action=_logs, following=_other_ranks),
    "theme": TypedVerb(
        "theme [NAME]   the next of distui's own themes, or any of Textual's: Tab lists them; kept",
        action=_theme,
        following=_first(*ALL_THEMES),
    ),
}
"""Every first word."""

WORDS = tuple(sorted(VERBS))


def help_line(text: str, names: RunNames) -> str:
    """Return one line of help for a partial command: the usage of its verb, or the matching verbs."""
    verb, blank, _ = text.lstrip().partition(" ")
    if verb in VERBS:
        return VERBS[verb].usage or f"{verb}   takes nothing after it"
    fitting = candidates(text, names) if not blank else []
    if fitting:
        return "  ".join(fitting)
    return f"no command {verb!r}: {_meant(verb) or 'Tab on an empty line lists them'}"


ALIKE = 0.7
"""Similarity, 0 to 1, from which a verb is suggested for an unknown one."""


def _meant(verb: str) -> str:
    near = nearest(verb, WORDS, ALIKE)
    return near and f"did you mean {near}?"


def candidates(text: str, names: RunNames) -> list[str]:
    """Return the candidates for the last word, as whole words; [] if any word or none matches."""
    head, _, last = text.rpartition(" ")
    words = head.split()
    if not words:
        choices: Sequence[str] = WORDS
    else:
        choices = VERBS[words[0]].following(words[1:], names) if words[0] in VERBS else ()
    return [word for word in choices if _piece(word, last)]


def _piece(word: str, last: str) -> bool:
    """Whether a word starts with the typed text, or with the last part of a comma-separated list."""
    return word.upper().startswith(last.rpartition(",")[2].upper())


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
    words = _words(text)
    if not words:
        return TypedCommand()
    if words[0].startswith("-"):  # "-10m" is a time
        words = ["at", *words]
    verb, rest = words[0], words[1:]
    if verb not in VERBS:
        raise CommandError(f"no command {verb!r}: {_meant(verb) or 'Tab lists them'}")
    command, action = VERBS[verb].command, VERBS[verb].action
    if command is not None:
        return TypedCommand(command=command(rest, new_id(), tuple(sorted(marked))))
    return TypedCommand(action=action if isinstance(action, str) else action(rest))


def _words(text: str) -> list[str]:
    """Split a line as a shell does. Raises CommandError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CommandError(f"cannot read {text!r}: {str(error).lower()}") from error
