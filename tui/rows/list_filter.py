"""Filters of lists: `state:failed preset:fsdp2 age<2d`, for runs, ranks, GPUs, findings and events. Pure.

An item must match all words of a filter. A word is text anywhere in an item, or FIELD, an operator and a value: `:`
contains (with `*` or `?` a pattern), `=` and `!=`, `<` `<=` `>` `>=`, `A,B` either, `0-7` a range of numbers, a leading
`!` negates. `FIELD NUMBER` is `FIELD:NUMBER`. An unknown value matches neither a test nor its negation.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ...presets.sanitize import quoted
from ...presets.spelling import did_you_mean
from ...runners.run.formatting import NA, bytes_of, seconds_of

T = TypeVar("T")
Value = str | float | None


class FilterError(Exception):
    """An invalid word; the message is one sentence with its column."""


class FilterField(Struct, frozen=True):
    """A field that a word can test."""

    kind: str
    """text, host (a text whose numbers are compared whole), number, time (s), size (bytes) or percent."""
    read: Callable[[Any], tuple[Value, ...]]
    """Returns its values; () or (None,) if it is unknown."""
    example: str
    known: tuple[str, ...] = ()
    """All words that a text can consist of; () if any text is valid. A `?` at the end need not be typed."""


_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    ":": operator.eq,
    "!=": operator.ne,
}
_WANTS = {
    "number": "a number",
    "percent": "a number of percent",
    "time": "a time (a number and s, m, h, d or w)",
    "size": "a size (a number and KB, MB, GB or TB)",
}
_WORD = re.compile(r"(?P<not>!?)(?P<field>[A-Za-z_]+)(?P<op>:|!=|<=|>=|=|<|>)(?P<value>.*)", re.DOTALL)
_TOKEN = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*'|["'])+""")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_NUMBERS = re.compile(r"[0-9][0-9,-]*")
_TEXTS = ("text", "host")
_NUMBERED = (*_TEXTS, "number", "percent")
"""Kinds of fields that `:` compares with a number."""

Test = Callable[[Any], bool | None]
"""Returns whether an item matches; None if the value is unknown for that item."""


class ListFilter(Struct, Generic[T], frozen=True):
    """A filter that was understood."""

    tests: tuple[Test, ...] = ()
    fields: frozenset[str] = frozenset()
    """Names of the tested fields."""

    def fits(self, item: T) -> bool:
        """Whether an item matches all tests."""
        return all(test(item) is True for test in self.tests)


