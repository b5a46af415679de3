"""A tool's answer: a verb's JSON, sanitized, masked, and cut to a size for language models.

No function here reads files or has other side effects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from ...presets.masker import Masker
from ...presets.plurals import plural
from ...presets.sanitize import as_message, clean_text, clean_whole

MOST_CHARACTERS = 40_000
"""Maximum characters of an answer's JSON, about 10,000 tokens of a language model."""
MOST_OF_A_SENTENCE = 2000
"""Maximum characters of an error."""
MOST_CUTS = 20
"""Maximum number of listed cuts per answer."""
MOST_NAMES = 30
"""Maximum number of names in a message about an unknown name."""
SHRINKS = ((500, 4000), (100, 2000), (50, 2000), (20, 1000), (8, 500), (4, 200), (2, 100))
"""Maximum items of a list and characters of a text, tried in order until an answer is short enough."""


class Refused(ToolError):
    """A refused call, answered by a sentence; `code` is the exit code of its verb."""

    def __init__(self, sentence: str, code: int | None = 2) -> None:
        super().__init__(clean_text(as_message(sentence), MOST_OF_A_SENTENCE))
        self.code = code


@dataclass(frozen=True)
class Excerpt:
    """A value that may have been cut."""

    value: Any
    cut: tuple[dict[str, Any], ...] = ()
    """`at` (JSON pointer), `of` (items, or characters) and `shown` of each cut."""


