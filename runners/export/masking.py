"""Secrets taken out of what leaves this machine: by the names of their variables, by value, by their looks. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...presets.secrets import MASK, WORDS, is_secret

SHORTEST = 6
"""Characters of a value that is looked for everywhere: a shorter one would be found in innocent words."""

_WORD = "|".join(WORDS)
_QUOTE = r"\\*['\"]"
_VALUE = rb"[^\s'\"\\,;&<>]+"
_NAMED = re.compile(
    rf"\b([A-Z0-9_]{{0,64}}(?:{_WORD})[A-Z0-9_]{{0,64}})((?:{_QUOTE})?[ \t]*[=:][ \t]*(?:{_QUOTE})?)".encode()
    + b"("
    + _VALUE
    + b")"
)
"""`HF_TOKEN=x`, `"HF_TOKEN": "x"`, `HF_TOKEN: x`."""
_OPTION = re.compile(
    rb"(--(?:[a-z0-9]+[-_])*(?:token|password|passwd|secret|credentials?|(?:api|access|secret)[-_]?key)"
    rb"(?:[ =]|\\*['\"],\s*\\*['\"]))(" + _VALUE + b")"
)
"""`--hf-token x`, also as two words of a list."""
_IN_URL = re.compile(rb"(://)[^/\s:@'\"]{1,256}:[^/\s@'\"]{1,256}@")
_LOOKS = re.compile(
    rb"\b(?:hf_|gh[pousr]_|github_pat_|sk-|glpat-|xox[abprs]-)[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]+"
)
"""Tokens that are known by how they begin, and private keys."""
_NUMBER = re.compile(r"-?[\d.]{1,7}")


class Masker:
    """Masks texts and JSON values; `count` says how often something was."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets`: values that are masked wherever they stand."""
        self.count = 0
        forms = {form for value in secrets if _tells(value) for form in _forms(value)}
        ordered = sorted((form.encode() for form in forms), key=len, reverse=True)
        self._values = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None

    def text(self, data: bytes) -> bytes:
        """A text of any kind."""
        if self._values is not None:
            data = self._counted(self._values, MASK.encode(), data)
        data = self._counted(_LOOKS, MASK.encode(), data)
        data = self._counted(_IN_URL, rb"\1" + MASK.encode() + b"@", data)
        data = self._counted(_OPTION, rb"\1" + MASK.encode(), data)
        return _NAMED.sub(self._named, data)

    def _counted(self, pattern: re.Pattern[bytes], by: bytes, data: bytes) -> bytes:
        data, number = pattern.subn(by, data)
        self.count += number
        return data

    def _named(self, found: re.Match[bytes]) -> bytes:
        name, value = found[1].decode(), found[3].decode("utf-8", "replace")
        if not is_secret(name) or value == MASK or _harmless(value):
            return found[0]
        self.count += 1
        return found[1] + found[2] + MASK.encode()

    def value(self, value: Any) -> Any:
        """A JSON value: texts in it, and whole texts whose name is that of a variable that holds a secret."""
        if isinstance(value, str):
            return self.text(value.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {key: self._member(key, one) for key, one in value.items()}
        return value

    def _member(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and value and key.isupper() and is_secret(key) and not _harmless(value):
            self.count += value != MASK
            return MASK
        return self.value(value)

    def document(self, data: bytes) -> bytes:
        """A JSON document; as text where it is none."""
        try:
            return json.dumps(self.value(json.loads(data)), indent=1).encode()
        except ValueError:
            return self.text(data)

    def lines(self, data: bytes) -> bytes:
        """JSON, one object a line; what is none is left out, as a reader of the journal would."""
        return b"".join(self._line(line) for line in data.splitlines())

    def _line(self, line: bytes) -> bytes:
        try:
            return json.dumps(self.value(json.loads(line)), separators=(",", ":")).encode() + b"\n"
        except ValueError:
            return b""


def _harmless(value: str) -> bool:
    return value.lower() in ("none", "null", "true", "false") or _NUMBER.fullmatch(value) is not None


def _tells(value: str) -> bool:
    return len(value) >= SHORTEST and not _harmless(value)


def _forms(value: str) -> set[str]:
    """The value as it stands in a text and in JSON."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


def secrets_in(env: Mapping[str, str]) -> set[str]:
    """Values of the variables that hold secrets."""
    return {value for name, value in env.items() if is_secret(name) and _tells(value)}
