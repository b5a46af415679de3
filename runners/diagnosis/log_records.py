"""Convert logs whose lines are records (JSON, CSV, pieces of CRI) into plain lines.

A record becomes `TIME ⟨HOST rank N⟩ text`, a form that prefixes.py reads. The lines of a message are parts of one line,
so that line numbers stay those of the file. Other lines stay unchanged.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .line_formats import RECORDS
from .log_text import PART, without_codes
from .prefixes import LEARN, writer

DEPTH = 4
"""Maximum nesting of records, such as an application's JSON in that of a container runtime."""
HELD, RECORD = 1 << 20, 4000
"""Maximum characters of a message in pieces, and maximum lines of a record."""
SHARE = 0.3
"""Minimum share of records among the first lines of a log of records."""

_DOCKER = frozenset(("log", "stream", "time", "attrs"))
"""Fields of docker's own records. docker splits long lines."""
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_SAYS_SO = re.compile(r"(?i)error|exception|fatal|critical|traceback")
_OPENS = re.compile(r"\s*\{\s*$")


class Records:
    """Converter of one log, with state across lines."""

    def __init__(self, kind: str, columns: Sequence[str] = ()) -> None:
        """`kind`: json, pretty, csv or pieces. `columns`: CSV columns from the first line."""
        self._read = {
            "json": self._json,
            "pretty": self._pretty,
            "csv": self._csv,
            "pieces": self._pieces,
        }[kind]
        self.kind, self._columns = kind, columns
        self._pending: dict[str, str] = {}
        """Beginning of an incomplete line, by writer."""
        self._lines: list[str] = []
        """Lines of an incomplete record."""
        self._indent = ""
        self._times: list[str] = []
        self._ends = False
        """Whether lines have line ends, so that a line without one is incomplete."""

    def again(self) -> Records:
        """Return a new converter for the beginning of the log."""
        return Records(self.kind, self._columns)

    def plain(self, lines: Iterable[str]) -> list[str]:
        """Return one line per input line; "" for a line that begins or continues a record."""
        return [self._read(line) for line in lines]

    def rest(self) -> list[str]:
        """Return what the log has of an incomplete record at its end."""
        rest = [*self._pending.values(), *self._lines]
        self._pending, self._lines = {}, []
        return rest

    @property
    def newest_first(self) -> bool:
        """Whether the newest lines are first, as in the output of `gcloud logging read`."""
        return len(set(self._times)) > 2 and self._times == sorted(self._times, reverse=True)

    def _json(self, line: str) -> str:
        at = line.find("{")
        if at < 0 or not line.rstrip().endswith("}"):
            return line
        before = line[:at]
        if before and writer(f"{before}x", None).text != "x":
            return line
        value = _decoded(line[at:])
        if value is None:
            return line
        piece = value.get("log")
        if isinstance(piece, str) and value.keys() <= _DOCKER:
            writer_key, is_whole = f"{before}{value.get('stream')}", piece.endswith("\n")
            self._ends = self._ends or is_whole
            if self._ends and not is_whole:
                return self._piece(writer_key, piece)
            value["log"] = self._pending.pop(writer_key, "") + piece
        return self._plain(value, before, line)

    def _plain(self, value: Mapping[str, Any], before: str, line: str) -> str:
        text = message_of(value)
        if text is None:
            return line
        if before:
            head = before
        else:
            at = time_of(value)
            if len(self._times) < 64 and at:
                self._times.append(at)
            head = f"{at}Z " if at else ""
        head += writer_of(value)
        text = without_codes(text.rstrip("\n").replace("\r\n", "\n"))
        return PART.join(head + each for each in text.replace("\r", "\n").split("\n"))

    def _piece(self, key: str, text: str) -> str:
        held = self._pending.get(key, "")
        if len(held) < HELD and len(self._pending) < LEARN:
            self._pending[key] = held + text
        return ""

    def _pieces(self, line: str) -> str:
        """Join the pieces of long CRI lines. All pieces but the last are marked P."""
        at = line.find(" std", 0, 60)
        mark = line[at + 7 : at + 10] if at > 0 else ""
        if mark not in (" P ", " F "):
            return line
        stream, text = line[at + 1 : at + 7], line[at + 10 :]
        if mark == " P ":
            return self._piece(stream, text)
        return f"{line[: at + 10]}{self._pending.pop(stream, '')}{text}" if self._pending else line

    def _pretty(self, line: str) -> str:
        """Read a document of many lines. A line with only a brace begins a record."""
        if _OPENS.match(line):
            self._lines, self._indent = [line], line[: line.index("{")]
            return ""
        if not self._lines:
            return ""
        self._lines.append(line)
        if not line.startswith(f"{self._indent}}}") or len(self._lines) > RECORD:
            return ""
        value = _decoded("\n".join(self._lines).rstrip().rstrip(","))
        self._lines = []
        return "" if value is None else self._plain(value, "", "")

    def _csv(self, line: str) -> str:
        self._lines.append(line)
        text = "\n".join(self._lines)
        if text.count('"') % 2 and len(self._lines) < RECORD:
            return ""
        self._lines = []
        try:
            values = next(csv.reader(io.StringIO(text, newline="")), [])
        except csv.Error:
            return line
        return self._plain(dict(zip(self._columns, values, strict=False)), "", line) if values else ""


def learned_records(lines: Sequence[str]) -> Records | None:
    """Return a converter for the record format of the first lines; None for plain lines."""
    some = [line for line in lines[:LEARN] if line.strip()]
    if not some:
        return None
    columns = _columns(some[0])
    if columns and some[1:]:
        return Records("csv", columns)
    for kind, is_kind in _KINDS.items():
        if is_kind(some):
            return Records(kind)
    return None


