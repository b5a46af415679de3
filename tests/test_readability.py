"""What makes a reader stop, as far as a machine sees it: packed expressions, and sentences that need translating.

A mark does not prove that a sentence is bad, nor its absence that it is good: read the text once more.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("presets", "runners", "tui")

MARKS = {
    "a clause without a noun": (
        r"(?<!^)\b[Ww]hat (is|was|are|were|has|had|stands|comes|goes|does|did|can|cannot|holds|keeps|shows|says)\b",
        "name the thing: 'the requested ranks', not 'what was asked for'",
    ),
    "a sentence without a verb": (
        r"^(Of|By|Where|Whose|Whom|Which|As|From|Until|Between) ",
        "begin with a verb ('Return the …') or a noun of the field ('Seconds between …')",
    ),
    "'where' for 'if'": (
        r"\b(None|\"\"|0|empty|nothing|[Ff]alse|[Tt]rue|[Uu]nknown) where\b",
        "'None if the file is missing'",
    ),
    "'anew', 'of its own', 'by itself', 'meanwhile', 'for good'": (
        r"\b(anew|of (its|their) own|by itself|meanwhile|thereby|for good|all the same)\b",
        "'again', 'separate', 'automatically', 'in the meantime', or nothing",
    ),
    "'beside', 'behind'": (r"\b(beside|behind)\b", "'next to', 'after', 'in addition to'"),
    "'stands' for 'is'": (r"\b(stands?|stood)\b", "'is'"),
    "an actor without a name": (
        r"\b([Oo]ne (hears|has|can|may|must|sees|reads|wants|knows|looks)|[Nn]obody|[Ss]omebody|[Ww]hoever)\b",
        "name the actor: 'a viewer', 'the user', 'the agent'",
    ),
    "'alone' for 'only'": (r"\balone\b", "'only'"),
    "'The same' as a whole subject": (r"^The same\b", "say what it is"),
    "'is told', 'hears'": (
        r"\b((is|are|was|were|be) told|hears?|heard)\b",
        "'reports', 'receives', 'reads'",
    ),
}
"""Name of the mark → where a text has it, and what to write instead."""


def modules() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8")
    try:
        return ast.parse(text, str(path))
    except SystemError:  # see test_rooms.parsed
        return ast.parse(text, str(path))


def test_modules_are_easy_to_read() -> None:
    """Write `if` statements instead of nested conditional expressions and of products with a truth value."""
    assert [mark for path in modules() for mark in _marks(path)] == []


def _marks(path: Path) -> Iterator[str]:
    """Everything in a module that makes a reader stop; one pass, because parsing takes the most time."""
    nodes = list(ast.walk(parsed(path)))
    for node in nodes:
        if _has_inner_condition(node):
            yield f"{name(path)}:{node.lineno}: a conditional expression inside another"
        if _is_product_with_truth_value(node):
            yield f"{name(path)}:{node.lineno}: a product with a truth value"
    for line, text in (*_docstrings(nodes), *_comments(path)):
        for mark, (pattern, better) in MARKS.items():
            if re.search(pattern, re.sub(r"`[^`]+`", "", text)):
                yield f"{name(path)}:{line}: {mark}: {better}: {text[:120]!r}"


def _has_inner_condition(node: ast.AST) -> TypeGuard[ast.IfExp]:
    if not isinstance(node, ast.IfExp):
        return False
    return any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse, node.test))


def _is_product_with_truth_value(node: ast.AST) -> TypeGuard[ast.BinOp]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    return _is_truth_value(node.left) or _is_truth_value(node.right)


def _is_truth_value(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    return isinstance(node, ast.Compare)


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, also below attributes."""
    for node in nodes:
        if not isinstance(node, ast.Expr):
            continue
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield node.lineno, re.sub(r"\s+", " ", value.value).strip()


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    with io.StringIO(path.read_text(encoding="utf-8")) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.COMMENT and not re.match(
                r"#\s*(noqa|type:|fmt:|mypy:)", token.string
            ):
                yield token.start[0], token.string.lstrip("# ").strip()
