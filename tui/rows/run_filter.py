"""The filter of the run list and of `ls`: `state:failed preset:fsdp2 age<2d`. Pure.

A run must match all words of a filter. A word is text anywhere in a run, or FIELD, an operator and a value: `:` contains
(with `*` or `?` a pattern), `=` and `!=`, `<` `<=` `>` `>=`, `A,B` either, a leading `!` negates. An unknown value
matches neither a test nor its negation.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from ...presets.sanitize import quoted
from ...presets.spelling import did_you_mean
from ...runners.diagnosis.status import HUNG
from ...runners.run.formatting import NA, bytes_of, seconds_of
from ...runners.run.model import RunPhase
from .glyphs import or_na
from .runs import RunEntry, share_done, words_of_state

Value = str | float | None
STATES = tuple(dict.fromkeys((*map(str, RunPhase), "watched", HUNG, "live", "ended")))
"""Words that `state:` may contain parts of; `live` and `ended` match several states."""
_TYPED = tuple(state.rstrip("?") for state in STATES)


class FilterError(Exception):
    """An invalid word; the message is one sentence with its column."""


class RunField(Struct, frozen=True):
    """A field that a word can test."""

    kind: str
    """text, number, time (s), size (bytes) or percent."""
    read: Callable[[RunEntry], tuple[Value, ...]]
    """Returns its values; () or (None,) if it is unknown."""
    example: str


def _state(run: RunEntry) -> tuple[str, ...]:
    return (words_of_state(run), "live" if run.live else "ended")


def _percent(run: RunEntry) -> tuple[Value, ...]:
    done = share_done(run)
    return (None if done is None else 100 * done,)


FIELDS: dict[str, RunField] = {
    "state": RunField("text", _state, "state:failed"),
    "name": RunField("text", lambda run: (run.name,), "name:night*"),
    "preset": RunField("text", lambda run: (run.preset,), "preset:fsdp2"),
    "host": RunField("text", lambda run: (run.host or "here",), "host:gpu1"),
    "id": RunField("text", lambda run: (run.id,), "id:20261126*"),
    "tag": RunField("text", lambda run: run.tags or ("",), "tag:good"),
    "note": RunField("text", lambda run: (run.note,), "note:baseline"),
    "finding": RunField("text", lambda run: (f"{run.problem} {run.finding}",), "finding:memory"),
    "exit": RunField("number", lambda run: (run.exit_code,), "exit!=0"),
    "attempt": RunField("number", lambda run: (run.attempt,), "attempt>1"),
    "ranks": RunField("number", lambda run: (run.ranks,), "ranks>=8"),
    "nodes": RunField("number", lambda run: (run.nodes,), "nodes>1"),
    "step": RunField("number", lambda run: (run.step,), "step>1000"),
    "done": RunField("percent", _percent, "done<50"),
    "age": RunField("time", lambda run: (run.age_s,), "age<2d"),
    "took": RunField("time", lambda run: (run.lasted_s,), "took>1h"),
    "ended": RunField("time", lambda run: (run.ended_s,), "ended>30d"),
    "size": RunField("size", lambda run: (run.size,), "size>1GB"),
}
"""Fields by name. `age` counts from a run's start, `ended` from its end."""

ANYWHERE = ("name", "preset", "host", "id", "finding", "exit", "ranks", "tag", "note")
"""Fields that a word without a field searches."""

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

Test = Callable[[RunEntry], bool | None]
"""Returns whether a run matches; None if the value is unknown for that run."""


class RunFilter(Struct, frozen=True):
    tests: tuple[Test, ...] = ()
    fields: frozenset[str] = frozenset()
    """Names of the tested fields."""

    def fits(self, run: RunEntry) -> bool:
        """Whether a run matches all tests."""
        return all(test(run) is True for test in self.tests)


def understood(text: str) -> RunFilter:
    """Parse a filter; an empty one matches every run. Raises FilterError."""
    tests, fields = list[Test](), set[str]()
    for match in _TOKEN.finditer(text):
        test, field = _word(match[0], match.start() + 1)
        tests.append(test)
        fields |= {field} if field else set()
    return RunFilter(tuple(tests), frozenset(fields))


