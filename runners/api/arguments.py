"""Types of the arguments of all calls of `api`, by name, and how they are read.

A reader returns the value in the form for use. Its exception (TypeError, ValueError) has the first half of the message,
and `Argument.takes` the second.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, TypeVar, cast

from msgspec import Struct

from ...presets import env_names
from ...presets.request import Request
from ..launch.words import nccl_pairs
from ..reports.dump_report import KINDS, RECORD
from ..run.errors import RunError
from ..run.log_files import STREAMS
from ..telemetry.curves import DISTANT

UNTIL = {
    "running": "every rank has a process",
    "healthy": "every rank has made a step",
    "done": "it has ended",
}
"""Goals of `Run.wait`, with their meanings."""

Reader = Callable[[str, Any], Any]
"""Function of a value's place in the arguments ("ranks[1]") and the value."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Rules of one argument, shared by all calls."""

    read: Reader
    takes: str
    """Text that says which values to pass."""


F = TypeVar("F", bound=Callable[..., Any])


def reading(call: F) -> F:
    """Let a call get its arguments in the form for use. Raises TypeError for a wrong type, else RunError."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def with_read_arguments(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if name != "self":
                kind = str(signature.parameters[name].annotation)
                bound.arguments[name] = _checked(name, value, rule_of(name, kind))
        return call(*bound.args, **bound.kwargs)

    return cast(F, with_read_arguments)


def checked(**given: Any) -> dict[str, Any]:
    """Return the arguments by name, in the form for use. Raises TypeError for a wrong type, else RunError."""
    return {name: _checked(name, value, rule_of(name)) for name, value in given.items()}


def rule_of(name: str, kind: str = "") -> Argument:
    """Return the rule of an argument: its own, that of the field of `Request`, else that of its annotation."""
    return ARGUMENTS.get(name) or OF_TYPE[TYPES.get(name, kind)]


def checked_fields(kind: type[Struct], **given: Any) -> dict[str, Any]:
    """Return the arguments that are fields of a struct, like `checked`. Raises TypeError and RunError."""
    read = {}
    for name, value in given.items():
        if name not in kind.__struct_fields__:
            raise TypeError(
                f"there is no argument {name}: pass fields of {kind.__module__}.{kind.__name__}"
            )
        read[name] = _checked(name, value, OF_TYPE[kind.__annotations__[name]])
    return read


def _checked(name: str, value: Any, argument: Argument) -> Any:
    try:
        return argument.read(name, value)
    except TypeError as error:
        raise TypeError(f"{error}: pass {argument.takes}") from None
    except ValueError as error:
        raise RunError(f"{error}: pass {argument.takes}") from None


def _type_error(where: str, value: object) -> TypeError:
    return TypeError(f"{where} is {'None' if value is None else f'of type {type(value).__name__}'}")


def shown(value: object) -> str:
    """Representation of a value that is no secret, short enough for a sentence."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        return "so large a number"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _text(where: str, value: Any) -> str:
    """Return a string that plans and commands can contain; it may be a secret, so messages never show it."""
    if not isinstance(value, str):
        raise _type_error(where, value)
    if "\0" in value:
        raise ValueError(f"{where} holds a NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not UTF-8 text") from None
    return str.__str__(value)


def _name(where: str, value: Any) -> str:
    text = _text(where, value)
    if not text.strip():
        raise ValueError(f"{where} is empty")
    return text


