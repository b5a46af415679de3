"""Split a line of output into pairs of a name and a number. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from .signal_names import meaning

LONGEST_LABEL = 48
"""Maximum characters before a number that may contain its name."""
MOST_PAIRS = 60
"""Maximum pairs of a line; a line with more is a configuration."""

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?"
    r"|[-+]?(?:nan|NaN|NAN|inf|Inf|Infinity)(?![A-Za-z])"
)
_THINGS = r"(?:tok(?:en)?s?|samples?|images?|imgs?|examples?|seqs?|sequences?|sent(?:ence)?s?|words?)"
_EACH = r"(?:it|iter(?:ation)?|step|batch(?:e(?=s))?|update)"
_UNIT = (
    r"\s?%\s?(?:(?:bf16|fp16|fp8)\s)?MFU|\s?%"
    rf"|\s?[kKMG]?\s?{_THINGS}\s?(?:/|per )\s?s(?:ec(?:ond)?)?(?:/(?:gpu|GPU|device))?\b"
    rf"|\s?{_EACH}s?/s(?:ec(?:ond)?)?\b|\s?(?:ms|secs?|s)/{_EACH}\b|\s?ms\b|\s?s\b(?!/)|\s?sec(?:ond)?s?\b(?!/)"
    r"|[kKM]\b|/s(?:/gpu)?\b"
)
_NUMBER = re.compile(
    rf"(?=[-+.\dnNiI])(?<![\w.])(?<!\d:)(?P<value>{NUMBER})(?:(?<=nan)\.0)?(?P<unit>{_UNIT})?(?(unit)(?!\w|\s*[:=])|(?!\w|\.\w|:\d\d|-\d))"
)
"""A number and its unit. It excludes "0.88Epoch", "12:30", dates and ranges."""
_LABEL = re.compile(
    r"(?P<label>[A-Za-z][\w./ -]*?|\[[A-Za-z][\w ./-]*\])\s*"
    r"(?:\((?P<unit>[^()]{1,24})\))?[\"']?\s*(?P<sep>:?[:=]?)\s*[\"'\[({#]*$"
)
_RATIO = re.compile(r"\s*(?:/|of)\s*(?P<total>\d{1,3}(?:,\d{3})+|\d+)(?![\w.]|:\d)")
_CUT = re.compile(
    r".*(?:[|,;<>\t]|[)}]\s|[\"'\[{](?=[A-Za-z])|\((?=[A-Za-z])(?![\w/]{1,20}\)[\"\']?\s*[:=\[]*\s*$)|\s-{1,3}\s|\s{2,}|(?<=[a-z\d])[:=](?=\s*[A-Za-z]))",
    re.DOTALL,
)
"""Text before the label of a number, up to the last delimiter."""
EVALUATES = re.compile(
    r"(?<![\w/.-])(?:eval(?:uat\w+)?|val(?:id(?:at\w+)?)?|test(?:ing)?|dev)(?![\w/.-])", re.IGNORECASE
)
_MAY_EVALUATE = re.compile(r"val|test|dev", re.IGNORECASE)
"""Quick test: most lines have no word of evaluation."""
_NOT_MEASURED = re.compile(r"[:=]\s*(?:n/a|none|-)(?!\w)")
"""Text after a word of evaluation without a value."""
_COUNTED = re.compile(r"(?:step|iter|epoch|batch)")
"""Text after a word of evaluation if the whole line is an evaluation's: "valid step:10 loss: …"."""


class Pair(NamedTuple):
    label: str
    unit: str
    value: str
    after: str
    """Unit after the value."""
    total: str | None
    sep: str
    evaluates: bool
    """Whether the text before the pair is about an evaluation."""


def pairs_of(text: str, most: int = MOST_PAIRS) -> Iterator[Pair]:
    """Yield each number with the name before it."""
    begin, evaluates = 0, False
    may_evaluate = _MAY_EVALUATE.search(text) is not None
    for number in islice(_NUMBER.finditer(text), most):
        if number.start() < begin:
            continue
        before = text[begin : number.start()]
        evaluates = evaluates or (may_evaluate and _evaluates(before))
        name, unit, sep = _name(before[-LONGEST_LABEL:])
        if number["value"][-1].isalpha() and not sep and not meaning(name).field:
            continue  # "nan" as a word, as in "number of nan iterations"
        after, total, begin = _after(text, number, name)
        if name or after:
            yield Pair(name.strip("[] "), unit, number["value"], after, total, sep, evaluates)


def _after(text: str, number: re.Match[str], name: str) -> tuple[str, str | None, int]:
    """Return the unit and the total after a number with this name, and the end of both in the text."""
    unit, end = (number["unit"] or "").strip(), number.end()
    ratio = _RATIO.match(text, end)
    if _names_the_next(name, unit):
        unit, end = "", number.end("value")
    return (unit, None, end) if ratio is None else (unit, ratio["total"], ratio.end())


@functools.lru_cache(maxsize=2048)
def _name(before: str) -> tuple[str, str, str]:
    """Name, unit and separator in the text before a number. Cached, since lines of one format repeat their names."""
    label = _LABEL.search(_label_part(before))
    return ("", "", "") if label is None else (label["label"], label["unit"] or "", label["sep"][-1:])


def _names_the_next(name: str, unit: str) -> bool:
    """Whether an apparent unit is the name of the next number: "loss 1.95 tokens/s 1234"."""
    return "/" in unit and meaning(name).field in ("loss", "lr", "grad_norm", "step", "epoch")


def _label_part(before: str) -> str:
    """Part at the end of a text that can be the name of the next number."""
    plain = before.rstrip()
    ended = plain.rstrip(":= \"'[({#")
    cut = _CUT.match(ended + " " if ended.endswith("]") else ended)
    start = cut.end() if cut is not None and cut.end() <= len(ended) else 0
    if ended.endswith("]") and "[" in ended:
        start = ended.rfind("[")
    return before[start:]


def _evaluates(before: str) -> bool:
    """Whether a word of evaluation applies to the rest of the line, instead of naming one value."""
    match = EVALUATES.search(before)
    if match is None:
        return False
    rest = before[match.end() :].strip().lower()
    if _COUNTED.match(rest):
        return True
    if _NOT_MEASURED.match(rest):
        return False
    # "val loss 1.2" names only one value; the rest of the line may be the training's again.
    return not re.fullmatch(r"[a-z@\d]{1,12}\s*[:=]?", rest) or match.start() == 0
