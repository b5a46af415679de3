"""Read JSON, YAML and TOML within limits, as trees with line numbers, and write YAML and TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .finding import PresetError

MOST_BYTES = 1 << 20
"""Larger files are refused. No file that lint knows is larger."""
MOST_NODES = 50_000
"""Most values per document. Each use of a YAML alias counts all values in it."""
MOST_DEPTH = 60
MOST_DOCUMENTS = 100
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


def whole(value: object) -> int | None:
    """Return a whole number, also from a text of fewer than ten digits, or None for any other value."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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
        return None if at is None else whole(at.value)

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


def place_of(file: str, tree: MarkupNode, *path: str) -> str:
    """Return the place of the member at a path."""
    return place(file, tree.get(*path), ".".join(path))


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


MOST_DIGITS = 400
"""Longest number in YAML. A longer scalar is a text: 1:1:1… makes a number as long as the file."""
_CORE = "tag:yaml.org,2002:"
"""Expansion of `!!` in YAML."""


def read_yaml(text: str) -> list[MarkupNode]:
    """Parse the documents of a YAML text. Raises Unreadable, and PresetError if PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        raise PresetError("reading YAML needs PyYAML: pip install 'pyyaml>=6,<7'") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader), yaml.SafeLoader.yaml_constructors)
        return _YamlReader(yaml, loader(text)).documents()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(line, f"is not valid YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise Unreadable(line, f"is not valid YAML: {error.problem or error.context}") from None


def _check_events(events: Iterable[Any], tags: Container[str]) -> None:
    """Raise Unreadable for another explicit tag, and for too many levels for PyYAML's recursive composer."""
    level = 0
    for event in events:
        kind, line = type(event).__name__, event.start_mark.line + 1
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            level += 1
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            level -= 1
        if level > MOST_DEPTH:
            raise _too_nested(line)
        tag = getattr(event, "tag", None)
        if tag not in (None, "!") and tag not in tags:
            raise Unreadable(line, f"has the tag {tag.replace(_CORE, '!!')}, which programs refuse to read")


def _too_nested(line: int) -> Unreadable:
    return Unreadable(line, f"holds more than {MOST_DEPTH} levels inside each other")


class _YamlReader:
    """Converts PyYAML's nodes to trees. Each use of an alias counts all values in it."""

    def __init__(self, yaml: Any, loader: Any) -> None:
        self._yaml, self._loader = yaml, loader
        self._count = 0

    def documents(self) -> list[MarkupNode]:
        made: list[MarkupNode] = []
        while self._loader.check_node():
            node = self._loader.get_node()
            if len(made) > MOST_DOCUMENTS:
                line = node.start_mark.line + 1
                raise Unreadable(line, f"holds more than {MOST_DOCUMENTS} documents in one file")
            made.append(self._tree(node, 0))
        return made

    def _tree(self, node: Any, level: int, key_line: int = 0) -> MarkupNode:
        line = node.start_mark.line + 1
        self._count += 1
        if self._count > MOST_NODES:
            what = f"holds more than {MOST_NODES:,} values, counting what its aliases stand for"
            raise Unreadable(line, what)
        if level > MOST_DEPTH:  # an alias inside its own value
            raise _too_nested(line)
        value: Any
        text_line = line
        if isinstance(node, self._yaml.MappingNode):
            value = self._mapping(node, level)
        elif isinstance(node, self._yaml.SequenceNode):
            value = [self._tree(part, level + 1) for part in node.value]
        else:
            value = self._scalar(node)
            if node.style in ("|", ">"):
                text_line += 1
        return MarkupNode(key_line or line, value, text_line)

    def _mapping(self, node: Any, level: int) -> dict[str, MarkupNode]:
        """Return the members. Those from `<<` come first, and own keys replace them."""
        own: dict[str, MarkupNode] = {}
        merged: dict[str, MarkupNode] = {}
        for key_node, value_node in node.value:
            key = self._tree(key_node, level + 1)
            value = self._tree(value_node, level + 1, key.line)
            if key.value == "<<":
                for source in value.items or [value]:
                    merged = source.mapping | merged
            else:
                own[_key(key)] = value
        return merged | own

    def _scalar(self, node: Any) -> object:
        """Return the value that PyYAML gives a scalar. Dates and similar types stay texts."""
        text: str = node.value
        if len(text) > MOST_DIGITS or node.tag.rpartition(":")[2] not in ("int", "float", "bool", "null"):
            return text
        try:
            value: object = self._loader.construct_object(node)
        except (ValueError, IndexError, self._yaml.YAMLError):  # "0b_" and `!!int ""` are no numbers
            return text
        return text if _is_large(value) else value


def _key(node: MarkupNode) -> str:
    return "?" if isinstance(node.value, dict | list) else str(node.value)


DEEPEST = 32
"""Deepest nesting of arrays and tables, and most names in a dotted key: far more than any preset has."""

_LONG_KEY = re.compile(
    r"""(?:^|[\[{,])[ \t]*+(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""", re.MULTILINE
)
"""A key of more names than DEEPEST by far. tomllib takes the square of their number."""


def read_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document. Raises Unreadable, with line 0 if the place is unknown."""
    deep = f"is nested more than {DEEPEST} deep"
    if key := _LONG_KEY.search(text):
        raise Unreadable(text.count("\n", 0, key.start()) + 1, deep)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise Unreadable(line, f"is not valid TOML ({reason})") from None
    except RecursionError:
        raise Unreadable(0, deep) from None
    except ValueError as error:  # a number of thousands of digits, an invalid date
        raise Unreadable(0, f"holds a value that cannot be read ({error})") from None
    for value, level in _values(document):
        if level > DEEPEST:
            raise Unreadable(0, deep)
        if _is_large(value):
            raise Unreadable(0, "holds a number of more than 64 bits, which TOML does not have")
    return document


def _values(document: object) -> Iterator[tuple[object, int]]:
    """Yield every value of a document with its level, without recursion."""
    pending = [(document, 0)]
    while pending:
        value, level = pending.pop()
        yield value, level
        if isinstance(value, dict):
            pending += [(part, level + 1) for part in value.values()]
        elif isinstance(value, list):
            pending += [(part, level + 1) for part in value]


def _is_large(value: object) -> bool:
    """Return True for a number of more than 64 bits. Python refuses to print more than 4300 digits."""
    return isinstance(value, int) and value.bit_length() > 64


def parse_toml(source: str | bytes, where: str) -> dict[str, Any]:
    """Parse TOML that comes from `where`. Raises PresetError."""
    try:
        return read_toml(source if isinstance(source, str) else decoded(source))
    except Unreadable as error:
        place = f"{where} line {error.line}" if error.line else where
        raise PresetError(f"{place}: {str(error).removeprefix('is ')}") from None


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
    return f"{written[:-5]}\n" if written.endswith("\n...\n") else written


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
