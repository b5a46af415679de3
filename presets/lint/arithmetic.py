"""Evaluate the arithmetic of a shell text: `$((NODES * 8))` with known variables."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_EXPRESSION = re.compile(r"\$\(\(([\w\s$ {}*+/()-]{1,120}?)\)\)")
_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_LARGEST = 10**9
_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


def evaluated(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the arithmetic replaced that contains only numbers and variables with a known value."""

    def replaced(match: re.Match[str]) -> str:
        plain = _NAME.sub(lambda name: values.get(name[1], name[0]), match[1])
        try:
            return str(_value(ast.parse(plain.strip().replace("$", ""), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return match[0]

    return _EXPRESSION.sub(replaced, text) if "$((" in text else text


def _value(node: ast.AST) -> int:
    """Compute sums and products of whole numbers. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _LARGEST:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        if abs(value) < _LARGEST:
            return value
    raise ValueError
