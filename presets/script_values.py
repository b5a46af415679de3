"""Evaluate the arguments of a script's calls, as far as its source and its command line show them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from .script_facts import Option, Script, last_name

_DEEPEST = 8
"""Longest chain of assignments to follow."""
_EMPTY = ("", "none", "None", "null", "False", "false")
"""Option values that count as no value."""


@dataclass(frozen=True, slots=True)
class Value:
    """A statically known argument value."""

    given: bool | None
    """False for None and False, True for any other value, None if only running the script shows it."""
    unless: str = ""
    """What would change the value, as the end of "unless …"."""


TRUE, FALSE = Value(True), Value(False)


class Values:
    """Evaluates expressions of one script that is launched with `args`."""

    def __init__(self, script: Script, args: Sequence[str]) -> None:
        self.options, self.assigned = script.options, script.assigned
        self._by_dest: dict[str, list[Option]] = {}
        for option in script.options:
            self._by_dest.setdefault(option.dest, []).append(option)
        self._words = _words_of_options(script.options, args)

    def of(self, node: ast.expr, deep: int = 0) -> Value:
        """Return the value of an expression."""
        if isinstance(node, ast.Constant):
            is_nothing = node.value is None or node.value is False or node.value == ""
            return FALSE if is_nothing else TRUE
        if isinstance(node, ast.Call | ast.Dict | ast.List | ast.Tuple):
            return _unknown(node) if _reads(node) else TRUE
        return (self._followed(node, deep) if deep < _DEEPEST else None) or _unknown(node)

    def _followed(self, node: ast.expr, deep: int) -> Value | None:
        """Return the value of a name, an option or a conditional expression, or None if it is unknown."""
        if isinstance(node, ast.IfExp):
            branches = {self.of(node.body, deep + 1), self.of(node.orelse, deep + 1)}
            return branches.pop() if len(branches) == 1 else None
        if isinstance(node, ast.Attribute | ast.Subscript):
            option = self.option(_key(node))
            return self.of_option(option, deep) if option else None
        values = self.assigned.get(node.id, []) if isinstance(node, ast.Name) else []
        return self.of(values[0], deep + 1) if len(values) == 1 else None

    def option(self, dest: str) -> Option | None:
        """Return the only option with this `dest` in the parser's namespace, or None for no option and for several."""
        options = self._by_dest.get(dest, [])
        return options[0] if len(options) == 1 else None

    def word(self, option: Option) -> str | None:
        """Return the argument that the command line gives to an option, or None for an option that is not given."""
        return self._words.get(option)

    def constant(self, node: ast.expr | None) -> object:
        """Return the constant of an expression, also through names that are assigned once, or None."""
        for _ in range(_DEEPEST):
            if not isinstance(node, ast.Name):
                break
            values = self.assigned.get(node.id, [])
            node = values[0] if len(values) == 1 else None
        return node.value if isinstance(node, ast.Constant) else None

    def of_option(self, option: Option, deep: int = 0) -> Value:
        """Return the value of an option in this launch."""
        word = self.word(option)
        if option.action in ("store_true", "store_false"):
            is_on = (word is not None) == (option.action == "store_true")
            return TRUE if is_on else Value(False, f"{option.name} is given")
        if word is None:
            usual = FALSE if option.default is None else self.of(option.default, deep + 1)
            return Value(usual.given, f"{option.name} is given")
        return FALSE if word in _EMPTY else TRUE


def _unknown(node: ast.expr) -> Value:
    is_named = isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
    return Value(None, f"{_short(node)} {'is set' if is_named else 'comes to something'}")


def _words_of_options(options: Sequence[Option], args: Sequence[str]) -> dict[Option, str]:
    """Return the argument that a command line gives to each option, or "" for an option without one."""
    words: dict[Option, str] = {}
    for at, word in enumerate(args):
        name, equals, value = word.partition("=")
        if not equals:
            behind = args[at + 1] if at + 1 < len(args) else ""
            value = "" if behind.startswith("--") else behind
        words |= dict.fromkeys(_meant(name, options), value)
    return words


def _meant(word: str, options: Sequence[Option]) -> list[Option]:
    """Return the options that argparse matches to a word, also by an unambiguous prefix."""
    exact = [option for option in options if word in option.names]
    if exact or not word.startswith("--") or len(word) < 3:
        return exact
    fitting = [option for option in options if any(name.startswith(word) for name in option.names)]
    return fitting if len(fitting) == 1 else []


def _key(node: ast.Attribute | ast.Subscript) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    key = node.slice
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _reads(node: ast.expr) -> bool:
    """Return True if a call reads a value and creates none: os.environ.get("X"), getattr(args, "x"), bool(x)."""
    return (
        isinstance(node, ast.Call)
        and not last_name(node.func)[:1].isupper()
        and last_name(node.func) != "dict"
    )


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else text[:39] + "…"
