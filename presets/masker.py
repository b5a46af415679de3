"""Mask secrets in output that leaves this machine: by the rules of `secrets`, and by their known values."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from .sanitize import ESCAPE
from .secrets import MASK, SHORT_NUMBER, is_secret, mask_text, mask_value

SHORTEST = 6
"""Shortest value, in characters, to search for everywhere. A shorter one occurs in innocent words."""
_GAP = re.compile(rf"{ESCAPE.pattern}|[\x08\r]|\n[ \t]*|\\(?:u001[bB]|x1[bB]|033|e)\[[0-9;]*m")
"""Text that may split a printed value: colours (also as JSON and Python escape them), a redrawn line, a wrapped line."""


class Masker:
    """Masks texts and JSON values. `count` is the number of replacements."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Mask the values in `secrets` wherever they occur."""
        self.count = 0
        forms = {form for value in secrets if _tells(value) for form in _forms(value)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def _hide(self, value: str) -> str:
        self.count += 1
        return MASK

    def text(self, data: bytes) -> bytes:
        """Mask a text of any kind and encoding."""
        text = self._without_values(data.decode("utf-8", "surrogateescape"))
        return mask_text(text, self._hide).encode("utf-8", "surrogateescape")

    def _without_values(self, text: str) -> str:
        if self._values is None:
            return text
        text, number = self._values.subn(MASK, text)
        self.count += number
        return self._without_split_values(text, self._values)

    def _without_split_values(self, text: str, values: re.Pattern[str]) -> str:
        """Mask the values with gaps inside. The gaps stay, so that colours end and line numbers do not change."""
        found = list(values.finditer(_GAP.sub("", text)))
        if not found:
            return text
        gaps = [(match.start(), match[0]) for match in _GAP.finditer(text)]
        lengths = [0, *accumulate(len(gap) for _, gap in gaps)]
        places = [start - lengths[number] for number, (start, _) in enumerate(gaps)]
        shown, at = [], 0
        for match in found:
            first, last = bisect_right(places, match.start()), bisect_right(places, match.end() - 1)
            shown += [text[at : match.start() + lengths[first]], MASK]
            shown += [gap for _, gap in gaps[first:last]]
            at = match.end() + lengths[last]
        self.count += len(found)
        return "".join([*shown, text[at:]])

    def value(self, value: Any) -> Any:
        """Mask a JSON value: its texts, command lines in lists, and texts under names of secrets."""
        return mask_value(self._plain(value), self._hide)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._without_values(value)
        if isinstance(value, (list, tuple)):
            return [self._plain(part) for part in value]
        if isinstance(value, dict):
            return {self._plain(key): self._plain(part) for key, part in value.items()}
        return value

    def document(self, data: bytes) -> bytes:
        """Mask a JSON document, or a text if it is not JSON."""
        try:
            return json.dumps(self.value(json.loads(data)), indent=1).encode()
        except (ValueError, RecursionError):
            return self.text(data)

    def lines(self, data: bytes) -> bytes:
        """Mask JSON lines, one object per line. Other lines are left out, as a reader of the journal would."""
        return b"".join(self._line(line) for line in data.splitlines())

    def _line(self, line: bytes) -> bytes:
        try:
            return json.dumps(self.value(json.loads(line)), separators=(",", ":")).encode() + b"\n"
        except (ValueError, RecursionError):
            return b""


def _tells(value: str) -> bool:
    harmless = value.lower() in ("none", "null", "true", "false") or SHORT_NUMBER.fullmatch(value)
    return len(value) >= SHORTEST and not harmless


def _forms(value: str) -> set[str]:
    """Return the forms of a value: plain, as JSON, unwrapped, and with bytes that are not UTF-8 replaced."""
    kept = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    forms = {kept, value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return forms | {seen for form in forms if len(seen := _GAP.sub("", form)) >= SHORTEST}


def secrets_in(env: Mapping[str, str]) -> set[str]:
    """Return the values of the variables that hold secrets, and the passwords in URLs."""
    values = {value for name, value in env.items() if is_secret(name) and _tells(value)}
    parts: set[str] = set()

    def noted(value: str) -> str:
        parts.add(value)
        return MASK

    for value in env.values():
        mask_text(value, noted)
    return values | {part for whole in parts for part in (whole, whole.partition(":")[2]) if _tells(part)}
