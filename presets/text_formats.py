"""A preset as text: TOML read within limits, YAML written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
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
# Values as YAML, with whole scripts as literal blocks: what a user reads before it is handed over.


_TEXT = "tag:yaml.org,2002:str"
_BREAKS = re.compile("[\\r\\x85\\u2028\\u2029]")


def dump(value: Any) -> str:
    """A document of YAML 1.1; ends with a newline. Keys stay in their order."""
    import yaml  # by those who plan for Accelerate and SkyPilot alone; agents of nodes do not have it

    class Dumper(yaml.SafeDumper):  # type: ignore[misc] # PyYAML has no types
        """Mappings and texts as a reader expects them."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        # PyYAML reads line ends of Unicode as spaces wherever it does not escape them.
        return dumper.represent_scalar(_TEXT, value, style='"' if _BREAKS.search(value) else style)

    Dumper.add_representer(str, text)
    Dumper.add_multi_representer(Mapping, lambda dumper, value: dumper.represent_dict(value.items()))
    written: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return written.removesuffix("...\n")