def fitting(runs: Iterable[RunEntry], text: str) -> list[RunEntry]:
    """Return the runs that match; an invalid word counts as text, since the user may still be typing it."""
    tests = list[Test]()
    for match in _TOKEN.finditer(text):
        try:
            tests.append(_word(match[0], 1)[0])
        except FilterError:
            tests.append(_anywhere(match[0]))
    return [run for run in runs if all(test(run) is True for test in tests)]


def mistake(text: str) -> str:
    """Return the error in a filter as a sentence; "" if there is none."""
    try:
        understood(text)
    except FilterError as error:
        return str(error)
    return ""


def _word(word: str, at: int) -> tuple[Test, str]:
    """Return a word's test, and the name of its field or "". `at` is its column, from 1. Raises FilterError."""
    split = _WORD.fullmatch(word)
    if split is None or word[0] in "\"'":
        plain = word.startswith("!")
        if word == "!":
            raise FilterError(f"the filter, column {at}: write a term after !, as in !state:failed")
        test = _anywhere(_unquoted(word[plain:]))
        return (_not(test) if plain else test), ""
    name = {"tags": "tag"}.get(split["field"].lower(), split["field"].lower())
    field = FIELDS.get(name)
    if field is None:
        hint = did_you_mean(name, FIELDS) or f"there are {', '.join(FIELDS)}"
        raise FilterError(f"the filter, column {at}: unknown field {quoted(name)}; {hint}")
    value = _unquoted(split["value"])
    beside = at + split.start("value")
    made = _of_text if field.kind == "text" else _of_number
    test = made(name, field, split["op"], value, beside)
    return (_not(test) if split["not"] else test), name


def _unquoted(text: str) -> str:
    return re.sub(r"\"([^\"]*)\"|'([^']*)'", lambda match: match[1] or match[2] or "", text)


def _not(test: Test) -> Test:
    def contrary(run: RunEntry) -> bool | None:
        fits = test(run)
        return None if fits is None else not fits

    return contrary


def _anywhere(text: str) -> Test:
    low = text.lower()
    fields = [FIELDS[name] for name in ANYWHERE]

    def test(run: RunEntry) -> bool:
        texts = [or_na(value) for field in fields for value in field.read(run)]
        return any(low in each.lower() for each in (words_of_state(run), *texts))

    return test


def _of_text(name: str, field: RunField, op: str, value: str, at: int) -> Test:
    if op in ("<", "<=", ">", ">="):
        raise FilterError(
            f"the filter, column {at}: {name} is a text without an order: write {field.example}"
        )
    wanted = value.lower().split(",")
    if name == "state":
        _check_states(op, wanted, at)

    def test(run: RunEntry) -> bool:
        texts = [str(text).lower() for text in field.read(run)]
        words = [word for text in texts for word in text.split()] if name == "state" else texts
        hit = any(_fits_text(text, op, each) for text in words or [""] for each in wanted)
        return hit != (op == "!=")

    return test


def _check_states(op: str, wanted: Sequence[str], at: int) -> None:
    for each in wanted:
        if not any(_fits_text(state, op, each) for state in STATES):
            raise FilterError(
                f"the filter, column {at}: unknown state {quoted(each)}: use {', '.join(_TYPED)}"
            )


def _fits_text(text: str, op: str, wanted: str) -> bool:
    """Whether a text equals `wanted`; with ":" whether it contains it, or matches its pattern."""
    if op != ":":
        return text == wanted
    return fnmatch.fnmatchcase(text, wanted) if re.search(r"[*?]", wanted) else wanted in text


def _of_number(name: str, field: RunField, op: str, value: str, at: int) -> Test:
    if value.lower() == NA and op in (":", "=", "!="):
        return lambda run: (field.read(run) == (None,)) != (op == "!=")
    if not value and op == ":":
        return lambda _: True  # still being typed
    if op == ":" and field.kind in ("time", "size"):
        raise FilterError(f"the filter, column {at}: {name} needs < or >: write {field.example}")
    return _compared(field, op, [_number(name, field, each, at) for each in value.split(",")])


def _compared(field: RunField, op: str, bounds: Sequence[float]) -> Test:
    """Return a test whether a number fits any of the bounds; with != all of them."""

    def test(run: RunEntry) -> bool | None:
        (have,) = field.read(run)
        if not isinstance(have, int | float):
            return None
        hits = (_ORDERS[op](have, bound) for bound in bounds)
        return all(hits) if op == "!=" else any(hits)

    return test


def _number(name: str, field: RunField, text: str, at: int) -> float:
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
