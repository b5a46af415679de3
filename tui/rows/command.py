"""The `:` command line: the same verbs as the shell's, parsed to commands. Pure."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from ...presets.nccl import NcclError, parse_level, parse_subsys
from ...runners.model import Command, Down, Dump, Restart, SetAutostop, SetNccl, Signal, Stop


class CommandError(Exception):
    """What was typed is no command; the text is one sentence that says what to type."""


@dataclass(frozen=True, slots=True)
class Asked:
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


def parse(text: str, new_id: Callable[[], str], marked: frozenset[int] = frozenset()) -> Asked:
    """What the line asks for. Raises CommandError.

    `marked` are the ranks that a command goes to when it names none.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CommandError(f"cannot read {text!r}: {str(error).lower()}") from error
    if not words:
        return Asked()
    verb, rest = words[0], words[1:]
    if verb in ACTIONS:
        return Asked(action=ACTIONS[verb])
    if verb not in _PARSERS:
        known = sorted([*_PARSERS, *ACTIONS])
        near = difflib.get_close_matches(verb, known, 1)
        raise CommandError(
            f"no command {verb!r}: " + (f"did you mean {near[0]}?" if near else ", ".join(known))
        )
    return Asked(command=_PARSERS[verb](rest, new_id(), tuple(sorted(marked))))


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
