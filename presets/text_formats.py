"""Read JSON, YAML and TOML within limits, as trees with line numbers, and write YAML and TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import PresetError

MOST_BYTES = 1 << 20
"""Larger files are refused. No file that lint knows is larger."""
MOST_NODES = 50_000
"""Most values per document. Each use of a YAML alias counts all values in it."""
MOST_DEPTH = 60
MOST_SHOWN = 200
"""Longest quoted value in a sentence, in characters."""


class Unreadable(Exception):
    """A text is not in the expected format. The text is one sentence. `line` counts from 1, and 0 means unknown."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.line = line


def decoded(data: bytes) -> str:
    """Decode the bytes of a file. Raises Unreadable."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None
    if "\0" in text:
        raise Unreadable(text.count("\n", 0, text.index("\0")) + 1, "is not text: it holds NUL bytes")
    return text


def whole(text: str) -> int | None:
    """Return the whole number that a text contains, or None for any other text and for ten or more digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True, slots=True)
class MarkupNode:
    line: int
    """Line of the key, or of the value if it has no key; 0 without a file."""
    value: Any
    """A text, number, boolean or None; a dict of texts to Nodes; a list of Nodes."""
    text_line: int = 0
    """Line of the first line of a text."""

    @property
    def shown(self) -> str:
        """Return the value as a sentence quotes it: lists and mappings without lines, long values cut."""
        text = str(bare(self))
        return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"

    @property
    def mapping(self) -> dict[str, MarkupNode]:
        """Return the members, or no members if the value is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[MarkupNode]:
        """Return the members in order, or no members if the value is no list."""
        return self.value if isinstance(self.value, list) else []

    def get(self, *path: str) -> MarkupNode | None:
        """Return the member at a path, or None if it is missing or null."""
        at: MarkupNode | None = self
        for key in path:
            at = None if at is None else at.mapping.get(key)
        return None if at is None or at.value is None else at

    def number(self, *path: str) -> int | None:
        """Return the whole number at a path, also if it is written as a text."""
        at = self.get(*path)
        value = None if at is None else at.value
        if isinstance(value, str):
            return whole(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, *path: str) -> str:
        """Return the text at a path, or "" if there is none."""
        at = self.get(*path)
        return at.value if at is not None and isinstance(at.value, str) else ""

    def on(self, *path: str) -> bool:
        """Return True if the value at a path is true, also if it is written as a text."""
        at = self.get(*path)
        return at is not None and (at.value is True or str(at.value).lower() == "true")


def plain(value: object, depth: int = 0) -> MarkupNode:
    """Convert values without lines to a tree."""
    if depth > MOST_DEPTH:
        return MarkupNode(0, None)
    if isinstance(value, Mapping):
        return MarkupNode(0, {str(key): plain(part, depth + 1) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return MarkupNode(0, [plain(part, depth + 1) for part in value])
    return MarkupNode(0, value)


def bare(node: MarkupNode) -> Any:
    """Convert a tree to values without lines."""
    if isinstance(node.value, dict):
        return {key: bare(part) for key, part in node.value.items()}
    if isinstance(node.value, list):
        return [bare(part) for part in node.value]
    return node.value


def walk(node: MarkupNode, path: str = "") -> Iterator[tuple[str, MarkupNode]]:
    """Yield every value with its dotted path."""
    yield path, node
    for key, part in node.mapping.items():
        yield from walk(part, f"{path}.{key}" if path else key)
    for at, part in enumerate(node.items):
        yield from walk(part, f"{path}[{at}]")


def place(file: str, node: MarkupNode | None, path: str = "") -> str:
    """Return the place of a finding: "file:line", or the field's path if there is no file."""
    if node is None or not node.line:
        return f"{file}.{path}" if file and path else path or file
    return f"{file}:{node.line}"


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


def read_json(text: str) -> MarkupNode:
    """Parse a JSON document. Raises Unreadable."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreadable(error.lineno, f"is not valid JSON: {error.msg} (column {error.colno})") from None
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        raise Unreadable(1, "is nested too deeply, or with numbers too long, to be read") from None
    return _JsonReader(text).value(0)


class _JsonReader:
    """Adds lines to a text that is already known to be valid JSON."""

    def __init__(self, text: str) -> None:
        self._tokens = self._scan(text)
        self._count = 0

    def _scan(self, text: str) -> Iterator[tuple[str, int]]:
        line, at = 1, 0
        for match in _JSON_TOKEN.finditer(text):
            line += text.count("\n", at, match.start())
            at = match.start()
            yield match.group(), line

    def value(self, depth: int, token: tuple[str, int] | None = None, key_line: int = 0) -> MarkupNode:
        """Read the next value. `token`: its first token, if it was already read."""
        word, line = next(self._tokens) if token is None else token
        self._count += 1
        if depth > MOST_DEPTH or self._count > MOST_NODES:
            raise Unreadable(
                line, f"holds more than {MOST_NODES:,} values, or {MOST_DEPTH} inside each other"
            )
        made: Any
        if word == "{":
            made = self._mapping(depth)
        elif word == "[":
            made = self._list(depth)
        else:
            made = json.loads(word)
        return MarkupNode(key_line or line, made, line)

    def _mapping(self, depth: int) -> dict[str, MarkupNode]:
        made: dict[str, MarkupNode] = {}
        for word, line in self._tokens:
            if word == "}":
                break
            if word != ",":
                next(self._tokens)  # the colon
                made[json.loads(word)] = self.value(depth + 1, key_line=line)
        return made

    def _list(self, depth: int) -> list[MarkupNode]:
        made: list[MarkupNode] = []
        for word, line in self._tokens:
            if word == "]":
                break
            if word != ",":
                made.append(self.value(depth + 1, (word, line)))
        return made


Event = Any
"""An event of PyYAML, recognised by the name of its class."""


@dataclass(slots=True)
class _OpenBranch:
    """A mapping or list whose end was not read yet."""

    line: int
    anchor: str | None
    is_mapping: bool
    members: dict[str, MarkupNode] = field(default_factory=dict)
    items: list[MarkupNode] = field(default_factory=list)
    merged: list[MarkupNode] = field(default_factory=list)
    """Members from `<<`, which follow the mapping's own keys."""
    key: str | None = None
    key_line: int = 0
    size: int = 1


