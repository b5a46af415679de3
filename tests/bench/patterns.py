"""Every regular expression of the product on words of 64 KB, and on its own words: CPU time of the slowest."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from distui.runners.diagnosis.log_text import SEARCHED
from distui.runners.diagnosis.rules import book
from distui.runners.inrank.tracebacks import LONGEST

from .figures import Row, Sample, limit_row
from .options import Effort

ROOT = Path(__file__).parents[2]
SIZE = 1 << 16
GOAL_MS = 50
METHODS = frozenset(("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"))
ANCHORED = frozenset(("match", "fullmatch"))
"""They try one place of a text; all others try each."""
WORDS = (
    "A", "a", "0", "_", "\x1b[", "\x1b]", "(", "[", "{", "<", " ", ".", ":", "-", "\"", "'", "/", "=", ",", "\\", "|",
    "\n", "\r", "\t", "\x00", "%", "@", "é", "…", "⟨", "aA0", "a.", "a ", "a:", "a=", "a/", "a-", "a,0 ", "a|", "a\n",
    "a\r", "a\\", "a(", "A_", "0.", "0 ", "0:", "0/", "0x", "0% ", "[0", "[[0]", "['", "()", "{}", "\"a\" ", "' ",
    "|a", "--a", "a@b", "a://", "token=", "Error ", "Error: ", "rank 0 ", "key: value ", "File \"",
)  # fmt: skip
FILLINGS = ("A", " ", "0", "a ", "a.", "[", '"', "'", ":", "\\")
"""What may follow a word of a pattern's own."""


@dataclass
class Used:
    """A pattern, and how the product calls it."""

    name: str
    pattern: re.Pattern[Any]
    methods: set[str] = field(default_factory=set)

    @property
    def calls(self) -> set[str]:
        """The methods to measure."""
        return {"search"} if not self.methods or self.methods - ANCHORED else self.methods

    @property
    def searched(self) -> int:
        """Characters of a line, or of the text of a failure, that are searched."""
        tables = (".CAUSES.", ".ANYWHERE.", ".LED_TO.", ".OF_EXITS.")
        return LONGEST if any(table in self.name for table in tables) else SEARCHED


def patterns() -> list[Used]:
    """Those that modules hold, also in tables, those of the rules, and those that stand in calls of `re`."""
    found: dict[tuple[Any, int], Used] = {}
    shared: dict[str, set[str]] = {}
    """How other modules call the tables of line_formats.py."""
    held: list[tuple[str, Used, set[str]]] = []
    for path in sorted(
        path for room in ("presets", "runners", "tui") for path in (ROOT / room).rglob("*.py")
    ):
        text = path.read_text("utf-8")
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "examples" in parts or "site" in parts or parts[-1] == "__main__" or " re\n" not in text:
            continue
        module = ".".join(("distui", *parts)).removesuffix(".__init__")
        source = _Source(module)
        source.visit(ast.parse(text))
        for name, last, pattern in _held(vars(importlib.import_module(module)), module):
            used = found.setdefault((pattern.pattern, pattern.flags), Used(name, pattern))
            held.append((last, used, source.methods.get(last, set())))
        for last, methods in source.methods.items():
            if not last.startswith("_"):
                shared.setdefault(last, set()).update(methods)
        for used in source.written:
            found.setdefault((used.pattern.pattern, used.pattern.flags), used)
    for last, used, methods in held:
        used.methods |= methods | shared.get(last, set())
    for rule in book().rules:
        if rule.pattern is not None:
            found.setdefault((rule.pattern.pattern, 0), Used(f"rule {rule.id}", rule.pattern))
    return list(found.values())


