"""What each field of a preset is for: the docstring that stands under it in model.py."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import get_type_hints

from .model import Preset


def help_of(path: str) -> str:
    """The text under a field ("strategy.kind"), on one line; a table ("strategy") has one, too. "" for no field.

    Variables and keys of tables that take any name ("nccl.NCCL_ALGO") get the text of their table.
    """
    found = _texts().get(path)
    return found if found is not None else _texts().get(path.partition(".")[0], "")


@functools.cache
def _texts() -> Mapping[str, str]:
    """Path of every field and table → its text. Read once: nothing else keeps these docstrings."""
    source = resources.files(__package__).joinpath("model.py").read_text("utf-8")
    classes = {
        node.name: dict(_fields(node)) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)
    }
    found: dict[str, str] = {}
    for name, hint in get_type_hints(Preset).items():
        found[name] = classes["Preset"][name]
        inner = classes.get(getattr(hint, "__name__", ""), {})
        found |= {f"{name}.{field}": text for field, text in inner.items()}
    return found


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Name and docstring of each field of a class."""
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield statement.target.id, " ".join(text.value.split())
