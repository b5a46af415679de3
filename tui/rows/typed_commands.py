"""The commands for the run that the words after a verb of the `:` line make. Pure.

Each function takes the words, the new command's id, and the marked ranks.
"""

from __future__ import annotations

import re

from ...presets.nccl import NcclError, parse_level, parse_subsys
from ...presets.spelling import did_you_mean
from ...runners.run import environment
from ...runners.run.commands import (
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
from ...runners.run.formatting import seconds_of
from ...runners.run.signal_names import NAMES, number_of, signal_name

DUMPS = ("stacks", "flight", "memory")
"""What `dump` can request."""

HEADS = ("env", "unset", "--env", "--unset")
_COUNT = r"0*[1-9][0-9]{0,5}"


class CommandError(Exception):
    """The typed text is no command; the message is one sentence with what to type."""


def stop(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    if words:
        raise CommandError(f"stop takes nothing after it, got {' '.join(words)!r}")
    return Stop(id=new)


def send_signal(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    if not words:
        raise CommandError("signal needs a name: type signal SIGUSR1 [RANK …]")
    return Signal(id=new, signal=_signal(words[0]), ranks=_ranks(words[1:]) or marked)


def dump(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    if not words or words[0] not in DUMPS:
        raise CommandError("dump needs what: type dump stacks, dump flight or dump memory")
    return Dump(id=new, what=words[0], ranks=_ranks(words[1:]) or marked)


def take_down(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    if words:
        raise CommandError("down takes nothing after it: it asks for the cluster's name")
    return Down(id=new, cluster="")


def autostop(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    if words == ["off"]:
        return SetAutostop(id=new, minutes=None)
    if not re.fullmatch(_COUNT, " ".join(words)):
        raise CommandError("autostop needs idle minutes: type autostop 30, or autostop off")
    return SetAutostop(id=new, minutes=int(words[0]))


def restart(words: list[str], new: str, _: tuple[int, ...]) -> Command:
    env: dict[str, str] = {}
    unset: list[str] = []
    taking = env_words = "env"
    for at, word in enumerate(words):
        if word in HEADS:
            taking = word.removeprefix("--")
            if at + 1 == len(words) or words[at + 1] in HEADS:
                wanted = "NAME=VALUE" if taking == env_words else "NAME"
                raise CommandError(
                    f"nothing follows {word!r}: type restart {taking} {wanted}, or only restart"
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


def _signal(word: str) -> str:
    number = number_of(word)
    if number is None:
        meant = did_you_mean(signal_name(word), NAMES)
        raise CommandError(f"no signal {word!r}: {meant or 'type one as in USR1, TERM or 10'}")
    return number.name


def rank_number(word: str) -> int:
    if not word.isdecimal():
        raise CommandError(f"{word!r} is not a rank: give its number")
    return int(word)


def _ranks(words: list[str]) -> tuple[int, ...]:
    return tuple(rank_number(word) for word in words if word != "rank")


def profile(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
    steps = 3
    if "steps" in words:
        at = words.index("steps")
        number = words[at + 1 : at + 2]
        if not number or not re.fullmatch(_COUNT, number[0]):
            raise CommandError("a number is missing after 'steps': type profile [RANK …] steps 3")
        steps, words = int(number[0]), [*words[:at], *words[at + 2 :]]
    return Profile(id=new, ranks=_ranks(words) or marked, steps=steps)


def _seconds(word: str) -> float:
    value = seconds_of(word) or seconds_of(f"{word}s")
    if value is None or not 0 < value < 1e7:
        raise CommandError(f"{word!r} is no time above 0: type seconds, or a time as in 10s or 5m")
    return value


def set_nccl(words: list[str], new: str, marked: tuple[int, ...]) -> Command:
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
            ranks.append(rank_number(rest.pop(0)))
        elif word == "for":
            seconds = _seconds(rest.pop(0))
        elif not subsys:
            subsys = word
        else:
            raise CommandError(f"cannot read {word!r}: {usage}")
    return SetNccl(new, *_settings(level, subsys), tuple(ranks) or marked, seconds, again)


def _settings(level: str, subsys: str) -> tuple[str, str]:
    """Return NCCL's own spelling of level and subsystems."""
    try:
        return parse_level(level), parse_subsys(subsys) if subsys else ""
    except NcclError as error:
        raise CommandError(str(error)) from error
