"""Arguments of tools. Most are options of the tool's verb, with the type and the description of `tui/verb_table.py`."""

from __future__ import annotations

import argparse
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ...runners.launch.option_values import count, seconds
from ..arguments import add_verb
from ..option_values import gigabytes, rank_list
from ..verb_table import VERBS
from .answers import Refused

REQUIRED = inspect.Parameter.empty
BY_VERB: Any = object()
"""The type or default of an argument that the verb declares."""
MOST_VALUES = 10_000

_ANNOTATED: Any = Annotated
_LITERAL: Any = Literal
"""For types that are made when the program runs."""
_WHOLE = Annotated[int, Field(ge=0, lt=10**9)]
_TYPES: Mapping[Any, Any] = {
    count: _WHOLE,
    rank_list: _WHOLE,
    seconds: Annotated[float, Field(gt=0, lt=1e9)],
    gigabytes: float,
}
"""The parser of an option's value → the type of the argument; other values are texts."""


class Argument(NamedTuple):
    """One argument of a tool."""

    name: str
    kind: Any
    """A type for pydantic."""
    about: str
    default: Any = REQUIRED
    words: Callable[[Any], list[str]] = lambda value: []
    """Returns the words of the verb for a value."""
    leads: bool = False
    """Whether its words precede all options."""
    executes: str = ""
    """The program that the verb executes if it is given, which a read-only server refuses; "" if there is none."""

    def parameter(self) -> inspect.Parameter:
        """Return the parameter of the tool's function."""
        about = Field(description=self.about)
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=_ANNOTATED[self.kind, about],
        )


class Option(NamedTuple):
    """An argument that is an option or a positional argument of the verb."""

    dest: str
    """The verb's name of it."""
    name: str = ""
    """The tool's name of it, if it is another."""
    about: str = ""
    """Description, if it is not the verb's."""
    type: Any = BY_VERB
    default: Any = BY_VERB
    executes: str = ""


def resolved(verb: str, arguments: tuple[Argument | Option | str, ...]) -> tuple[Argument, ...]:
    """Return the arguments, with the declarations of the verb's options; a text is the name of an option."""
    verbs = argparse.ArgumentParser().add_subparsers()
    add_verb(verbs, verb, VERBS[verb])
    actions = {action.dest: action for action in verbs.choices[verb]._actions}
    found: list[Argument] = []
    for each in arguments:
        if isinstance(each, Argument):
            found.append(each)
        else:
            option = Option(each) if isinstance(each, str) else each
            found.append(_of_action(actions[option.dest], option))
    return tuple(found)


def _of_action(action: argparse.Action, option: Option) -> Argument:
    default = _default(action) if option.default is BY_VERB else option.default
    kind = _type(action) if option.type is BY_VERB else option.type
    about = (option.about or action.help or "").removesuffix("; repeatable")
    return Argument(
        option.name or option.dest,
        kind if default is not None else kind | None,
        f"{about[:1].upper()}{about[1:]}",
        default,
        lambda value: _words(action, value),
        not action.option_strings,
        option.executes,
    )


def _is_list(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")


def _type(action: argparse.Action) -> Any:
    if action.nargs == 0:
        return bool
    one: Any = _TYPES.get(action.type, str)
    if action.choices is not None:
        one = _LITERAL[tuple(action.choices)]
    if not _is_list(action):
        return one
    return _ANNOTATED[types.GenericAlias(tuple, (one, ...)), Field(max_length=MOST_VALUES)]


def _default(action: argparse.Action) -> Any:
    if _is_list(action):
        return ()
    if action.required:
        return REQUIRED
    if action.default is None and action.type not in _TYPES:
        return ""
    return action.default


def _words(action: argparse.Action, value: Any) -> list[str]:
    """Return the words of an option; none for None, False, "" and ().

    Several values of an option that takes one are joined by commas.
    """
    if value is None or value is False or value in ("", ()):
        return []
    values = value if isinstance(value, tuple | list) else (value,)
    if not action.option_strings:
        return plain(map(str, values), action.dest)
    flag = next(flag for flag in action.option_strings if flag.startswith("--"))
    if action.nargs == 0:
        return [flag]
    if not _is_list(action):
        values = (",".join(map(str, values)),)
    return [f"{flag}={item}" for item in values]


def plain(words: Any, what: str) -> list[str]:
    """Return words that no verb can mistake for options. Raises Refused."""
    checked = list(words)
    for word in checked:
        if word.startswith("-") or not word:
            raise Refused(f"{what} {word!r} is empty or begins with a dash: write a path as ./{word}")
    return checked
