"""What makes a reader stop, as far as a machine sees it: packed expressions, and sentences that need translating.

A mark does not prove that a sentence is bad, nor its absence that it is good: read the text once more.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

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


def test_no_conditional_expression_holds_another() -> None:
    """Write `if` statements, or look the value up in a table."""
    assert [
        f"{name(path)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.IfExp)
        and any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse, node.test))
    ] == []


def test_nothing_is_multiplied_by_a_truth_value() -> None:
    """Write `text if condition else ""`, or an `if` statement."""
    assert [
        f"{name(path)}:{line}" for path in modules() for line in _products_with_bool(parsed(path))
    ] == []


def _products_with_bool(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            continue
        if _is_truth_value(node.left) or _is_truth_value(node.right):
            yield node.lineno


def _is_truth_value(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    return isinstance(node, ast.Compare)


def test_sentences_need_no_translation() -> None:
    found = []
    for path in modules():
        for line, text in _texts(path):
            found += [
                f"{name(path)}:{line}: {mark}: {better}: {text[:120]!r}"
                for mark, (pattern, better) in MARKS.items()
                if re.search(pattern, re.sub(r"`[^`]+`", "", text))
            ]
    assert found == []


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, also below attributes, and of each comment."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Expr):
            continue
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield node.lineno, re.sub(r"\s+", " ", value.value).strip()
    with io.StringIO(path.read_text(encoding="utf-8")) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.COMMENT and not re.match(
                r"#\s*(noqa|type:|fmt:|mypy:)", token.string
            ):
                yield token.start[0], token.string.lstrip("# ").strip()
