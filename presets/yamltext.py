"""Values as YAML text, enough of YAML 1.1 for a SkyPilot task: mappings, lists, numbers, texts.

A text is written bare only where no reader of YAML could take it for anything else; texts of several lines as
literal blocks, everything else in double quotes, as JSON writes it (which YAML contains).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