def safe(value: Any, masker: Masker) -> Any:
    """Return a value that may leave this machine: without secrets, control characters and hidden characters.

    The verb has already masked fields by their names; this masks texts that scripts wrote. Numbers that JSON cannot
    represent become null.
    """
    if isinstance(value, str):
        return clean_whole(masker.value(value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [safe(item, masker) for item in value]
    if isinstance(value, Mapping):
        return {safe(str(key), masker): safe(item, masker) for key, item in value.items()}
    return value


def size(value: Any) -> int:
    """Return the length of a value as JSON, in characters."""
    return len(json.dumps(value, ensure_ascii=False))


def selected(document: Any, at: str) -> Any:
    """Return the value at a JSON pointer, as in /ranks/0. Raises Refused."""
    value = document
    for word in pointer(at):
        try:
            value = value[_place(word)] if isinstance(value, list) else value[word]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Refused(f"at {at!r}: no {word!r} here; {_choices(value)}") from None
    return value


def _place(word: str) -> int:
    """Return the index of an item. Raises ValueError."""
    if not (word.isascii() and word.isdecimal()):
        raise ValueError(word)
    return int(word)


def _choices(value: Any) -> str:
    """Return the names or the number of items inside a value, for a message."""
    if isinstance(value, list):
        return f"the list has {plural(len(value), 'item')}"
    if isinstance(value, Mapping) and value:
        return f"the names are {', '.join(map(str, list(value)[:MOST_NAMES]))}"
    return "nothing is below it"


def pointer(at: str) -> list[str]:
    """Split a JSON pointer (RFC 6901) into its words. Raises Refused."""
    if not at:
        return []
    if not at.startswith("/"):
        raise Refused(f"at {at!r} is not a JSON pointer: write one as in /ranks/0")
    return [word.replace("~1", "/").replace("~0", "~") for word in at[1:].split("/")]


def _below(at: str, word: object) -> str:
    return f"{at}/{str(word).replace('~', '~0').replace('/', '~1')}"


def page(document: Any, at: str = "", offset: int = 0, most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """Return a page of the value at a JSON pointer, from item or character `offset` on. Raises Refused.

    `data` has the page; `cut` lists the shortened values inside it; `next` has pointer and offset of the next page.
    """
    value = selected(document, at)
    if not isinstance(value, str | list | Mapping):
        return _answer(Excerpt(value))
    if offset > len(value):
        counted = plural(len(value), "character" if isinstance(value, str) else "item")
        raise Refused(f"{at or 'the answer'} has {counted}: offset {offset} is past the end")
    if isinstance(value, str):
        return _answer(Excerpt(value[offset : offset + most]), at, offset + most, len(value))
    if isinstance(value, Mapping) and not offset:
        whole = _shrunk(value, most, at)
        if whole is not None:
            return _answer(whole)
    pieces = _taken(value, at, offset, most)
    shown: Any = {name: piece.value for name, piece in pieces.items()}
    if isinstance(value, list):
        shown = list(shown.values())
    cuts = tuple(cut for piece in pieces.values() for cut in piece.cut)
    return _answer(Excerpt(shown, cuts), at, offset + len(pieces), len(value))


def _taken(value: Any, at: str, offset: int, most: int) -> dict[Any, Excerpt]:
    """Return items from the offset on, by name or place: as many as fit together, at least one."""
    items = list(enumerate(value) if isinstance(value, list) else value.items())
    pieces: dict[Any, Excerpt] = {}
    left = most
    for name, item in items[offset:]:
        below = _below(at, name)
        piece = _shrunk(item, most // 4, below) or _left_out(item, below)
        left -= size(piece.value) + len(str(name)) + 4
        if left < 0 and pieces:
            break
        pieces[name] = piece
    return pieces


def _answer(piece: Excerpt, at: str = "", following: int = 0, of: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = {"data": piece.value}
    if piece.cut:
        answer["cut"] = list(piece.cut[:MOST_CUTS])
        answer["cut_places"] = len(piece.cut)
    if following < of:
        answer["next"] = {"at": at, "offset": following, "of": of}
    return answer


def _shrunk(value: Any, most: int, at: str) -> Excerpt | None:
    """Return the value with the first of SHRINKS that makes it short enough, or None if none does."""
    if size(value) <= most:
        return Excerpt(value)
    for items, characters in SHRINKS:
        cuts: list[dict[str, Any]] = []
        short = _cut(value, at, items, characters, cuts)
        if size(short) <= most:
            return Excerpt(short, tuple(cuts))
    return None


def _left_out(value: Any, at: str) -> Excerpt:
    """Return the mark of a value that is shown with none of its items."""
    return Excerpt("…", ({"at": at, "of": len(value), "shown": 0},))


def _cut(value: Any, at: str, items: int, characters: int, cuts: list[dict[str, Any]]) -> Any:
    """Limit each list, object and text inside; add every cut to `cuts`."""
    if isinstance(value, str) and len(value) > characters:
        cuts.append({"at": at, "of": len(value), "shown": characters})
        return f"{value[:characters]}…"
    if isinstance(value, list | Mapping):
        if len(value) > items:
            cuts.append({"at": at, "of": len(value), "shown": items})
        if isinstance(value, list):
            return [
                _cut(item, _below(at, place), items, characters, cuts)
                for place, item in enumerate(value[:items])
            ]
        return {
            name: _cut(item, _below(at, name), items, characters, cuts)
            for name, item in list(value.items())[:items]
        }
    return value


# --- lines: logs and journals ------------------------------------------------------------------------------------


def parsed_lines(data: bytes) -> Iterator[Any]:
    """Yield the JSON of each line; other lines are skipped."""
    for line in data.split(b"\n"):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def fitting(lines: Sequence[Any], newest: bool, most: int = MOST_CHARACTERS) -> list[Any]:
    """Return the last or first lines that fit together; each line is also cut separately."""
    kept: list[Any] = []
    left = most
    for line in reversed(lines) if newest else lines:
        short = (_shrunk(line, most // 4, "") or _left_out(line, "")).value
        left -= size(short) + 2
        if left < 0 and kept:
            break
        kept.append(short)
    return kept[::-1] if newest else kept


def window(lines: Sequence[Any], skip: int, more: bool, newest: bool) -> dict[str, Any]:
    """Return lines as an answer; `next_skip` is the number to skip for the next lines, null if there are none.

    `lines` are in order of time. With `newest`, `skip` counts from the end of the log, and the answer has the last of
    `lines`; otherwise `skip` counts from the beginning. `more`: there are further lines in that direction.
    """
    shown = fitting(lines, newest)
    follows = more or len(shown) < len(lines)
    return {"lines": shown, "shown": len(shown), "next_skip": skip + len(shown) if follows else None}
