"""What a tool answers: the JSON of a verb, cleaned, masked, and cut to what a reader of few words can take. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from ...presets.plurals import plural
from ...presets.sanitize import as_message, clean_text, clean_whole
from ...presets.secrets import Masker

MOST_CHARACTERS = 40_000
"""Of the JSON of one answer, about 10,000 words of a language model."""
MOST_OF_A_SENTENCE = 2000
"""Characters."""
MOST_CUTS = 20
"""Cut places that an answer names."""
SHRINKS = ((500, 4000), (100, 2000), (50, 2000), (20, 1000), (8, 500), (4, 200), (2, 100))
"""Most items of a list and most characters of a text, tried one after the other until an answer is short enough."""


class Refused(ToolError):
    """A call that is answered by a sentence; `code`: the exit code of its verb."""

    def __init__(self, sentence: str, code: int | None = 2) -> None:
        super().__init__(clean_text(as_message(sentence), MOST_OF_A_SENTENCE))
        self.code = code


@dataclass(frozen=True)
class Excerpt:
    """A value that may have been cut."""

    value: Any
    cut: tuple[dict[str, Any], ...] = ()
    """`at` (JSON pointer), `of` (items, or characters) and `shown` of each place that was cut."""


def safe(value: Any, masker: Masker) -> Any:
    """A value as it may leave this machine: without secrets, and without what acts on a terminal or hides in a text.

    Fields that hold secrets were masked by the verb, by their names; here it is texts that scripts wrote. Numbers that
    JSON lacks become null.
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
    """Characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


def selected(document: Any, at: str) -> Any:
    """What stands at a JSON pointer, as in /ranks/0. Raises Refused."""
    value = document
    for word in pointer(at):
        try:
            value = value[_place(word)] if isinstance(value, list) else value[word]
        except (KeyError, IndexError, ValueError, TypeError):
            inside = ", ".join(map(str, list(value)[:30])) if isinstance(value, Mapping) else ""
            held = f"there are {inside}" if inside else _held(value)
            raise Refused(f"at {at!r}: there is no {word!r}, {held}") from None
    return value


def _place(word: str) -> int:
    """The number of an item. Raises ValueError."""
    if not (word.isascii() and word.isdecimal()):
        raise ValueError(word)
    return int(word)


def _held(value: Any) -> str:
    return (
        f"the list has {plural(len(value), 'item')}" if isinstance(value, list) else "nothing is below it"
    )


def pointer(at: str) -> list[str]:
    """The words of a JSON pointer (RFC 6901). Raises Refused."""
    if not at:
        return []
    if not at.startswith("/"):
        raise Refused(f"at {at!r} is no JSON pointer: write one as in /ranks/0")
    return [word.replace("~1", "/").replace("~0", "~") for word in at[1:].split("/")]


def _below(at: str, word: object) -> str:
    return f"{at}/{str(word).replace('~', '~0').replace('/', '~1')}"


def page(document: Any, at: str = "", offset: int = 0, most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """The part of a document at a place, from an item on: `data`, and `cut` and `next` where more is there.

    Raises Refused.
    """
    value = selected(document, at)
    if not isinstance(value, str | list | Mapping):
        return _answer(Excerpt(value))
    if offset > len(value):
        raise Refused(
            f"{at or 'the answer'} has {plural(len(value), 'item')}: offset {offset} is behind them"
        )
    if isinstance(value, str):
        return _answer(Excerpt(value[offset : offset + most]), at, offset + most, len(value))
    if isinstance(value, Mapping) and not offset:
        whole = _shrunk(value, most, at)
        if whole.value != "…":
            return _answer(whole)
    taken = _taken(value, at, offset, most)
    names = list(value) if isinstance(value, Mapping) else []
    shown: Any = [piece.value for piece in taken]
    if isinstance(value, Mapping):
        shown = dict(zip(names[offset:], shown, strict=False))
    cuts = tuple(cut for piece in taken for cut in piece.cut)
    return _answer(Excerpt(shown, cuts), at, offset + len(taken), len(value))


def _taken(value: Any, at: str, offset: int, most: int) -> list[Excerpt]:
    """Items from the offset on, as many as are short enough together, and one at least."""
    items: Sequence[tuple[object, Any]] = list(
        enumerate(value) if isinstance(value, list) else value.items()
    )
    pieces: list[Excerpt] = []
    left = most
    for name, item in items[offset:]:
        piece = _shrunk(item, most // 4, _below(at, name))
        left -= size(piece.value) + len(str(name)) + 4
        if left < 0 and pieces:
            break
        pieces.append(piece)
    return pieces


def _answer(piece: Excerpt, at: str = "", following: int = 0, of: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = {"data": piece.value}
    if piece.cut:
        answer["cut"] = list(piece.cut[:MOST_CUTS])
        answer["cut_places"] = len(piece.cut)
    if following < of:
        answer["next"] = {"at": at, "offset": following, "of": of}
    return answer


def _shrunk(value: Any, most: int, at: str) -> Excerpt:
    """The value with its long lists and texts cut, the least that makes it short enough."""
    if size(value) <= most:
        return Excerpt(value)
    for items, characters in SHRINKS:
        cuts: list[dict[str, Any]] = []
        short = _cut(value, at, items, characters, cuts)
        if size(short) <= most:
            return Excerpt(short, tuple(cuts))
    cut = {"at": at, "of": len(value), "shown": 0}
    return Excerpt("…", (cut,))


def _cut(value: Any, at: str, items: int, characters: int, cuts: list[dict[str, Any]]) -> Any:
    """Each list, object and text in it with that much at most; what was cut is added to `cuts`."""
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
    """The JSON of each line; what is none is passed over."""
    for line in data.split(b"\n"):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def fitting(lines: Sequence[Any], newest: bool, most: int = MOST_CHARACTERS) -> list[Any]:
    """As many of the lines as are short enough together: the last ones, or the first; each is cut by itself."""
    kept: list[Any] = []
    left = most
    for line in reversed(lines) if newest else lines:
        short = _shrunk(line, most // 4, "").value
        left -= size(short) + 2
        if left < 0 and kept:
            break
        kept.append(short)
    return kept[::-1] if newest else kept


def window(lines: Sequence[Any], skip: int, more: bool, newest: bool) -> dict[str, Any]:
    """Lines as an answer: `next_skip` says how many to pass over for those that follow; null where there are none.

    `lines` are behind those that were passed over already, the oldest first; `more`: further ones follow them.
    """
    shown = fitting(lines, newest)
    follows = more or len(shown) < len(lines)
    return {"lines": shown, "shown": len(shown), "next_skip": skip + len(shown) if follows else None}