def _is_json(some: Sequence[str]) -> bool:
    return _fits("json", [line for line in some if "{" in line][:100], SHARE * len(some))


def _is_pretty(some: Sequence[str]) -> bool:
    return some[0].strip() in ("[", "{") and _fits("pretty", some, 1)


def _is_pieces(some: Sequence[str]) -> bool:
    return any(" P " in line[:60] and " std" in line[:60] for line in some)


_KINDS = {"json": _is_json, "pretty": _is_pretty, "pieces": _is_pieces}
"""Record formats and their tests, in this order."""


def _fits(kind: str, lines: Sequence[str], least: float) -> bool:
    records, read = Records(kind), 0
    for before in lines:
        after = records.plain([before])[0]
        read += after != before and (bool(after) or kind == "json")
    return read >= max(1, min(least, len(lines) or 1)) and bool(lines)


_MESSAGE_COLUMNS = frozenset(("message", "@message", "textPayload", "_raw", "Line", "line"))


def _columns(line: str) -> list[str]:
    """Return the columns of a CSV file whose first line names them."""
    if "," not in line or PART in line or len(line) > 400:
        return []
    names = [name.strip() for name in next(csv.reader([line]), [])]
    is_header = len(names) > 1 and not _MESSAGE_COLUMNS.isdisjoint(names)
    return names if is_header else []


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def message_of(value: Mapping[str, Any], depth: int = 0) -> str | None:
    """Return a record's message, with a traceback from another field; None without a message."""
    if depth > DEPTH:
        return None
    stack = value.get("extraInfo")
    if isinstance(stack, dict) and isinstance(stack.get("py_callstack"), str):  # torchelastic's error.json
        return str(stack["py_callstack"])
    text = next((text for key in RECORDS["message"] if (text := _text(value.get(key))) is not None), None)
    if text is None:
        return _inner_message(value, depth)
    text = _unwrapped(text, depth)
    if _is_error(value) and not _SAYS_SO.search(text):
        text = f"ERROR: {text}"
    return "\n".join([text, *_traces(value)])


def _inner_message(value: Mapping[str, Any], depth: int) -> str | None:
    for key in RECORDS["within"]:
        inner = value.get(key)
        if isinstance(inner, dict) and (text := message_of(inner, depth + 1)) is not None:
            return text
    return None


def _traces(value: Mapping[str, Any]) -> list[str]:
    texts = [value.get(key) for key in RECORDS["trace"]]
    return [text for text in texts if isinstance(text, str) and "\n" in text]


def _unwrapped(text: str, depth: int) -> str:
    """Return the message of a JSON record that is the text of another record; else the text."""
    carried = _decoded(text.strip()) if text.startswith("{") else None
    return text if carried is None else message_of(carried, depth + 1) or text


def _is_error(value: Mapping[str, Any]) -> bool:
    """Whether the first level that the record has is an error."""
    levels = (value[key] for key in RECORDS["level"] if value.get(key) is not None)
    return str(next(levels, "")).upper() in RECORDS["bad"]


def _text(value: Any) -> str | None:
    """Return a text field. journald writes bytes as a list of numbers."""
    if (
        value
        and isinstance(value, list)
        and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value)
    ):
        return bytes(value).decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def time_of(value: Mapping[str, Any], depth: int = 0) -> str:
    """Return the time of a record, "2026-03-01T12:00:07.123" in UTC; "" without one."""
    for key in RECORDS["time"]:
        at = value.get(key)
        if isinstance(at, str) and (match := _ISO.match(at)) is not None:
            return match[0].replace(" ", "T").replace(",", ".")
        seconds = _unix_time(at)
        if seconds is not None:
            return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f"{seconds % 1:.6f}"[1:]
    inner = value.get("_source") or value.get("jsonPayload") or value.get("result")
    return time_of(inner, depth + 1) if isinstance(inner, dict) and depth < DEPTH else ""


def _unix_time(at: Any) -> float | None:
    """Return a number in seconds, ms, µs or ns as unix time in seconds; None if it is no time."""
    if isinstance(at, str) and at.isdecimal():
        at = int(at[:20])
    if not (isinstance(at, float | int) and at > 1e8):
        return None
    seconds = float(at)
    while seconds > 1e11:
        seconds /= 1000
    return seconds


def writer_of(value: Mapping[str, Any]) -> str:
    """Return host and rank of a record in the form that prefixes.py reads; "" if it names neither."""
    host = _named(value, RECORDS["host"])
    for key in RECORDS["around"]:
        inner = value.get(key)
        if not host and isinstance(inner, dict):
            host = _named(inner, [*RECORDS["host"], "name"] if key == "host" else RECORDS["host"])
    host = re.sub(r"[\s⟨⟩]+", "_", host)[:200]
    ranks = [number for key in RECORDS["rank"] if (number := _number(value.get(key))) is not None]
    if ranks:
        return f"⟨{f'{host} rank {ranks[0]}'.strip()}⟩ "
    local = _number(value.get("local_rank"))
    return (f"⟨{host}⟩ " if host else "") + ("" if local is None else f"[default{local}]:")


def _named(value: Mapping[str, Any], keys: Sequence[str]) -> str:
    for key in keys:
        name = value.get(key)
        if isinstance(name, str) and name:
            return name
    labels = value.get("labels")
    return _named(labels, keys) if isinstance(labels, dict) and "labels" not in labels else ""


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:9])
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 20 else None
    )