class _Source(ast.NodeVisitor):
    """Which methods a module calls of what, by the last part of its name, and patterns written where they are used."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.methods: dict[str, set[str]] = {}
        self.written: list[Used] = []

    def visit_Attribute(self, node: ast.Attribute) -> None:
        of = node.value.value if isinstance(node.value, ast.Subscript) else node.value
        if isinstance(node.value, ast.Subscript) and isinstance(node.value.slice, ast.Constant):
            of = ast.Name(str(node.value.slice.value))  # a table's pattern is known by its key
        last = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
        if node.attr in METHODS and last:
            self.methods.setdefault(last, set()).add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        written = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if called.startswith("re.") and called[3:] in METHODS and isinstance(written, str | bytes):
            flags = re.RegexFlag(0)
            for flag in re.findall(r"re\.([A-Z]+)", ast.unparse(node)):
                flags |= re.RegexFlag[flag]
            pattern: re.Pattern[Any] = re.compile(written, flags)
            self.written.append(Used(f"{self.module}:{node.lineno}", pattern, {called[3:]}))
        self.generic_visit(node)


def _held(
    value: Any, name: str, last: str = "", depth: int = 0
) -> Iterator[tuple[str, str, re.Pattern[Any]]]:
    """The patterns in a value, with where each is and the last part of that."""
    value = getattr(value, "__self__", value) if callable(value) else value
    if isinstance(value, re.Pattern):
        yield name, last, value
    elif depth < 5:
        for key, part in _parts(value):
            named = isinstance(key, str) and key.isidentifier()
            yield from _held(part, f"{name}.{key}", key if named else last, depth + 1)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if hasattr(value, "_asdict") and not isinstance(value, type):
        return list(value._asdict().items())
    if isinstance(value, list | tuple | set | frozenset):
        return list(enumerate(value))
    if isinstance(value, msgspec.Struct) or hasattr(type(value), "__dataclass_fields__"):
        names = getattr(value, "__struct_fields__", ()) or type(value).__dataclass_fields__
        return [(each, getattr(value, each, None)) for each in names]
    return []


def slowest(used: Used, words: Sequence[str], size: int) -> tuple[float, str]:
    """Milliseconds of CPU of the slowest call, and with which word; a text grows up to `size`, unless that is slow."""
    worst = 0.0, ""
    for word in words:
        for length in (size // 64, size // 16, size // 4, size):
            text: Any = (word * (length // len(word) + 1))[:length]
            if isinstance(used.pattern.pattern, bytes):
                text = text.encode()
            took = max(_milliseconds(used, method, text) for method in used.calls)
            if took > GOAL_MS:  # or the machine was busy
                took = max(_milliseconds(used, method, text) for method in used.calls)
            worst = max(worst, (took, word))
            if took > GOAL_MS:
                break
    return worst


def _milliseconds(used: Used, method: str, text: Any) -> float:
    began = time.process_time()
    getattr(used.pattern, method)(text)
    return 1000 * (time.process_time() - began)


def own_words(pattern: re.Pattern[Any]) -> list[str]:
    """Runs of letters that stand in a pattern, each repeated and with what may follow it once."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    runs = dict.fromkeys(
        re.findall(r"[\w ':=/<>-]{2,}", re.sub(r"\\.|\?P?<?[\w=!]*>?|\[[^]]*\]", "\0", source))
    )
    return [run + end for run in runs for end in ("", " ", "a", "0", ": ")] + [
        run + filling * SEARCHED for run in runs for filling in FILLINGS
    ]


def rows(effort: Effort) -> list[Row]:
    """The slowest of all."""
    used = patterns()
    general = max((*slowest(each, WORDS, SIZE), each.name) for each in used)
    own = max((*slowest(each, own_words(each.pattern), each.searched), each.name) for each in used)
    note = "Each as the product calls it: at one place of a text, or at every place."
    return [
        _row(f"{len(used)} regular expressions on words of 64 KB: CPU of the slowest", general, note),
        _row("the same on words of their own, as much of a line as is searched", own, note),
    ]


def _row(what: str, worst: tuple[float, str, str], note: str) -> Row:
    took, word, name = worst
    return limit_row(
        what, Sample((took,), "ms", 0), GOAL_MS, f"{name}, {word[:20]!r}".replace("|", "\\|"), (note,)
    )