class _Builder:
    """Builds trees from YAML events."""

    def __init__(self, scalar: Callable[[Event], object]) -> None:
        self._scalar = scalar
        self._open: list[_OpenBranch] = []
        self._anchors: dict[str, tuple[MarkupNode, int]] = {}
        self._total = 0
        self.documents: list[MarkupNode] = []

    def take(self, event: Event) -> None:
        """Add an event. Raises Unreadable."""
        kind, line = type(event).__name__, event.start_mark.line + 1
        match kind:
            case "DocumentStartEvent":
                self._anchors, count = {}, len(self.documents)
                if count > 100:
                    raise Unreadable(line, "holds more than 100 documents in one file")
            case "MappingStartEvent" | "SequenceStartEvent":
                if len(self._open) >= MOST_DEPTH:
                    raise Unreadable(line, f"holds more than {MOST_DEPTH} levels inside each other")
                self._count(1, line)
                self._open.append(_OpenBranch(line, event.anchor, kind == "MappingStartEvent"))
            case "MappingEndEvent" | "SequenceEndEvent":
                self._close()
            case "AliasEvent":
                if event.anchor not in self._anchors:
                    raise Unreadable(
                        line, f"has an alias *{event.anchor} that stands for nothing, or for itself"
                    )
                node, size = self._anchors[event.anchor]
                self._count(size, line)
                self._put(MarkupNode(line, node.value, node.text_line), size)
            case "ScalarEvent":
                self._count(1, line)
                block = event.style in ("|", ">")
                node = MarkupNode(line, self._scalar(event), line + block)
                if event.anchor:
                    self._anchors[event.anchor] = node, 1
                self._put(node, 1)

    def _close(self) -> None:
        done = self._open.pop()
        value: Any = done.items
        if done.is_mapping:
            value = {}
            for merged in done.merged:
                value |= {key: node for key, node in merged.mapping.items() if key not in value}
            value |= done.members
        node = MarkupNode(done.line, value, done.line)
        if done.anchor:
            self._anchors[done.anchor] = node, done.size
        self._put(node, done.size)

    def _count(self, size: int, line: int) -> None:
        self._total += size
        if self._total > MOST_NODES:
            raise Unreadable(
                line, f"holds more than {MOST_NODES:,} values, counting what its aliases stand for"
            )

    def _put(self, node: MarkupNode, size: int) -> None:
        """Add a complete value to the innermost open mapping or list."""
        if not self._open:
            self.documents.append(node)
            return
        into = self._open[-1]
        into.size += size
        if not into.is_mapping:
            into.items.append(node)
        elif into.key is None:
            into.key = node.value if isinstance(node.value, str) else _key(node)
            into.key_line = node.line
        else:
            if into.key == "<<":
                into.merged += node.items or [node]
            else:
                into.members[into.key] = MarkupNode(into.key_line, node.value, node.text_line)
            into.key = None


def _key(node: MarkupNode) -> str:
    return "?" if isinstance(node.value, dict | list) else str(node.value)


def _build(events: Iterable[Event], scalar: Callable[[Event], object]) -> list[MarkupNode]:
    """Return the documents of a text. `scalar` returns the value of a scalar event. Raises Unreadable."""
    builder = _Builder(scalar)
    for event in events:
        builder.take(event)
    return builder.documents


MOST_DIGITS = 400
"""Longest number in YAML. A longer scalar is a text: 1:1:1… makes a number as long as the file."""
_CORE = "tag:yaml.org,2002:"
"""Expansion of `!!` in YAML."""


