"""Convert the typed values of launch options (`K=V`, `HOSTS:K=V`, a list of hosts) to values of a request."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...presets import skypilot
from ...presets.launch_option import LaunchOption
from ...presets.nccl import error_in, full_name
from ...presets.request import FORM_OPTIONS, REQUEST_OPTIONS, Request
from ..run.environment import pairs
from ..run.errors import RunError
from .hosts import from_words
from .option_values import PARSERS


def request_of(words: Mapping[str, Any], **about: Any) -> Request:
    """Return the request for these option values, by the options' names. Raises RunError.

    `about`: fields without an option.
    """
    given = {
        field: READERS[option.read](words[option.name])
        for field, option in REQUEST_OPTIONS.items()
        if is_given(words.get(option.name))
    }
    return Request(**given, **about)


def words_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return options of the launch form, by their fields, as argparse would keep them. Raises RunError."""
    return {
        option.name: _word(option, texts[field])
        for field, option in FORM_OPTIONS.items()
        if texts.get(field)
    }


def _word(option: LaunchOption, text: str) -> Any:
    """Parse the text of one option. Raises RunError."""
    flag = option.label or option.flags[-1]
    if not option.takes:
        return text == "true"
    if option.repeat:
        return shell_words(text, flag)
    try:
        return PARSERS[option.parse](text)
    except argparse.ArgumentTypeError as error:
        raise RunError(f"{flag} {error}") from None
    except ValueError:
        raise RunError(f"{flag} {text}: write it as {option.takes}") from None


def typed(field: str, value: Any) -> str:
    """Return the text that means a value in the form, "" for no option: the reverse of `words_of` and `request_of`."""
    option = REQUEST_OPTIONS[field]
    if isinstance(value, bool):
        return "true" if value != (option.read == "no") else ""
    if option.parse == "cap" and value == 0:
        return "off"
    if isinstance(value, float):
        return f"{value:.12g}"
    return shlex.join(_repeated(value)) if option.repeat else str(value)


def _repeated(value: Any) -> list[str]:
    """Return the words of an option that may be repeated."""
    if isinstance(value, tuple):
        return [each if isinstance(each, str) else ",".join(map("=".join, each.items())) for each in value]
    return [pair for name, text in value.items() for pair in _pairs_of(name, text)]


def _pairs_of(name: str, value: str | Mapping[str, str]) -> list[str]:
    if isinstance(value, str):
        return [f"{name}={value}"]
    return [f"{name}:{variable}={text}" for variable, text in value.items()]


def is_given(value: object) -> bool:
    """Return True if the user gave an option. 0 counts as a value."""
    return not (value is None or value is False or value == [])


def _as_it_is(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def count(text: str) -> int | str:
    """Return a number of ranks, or the word for it."""
    return int(text) if text.isdecimal() else text


def host_pairs(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse `--env-on HOSTS:K=V` words to pattern of host names → variables. Raises RunError."""
    by_pattern: dict[str, dict[str, str]] = {}
    for word in words:
        pattern, colon, pair = word.partition(":")
        if not colon or not pattern:
            raise RunError(
                f"--env-on {word}: write it as HOSTS:NAME=VALUE, as in gpu0?:NCCL_SOCKET_IFNAME==eth1"
            )
        by_pattern.setdefault(pattern, {}).update(pairs([pair], "--env-on"))
    return by_pattern


def nccl_pairs(words: Sequence[str]) -> dict[str, str]:
    """Parse `--nccl K=V` words, and check them against the catalogue. Raises RunError."""
    values = {full_name(name): value for name, value in pairs(words, "--nccl").items()}
    for name, value in values.items():
        problem = error_in(name, value)
        if problem is not None:
            raise RunError(problem)
    return values


def any_pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE words whose names are no variables. Raises RunError."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise RunError(f"{option} {word}: write it as NAME=VALUE")
        values[name] = value
    return values


def shell_words(text: str, field: str) -> list[str]:
    """Split a text like a shell. Raises RunError."""
    try:
        return shlex.split(text)
    except ValueError:
        raise RunError(f"{field}: a quote is open in {text}: close it") from None


READERS: Mapping[str, Callable[[Any], Any]] = {
    "": _as_it_is,
    "any_of": lambda words: tuple(any_pairs(word.split(","), "--any-of") for word in words),
    "count": count,
    "env": lambda words: pairs(words, "--env"),
    "env_on": host_pairs,
    "gpus": skypilot.accelerator,
    "hosts": lambda text: tuple(from_words(text)),
    "mounts": lambda words: any_pairs(words, "--mount"),
    "nccl": nccl_pairs,
    "no": lambda given: not given,
}
"""`LaunchOption.read` → function from argparse's value to the field's value."""
