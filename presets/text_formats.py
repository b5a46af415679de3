"""A preset as text: TOML read within limits, YAML written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .finding import PresetError

DEEPEST = 32
"""Arrays and tables inside each other, and names in one dotted key: far more than any preset has."""

# What can open a string, a comment or a level, and what ends a key. A quote of three is tried first.
_TOKEN = re.compile(r"\"\"\"|'''|[\"'#\[\]{}.=,\n]")
_CLOSES = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*+"{3,5}', re.DOTALL),
    "'''": re.compile(r"(?:[^']|'(?!''))*+'{3,5}"),
    '"': re.compile(r'(?:[^"\\\n]|\\[^\n])*+"'),
    "'": re.compile(r"[^'\n]*+'"),
    "#": re.compile(r"[^\n]*+"),
}


def too_deep(text: str) -> int | None:
    """The line, from 1, in which a text is nested deeper than it may be; None where it never is.

    What is no TOML is judged as far as it is TOML: there a parser stops.
    """
    at, depth, dots = 0, 0, 0
    while (match := _TOKEN.search(text, at)) is not None:
        token, at = match[0], match.end()
        closes = _CLOSES.get(token)
        if closes is not None:
            end = closes.match(text, at)
            if end is None:
                return None
            at = end.end()
            continue
        if token == ".":
            dots += 1
        else:
            dots = 0
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
        if depth > DEEPEST or dots >= DEEPEST:
            return text.count("\n", 0, at) + 1
    return None


def parse(text: str, where: str) -> dict[str, Any]:
    """The document `text`, which stands in `where`. Raises PresetError."""
    deep = too_deep(text)
    if deep is not None:
        raise PresetError(f"{where} line {deep}: nested more than {DEEPEST} deep.")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise PresetError(f"{where} line {line}: not valid TOML ({reason}).") from None
    except RecursionError:
        raise PresetError(f"{where}: nested too deep to be read.") from None
    except ValueError as error:  # a number of thousands of digits, a date of a year that is none
        raise PresetError(f"{where}: a value that cannot be read ({error}).") from None
    if _is_large(document):
        raise PresetError(f"{where}: a number of more than 64 bits, which TOML does not have.")
    return document


def _is_large(value: object) -> bool:
    """Whether a number is in it that no TOML holds; printing one of a million digits takes for ever."""
    if isinstance(value, dict):
        return any(_is_large(part) for part in value.values())
    if isinstance(value, list):
        return any(_is_large(part) for part in value)
    return isinstance(value, int) and value.bit_length() > 64


def decode(data: bytes, where: str) -> dict[str, Any]:
    """The document `data`, which must be UTF-8. Raises PresetError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PresetError(f"{where} line {line}: not UTF-8 text, which TOML must be.") from None
    return parse(text, where)


# -----------------------------------------------------------------------------------------------------------
# Values as YAML text, enough of YAML 1.1 for a SkyPilot task: mappings, lists, numbers, texts.


_BARE = re.compile(r"[A-Za-z_/~.][A-Za-z0-9_/~.+@-]*(?:[ :=+][A-Za-z0-9_/~.+@-]+)*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~", ".inf", ".nan"})


def dump(value: Any) -> str:
    """A document; ends with a newline. Keys stay in their order."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(str(key))}:", item)
    elif _is_list(value) and value:
        for item in value:
            yield from _item(item)
    else:
        yield _scalar(value)


def _entry(head: str, item: Any) -> Iterator[str]:
    if isinstance(item, str) and _is_block(item):
        yield f"{head} |{'-' if not item.endswith(chr(10)) else '+' if item.endswith(chr(10) * 2) else ''}"
        yield from (f"  {line}" if line else "" for line in item.removesuffix("\n").split("\n"))
    elif item and (isinstance(item, Mapping) or _is_list(item)):
        yield head
        yield from (f"  {line}" if line else line for line in _lines(item))
    else:
        yield f"{head} {_scalar(item)}"


def _item(item: Any) -> Iterator[str]:
    if isinstance(item, Mapping) and item:
        for number, line in enumerate(_lines(item)):
            yield f"{'- ' if number == 0 else '  '}{line}" if line else line
    else:
        yield from _entry("-", item)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_block(text: str) -> bool:
    """Whether a literal block says it exactly: printable lines, the first of which begins with a letter's column."""
    lines = text.split("\n")
    first = next((line for line in lines if line), "")
    return (
        len(lines) > 1
        and not first.startswith(" ")
        and text.replace("\n", "").replace("\t", "").isprintable()
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        bare = _BARE.fullmatch(value) and value.lower() not in _WORDS and not value.endswith(":")
        return value if bare and not re.fullmatch(r"[.\d_:+-]+(?:e[+-]?\d+)?", value) else json.dumps(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return "{}" if isinstance(value, Mapping) else "[]"