def read_yaml(text: str) -> list[MarkupNode]:  # noqa: C901
    """Parse the documents of a YAML text. Raises Unreadable, and PresetError if PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        raise PresetError("reading YAML needs PyYAML: pip install 'pyyaml>=6,<7'") from None
    meaning = yaml.SafeLoader("")

    def scalar(event: Any) -> object:
        """Return the value that PyYAML gives a scalar. Dates and similar types stay texts."""
        if len(event.value) > MOST_DIGITS:
            return event.value
        tag = event.tag or meaning.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag.rpartition(":")[2] not in ("int", "float", "bool", "null"):
            return event.value
        try:
            value: object = meaning.construct_object(yaml.ScalarNode(tag, event.value))
        except (ValueError, IndexError, yaml.YAMLError):  # "0b_" and `!!int ""` are no numbers
            return event.value
        return event.value if _is_large(value) else value

    def plain_events() -> Iterator[Any]:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            tag = getattr(event, "tag", None)
            if tag not in (None, "!") and tag not in yaml.SafeLoader.yaml_constructors:
                raise Unreadable(
                    event.start_mark.line + 1,
                    f"has the tag {tag.replace(_CORE, '!!')}, which programs refuse to read",
                )
            yield event

    try:
        return _build(plain_events(), scalar)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(line, f"is not valid YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(
            mark.line + 1 if mark else 1, f"is not valid YAML: {error.problem or error.context}"
        ) from None


DEEPEST = 32
"""Deepest nesting of arrays and tables, and most names in a dotted key: far more than any preset has."""

# Tokens that open a string, a comment or a level, or end a key. Triple quotes come first.
_TOML_TOKEN = re.compile(r"\"\"\"|'''|[\"'#\[\]{}.=,\n]")
_CLOSES = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*+"{3,5}', re.DOTALL),
    "'''": re.compile(r"(?:[^']|'(?!''))*+'{3,5}"),
    '"': re.compile(r'(?:[^"\\\n]|\\[^\n])*+"'),
    "'": re.compile(r"[^'\n]*+'"),
    "#": re.compile(r"[^\n]*+"),
}


def too_deep(text: str) -> int | None:
    """Return the line, from 1, that exceeds DEEPEST, or None.

    A text that is not TOML is checked up to its first error, the place at which a parser stops.
    """
    at, depth, dots = 0, 0, 0
    while (match := _TOML_TOKEN.search(text, at)) is not None:
        token, at = match[0], match.end()
        if token in _CLOSES:
            end = _CLOSES[token].match(text, at)
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


def read_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document. Raises Unreadable, with line 0 if the place is unknown."""
    deep = too_deep(text)
    if deep is not None:
        raise Unreadable(deep, f"is nested more than {DEEPEST} deep")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise Unreadable(line, f"is not valid TOML ({reason})") from None
    except RecursionError:
        raise Unreadable(0, "is nested too deep to be read") from None
    except ValueError as error:  # a number of thousands of digits, an invalid date
        raise Unreadable(0, f"holds a value that cannot be read ({error})") from None
    if _is_large(document):
        raise Unreadable(0, "holds a number of more than 64 bits, which TOML does not have")
    return document


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML text that comes from `where`. Raises PresetError."""
    try:
        return read_toml(text)
    except Unreadable as error:
        place = f"{where} line {error.line}" if error.line else where
        raise PresetError(f"{place}: {str(error).removeprefix('is ')}") from None


def _is_large(value: object) -> bool:
    """Return True if a value contains a number of more than 64 bits. Python refuses to print more than 4300 digits."""
    if isinstance(value, dict):
        return any(_is_large(part) for part in value.values())
    if isinstance(value, list):
        return any(_is_large(part) for part in value)
    return isinstance(value, int) and value.bit_length() > 64


def decode_toml(data: bytes, where: str) -> dict[str, Any]:
    """Decode UTF-8 and parse TOML. Raises PresetError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PresetError(f"{where} line {line}: not UTF-8 text, which TOML must be") from None
    return parse_toml(text, where)


_TEXT = f"{_CORE}str"
_BREAKS = re.compile("[\\r\\x85\\u2028\\u2029]")


def write_yaml(value: Any) -> str:
    """Write a YAML 1.1 document that ends with a newline. Keys keep their order."""
    import yaml  # only plans for Accelerate and SkyPilot need it; agents of nodes lack it

    class Dumper(yaml.SafeDumper):  # type: ignore[misc] # PyYAML has no types
        """Dumps without aliases, and texts of several lines as blocks."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        # PyYAML reads Unicode line ends as spaces if they are not escaped.
        return dumper.represent_scalar(_TEXT, value, style='"' if _BREAKS.search(value) else style)

    Dumper.add_representer(str, text)
    Dumper.add_multi_representer(Mapping, lambda dumper, value: dumper.represent_dict(value.items()))
    written: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return written.removesuffix("...\n")


def toml_pair(key: str, value: object) -> str:
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", key)
    return f"{key if bare else toml_literal(key)} = {toml_literal(value)}"


def toml_literal(value: object) -> str:
    """Return a value as a TOML literal (TOML 1.0, basic strings)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{toml_escaped(value)}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(toml_pair(key, part) for key, part in value.items())}}}"
    return repr(value)


def toml_escaped(text: str) -> str:
    """Escape `text` for a basic string, including all terminal control characters. JSON's escapes are valid in TOML."""
    return "".join(map(_toml_character, json.dumps(text, ensure_ascii=False)[1:-1]))


def _toml_character(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