def _word(where: str, value: Any) -> str:
    """Return a string, or a path as a string."""
    return _text(where, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _path(where: str, value: Any) -> str:
    return _name(where, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _command(where: str, value: Any) -> tuple[str, ...]:
    if not value:
        raise ValueError(f"{where} is empty")
    return (
        _path(f"{where}[0]", value[0]),
        *(_word(f"{where}[{at}]", value[at]) for at in range(1, len(value))),
    )


def _count(where: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise _type_error(where, value)
    number = operator.index(value)
    if not 0 <= number < 10**9:
        raise ValueError(f"{where} is {shown(number)}")
    return number


def _count_or_word(where: str, value: Any) -> int | str:
    return _name(where, value) if isinstance(value, str) else _count(where, value)


def _number_below(limit: float) -> Reader:
    """Reader for a number from 0 on; refuses nan."""

    def read(where: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _type_error(where, value)
        number: Any = value
        if not 0 <= number < limit:
            raise ValueError(f"{where} is {shown(number)}")
        return float(number)

    return read


_seconds = _number_below(1e9)
"""Seconds as for `--timeout` and `--grace`."""
_moment = _number_below(DISTANT)
"""Unix seconds."""


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _type_error(where, value)
    return value


def _among(words: Iterable[str]) -> Reader:
    def read(where: str, value: Any) -> str:
        text = _text(where, value)
        if text not in words:
            raise ValueError(f"{where} is {shown(text)}")
        return text

    return read


def _many(read: Reader) -> Reader:
    """Reader for several values of one kind; refuses a single string and a dict."""

    def read_all(where: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise _type_error(where, value)
        return tuple(read(f"{where}[{at}]", item) for at, item in enumerate(value))

    return read_all


def _or_none(read: Reader) -> Reader:
    return lambda where, value: None if value is None else read(where, value)


def _variable(where: str, value: Any) -> str:
    """Return a variable name that a plan accepts. Raises RunError."""
    text = _text(where, value)
    if refused := env_names.refusal(text, ""):
        raise RunError(refused)
    return text


def _variables(where: str, value: Any) -> dict[str, str]:
    """Variables by name; a value may be a secret, so messages never show it."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _type_error(where, value)
    names = {name: _variable(f"a name in {where}", name) for name in value}
    return {text: _text(f"{where}[{shown(text)}]", value[name]) for name, text in names.items()}


def _mapping_of(read: Reader) -> Reader:
    """Reader of a dict with texts as its names."""

    def read_all(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _type_error(where, value)
        return {
            _name(f"a name in {where}", name): read(f"{where}[{shown(name)}]", value[name])
            for name in value
        }

    return read_all


def _nccl(where: str, value: Any) -> dict[str, str]:
    """Variables as for `--nccl`, optionally without NCCL_. Raises RunError for a wrong value or a misspelt name."""
    return nccl_pairs([f"{name}={text}" for name, text in _variables(where, value).items()])


_OF_NAMES = "whose names have letters, digits and _"
ARGUMENTS: Mapping[str, Argument] = {
    "script": Argument(_path, 'the path of a script, as in "train.py"'),
    "args": Argument(_many(_word), 'the words of the script one by one, as in "--lr", "1e-3"'),
    "command": Argument(_command, 'a program and its words one by one, as in "sh", "-c", "sleep 1"'),
    "preset": Argument(_name, 'the name of a preset, as in "ddp"'),
    "overrides": Argument(_many(_name), 'a list of FIELD=VALUE, as in ["mesh.tp=2"]'),
    "name": Argument(_or_none(_name), 'a name for the run, as in "first-try", or None'),
    "nproc_per_node": Argument(_or_none(_count_or_word), 'a number of ranks, "gpu", "cpu", "auto" or None'),
    "nnodes": Argument(_or_none(_count_or_word), 'a number of nodes, "MIN:MAX" or None'),
    "hosts": Argument(_many(_name), 'a list of host names, as in ["gpu0", "gpu1"]'),
    "env": Argument(_variables, f'a dict of texts {_OF_NAMES}, as in {{"NCCL_DEBUG": "INFO"}}'),
    "nccl": Argument(_nccl, f'a dict of texts {_OF_NAMES}, as in {{"DEBUG": "INFO"}}'),
    "python": Argument(_or_none(_path), "the path of an interpreter, or None"),
    "run": Argument(_or_none(_text), "a name, an id or a unique prefix of one, or None"),
    "a": Argument(_name, "a run, or a text as for `distui diff`"),
    "b": Argument(_name, "a run, or a text as for `distui diff`"),
    "until": Argument(_among(UNTIL), '"running", "healthy" or "done"'),
    "timeout": Argument(_or_none(_seconds), "seconds from 0 on, as in 30 or 2.5, or None"),
    "ranks": Argument(_many(_count), "a list of ranks from 0 on, as in [0, 1]"),
    "steps": Argument(_count, "a number of optimizer steps from 1 to 100"),
    "out": Argument(_or_none(_path), "the path of a directory, or None for the run's own"),
    "streams": Argument(_many(_among((*STREAMS, "log"))), 'a list of "out", "err", "nccl" and "log"'),
    "attempt": Argument(_or_none(_count), "the number of an attempt, or None for the newest"),
    "grep": Argument(_text, 'a regular expression, as in "loss|error"'),
    "since": Argument(_or_none(_moment), "unix seconds, or None"),
    "begin": Argument(_or_none(_moment), "unix seconds, or None"),
    "end": Argument(_or_none(_moment), "unix seconds, or None"),
    "metrics": Argument(_many(_name), 'names of metrics, as in "train.loss", "gpu"'),
    "what": Argument(_among((*KINDS, RECORD)), '"stacks", "flight", "memory" or "record"'),
    "file": Argument(_path, 'the path of a file, as in "night.tar.gz"'),
    "files": Argument(_command, "paths of files"),
    "level": Argument(_name, 'a level of NCCL_DEBUG, as in "INFO"'),
    "subsys": Argument(_text, 'NCCL_DEBUG_SUBSYS, as in "COLL,NET", or ""'),
    "signal": Argument(_name, 'the name of a signal, as in "USR1"'),
    "text": Argument(_text, "a text"),
    "add": Argument(_many(_name), 'tags one by one, as in "good", "keep"'),
    "remove": Argument(_many(_name), 'a list of tags, as in ["bad"]'),
    "everything": Argument(_flag, "True or False"),
    "unset": Argument(_many(_variable), 'a list of variables by their names, as in ["NCCL_DEBUG"]'),
    "notify": Argument(
        _many(_name), 'a list of channels, as in ["team:hang,gave-up", "terminal"], or ["off"]'
    ),
    "reachable": Argument(_flag, "True or False"),
    "env_on": Argument(_mapping_of(_variables), 'a dict of dicts, as in {"gpu0?": {"NCCL_DEBUG": "INFO"}}'),
    "any_of": Argument(_many(_mapping_of(_text)), 'a list of dicts, as in [{"infra": "aws"}]'),
}

TYPES = {each.name: str(each.type) for each in fields(Request)}
OF_TYPE: Mapping[str, Argument] = {
    "bool": Argument(_flag, "True or False"),
    "bool | None": Argument(_or_none(_flag), "True, False or None"),
    "float | None": Argument(_or_none(_seconds), "seconds from 0 on, as in 30 or 2.5, or None"),
    "int": Argument(_count, "a whole number from 0 on"),
    "int | None": Argument(_or_none(_count), "a whole number from 0 on, or None"),
    "Sequence[int]": Argument(_many(_count), "a list of numbers from 0 on, as in [0, 1]"),
    "str": Argument(_name, "a text"),
    "str | None": Argument(_or_none(_path), "a text, or None"),
    "tuple[str, ...]": Argument(_many(_name), "a list of texts"),
    "Mapping[str, str]": Argument(_mapping_of(_text), "a dict of texts"),
}
"""Type of a field of `Request`, or annotation → how it is read, if `ARGUMENTS` does not say it."""