class FilterGrammar(Generic[T]):
    """The fields of one kind of list, and the words that they allow."""

    def __init__(
        self,
        fields: Mapping[str, FilterField],
        words_of: Callable[[T], Iterable[str]],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Create it; `words_of` returns the texts that a word without a field searches."""
        self.fields = fields
        self._words_of = words_of
        self._aliases = aliases or {}

    def understood(self, text: str) -> ListFilter[T]:
        """Parse a filter; an empty one matches every item. Raises FilterError."""
        tests, fields = list[Test](), set[str]()
        for word, at in self._split(text):
            test, field = self._word(word, at)
            tests.append(test)
            fields |= {field} if field else set()
        return ListFilter(tuple(tests), frozenset(fields))

    def fitting(self, items: Iterable[T], text: str) -> list[T]:
        """Return the items that match the text typed so far."""
        typed = self.typed(text)
        return [item for item in items if typed.fits(item)]

    def typed(self, text: str) -> ListFilter[T]:
        """Parse a filter; an invalid word counts as text, since the user may still be typing it."""
        tests = list[Test]()
        for word, at in self._split(text):
            try:
                tests.append(self._word(word, at)[0])
            except FilterError:
                tests.append(self._anywhere(word))
        return ListFilter(tuple(tests))

    def mistake(self, text: str) -> str:
        """Return the error in a filter as a sentence; "" if there is none."""
        try:
            self.understood(text)
        except FilterError as error:
            return str(error)
        return ""

    def hint(self) -> str:
        """Return examples of words."""
        return " ".join(field.example for field in list(self.fields.values())[:4])

    def _split(self, text: str) -> list[tuple[str, int]]:
        """Return the words with their columns, from 1. A field's name and a number are one word, as in `node 77`."""
        words = list[tuple[str, int]]()
        for match in _TOKEN.finditer(text):
            before = words[-1][0] if words else ""
            if _NUMBERS.fullmatch(match[0]) and self._takes_number(before):
                words[-1] = (f"{before}:{match[0]}", words[-1][1])
            else:
                words.append((match[0], match.start() + 1))
        return words

    def _takes_number(self, word: str) -> bool:
        name = word.lower().removeprefix("!")
        field = self.fields.get(self._aliases.get(name, name))
        return field is not None and field.kind in _NUMBERED

    def _word(self, word: str, at: int) -> tuple[Test, str]:
        """Return a word's test, and the name of its field or "". `at` is its column, from 1. Raises FilterError."""
        split = _WORD.fullmatch(word)
        if split is None or word[0] in "\"'":
            negated = word.startswith("!")
            if word == "!":
                raise FilterError(f"the filter, column {at}: write a term after !, as in !state:failed")
            test = self._anywhere(_unquoted(word[negated:]))
            return (_not(test) if negated else test), ""
        typed = split["field"].lower()
        name = self._aliases.get(typed, typed)
        field = self.fields.get(name)
        if field is None:
            hint = did_you_mean(name, self.fields) or f"there are {', '.join(self.fields)}"
            raise FilterError(f"the filter, column {at}: unknown field {quoted(name)}; {hint}")
        made = _of_text if field.kind in _TEXTS else _of_number
        test = made(name, field, split["op"], _unquoted(split["value"]), at + split.start("value"))
        return (_not(test) if split["not"] else test), name

    def _anywhere(self, text: str) -> Test:
        low = text.lower()
        return lambda item: any(low in each.lower() for each in self._words_of(item))


def _unquoted(text: str) -> str:
    return re.sub(r"\"([^\"]*)\"|'([^']*)'", lambda match: match[1] or match[2] or "", text)


def _not(test: Test) -> Test:
    def contrary(item: Any) -> bool | None:
        fits = test(item)
        return None if fits is None else not fits

    return contrary


def _of_text(name: str, field: FilterField, op: str, value: str, at: int) -> Test:
    if op in ("<", "<=", ">", ">="):
        raise FilterError(
            f"the filter, column {at}: {name} is a text without an order: write {field.example}"
        )
    wanted = value.lower().split(",")
    if field.known:
        _check_known(name, field, op, wanted, at)

    def test(item: Any) -> bool | None:
        values = field.read(item)
        if values == (None,):
            return None
        texts = [str(text).lower() for text in values]
        if field.known:
            texts = [word for text in texts for word in text.split()]
        fits = _fits_host if field.kind == "host" else _fits_text
        hit = any(fits(text, op, each) for text in texts or [""] for each in wanted)
        return hit != (op == "!=")

    return test


def _check_known(name: str, field: FilterField, op: str, wanted: Sequence[str], at: int) -> None:
    for each in wanted:
        if not any(_fits_text(known, op, each) for known in field.known):
            valid = ", ".join(known.rstrip("?") for known in field.known)
            raise FilterError(f"the filter, column {at}: unknown {name} {quoted(each)}: use {valid}")


def _fits_text(text: str, op: str, wanted: str) -> bool:
    """Whether a text equals `wanted`; with ":" whether it contains it, or matches its pattern."""
    if op != ":":
        return text == wanted
    return fnmatch.fnmatchcase(text, wanted) if re.search(r"[*?]", wanted) else wanted in text


def _fits_host(text: str, op: str, wanted: str) -> bool:
    """Return `_fits_text`, but compare a whole number with whole numbers: `node:7` is c7 and n007, not n77."""
    if op == ":" and wanted.isdecimal():
        return re.search(rf"(?<!\d)0*{wanted}(?!\d)", text) is not None
    return _fits_text(text, op, wanted)


def _of_number(name: str, field: FilterField, op: str, value: str, at: int) -> Test:
    if value.lower() == NA and op in (":", "=", "!="):
        return lambda item: (field.read(item) == (None,)) != (op == "!=")
    if not value and op == ":":
        return lambda _: True  # still being typed
    if op == ":" and field.kind in ("time", "size"):
        raise FilterError(f"the filter, column {at}: {name} needs < or >: write {field.example}")
    return _compared(field, op, [_bound(name, field, op, each, at) for each in value.split(",")])


def _compared(field: FilterField, op: str, bounds: Sequence[Callable[[float], bool]]) -> Test:
    """Return a test whether one of the numbers fits any of the bounds; with != whether each fits all of them."""
    decide = all if op == "!=" else any

    def test(item: Any) -> bool | None:
        numbers = [value for value in field.read(item) if isinstance(value, int | float)]
        if not numbers:
            return None
        return decide(bound(number) for number in numbers for bound in bounds)

    return test


def _bound(name: str, field: FilterField, op: str, text: str, at: int) -> Callable[[float], bool]:
    """Return the test of one number or of one range. Raises FilterError."""
    span = _RANGE.fullmatch(text)
    if span is not None and op in (":", "=", "!=") and field.kind in ("number", "percent"):
        first, last = int(span[1]), int(span[2])
        return lambda have: (first <= have <= last) != (op == "!=")
    bound = _number(name, field, text, at)
    return lambda have: _ORDERS[op](have, bound)


def _number(name: str, field: FilterField, text: str, at: int) -> float:
    """Parse a value of a numeric field. Raises FilterError."""
    value: float | None
    if field.kind == "time":
        value = seconds_of(text)
    elif field.kind == "size":
        value = bytes_of(text)
    else:
        plain = text.removesuffix("%").rstrip() if field.kind == "percent" else text
        value = float(plain) if re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?", plain) else None
    if value is None:
        raise FilterError(
            f"the filter, column {at}: {name} takes {_WANTS[field.kind]}, not {quoted(text)}: as in {field.example}"
        )
    return value
