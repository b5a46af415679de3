"""A model that a script defines, as advice reads it: which one, built with what, and what was counted. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from .errors import PlanError
from .memory_model import VOCABULARY, Shape, shape

_ARGS = "write NAME=VALUE,NAME=VALUE, as in layers=3,width=96"
_DEFINES = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign,
    ast.AugAssign, ast.Pass, ast.Assert, ast.Raise,
)  # fmt: skip
"""Statements with which a module defines things."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What a model built on the meta device has."""

    name: str
    """Of the class or function."""
    parameters: int
    trainable: int
    layers: int
    """Outermost members of module lists, which are what FSDP gathers one by one."""
    hidden: int | None
    vocab: int | None
    largest: int
    """Parameters of the largest tensor."""
    largest_layer: int
    embedding: int
    blocks: int
    """Parameters of all layers."""
    head: int
    """Parameters of the rest."""

    @property
    def text(self) -> str:
        """ "CharGPT: 353,792 parameters: embedding 18,432, 3 layers 335,520 (the largest 111,840), rest 12,608"."""
        layers = f"{self.layers} layers {self.blocks:,} (the largest {self.largest_layer:,})"
        frozen = self.parameters - self.trainable
        said = f"{self.name}: {self.parameters:,} parameters: embedding {self.embedding:,}, {layers}, rest {self.head:,}"
        return said + (f"; {frozen:,} are frozen, and counted as if trained" if frozen else "")


def parse_script(text: str) -> tuple[str, str | None]:
    """Path and name of "PATH[:NAME]". Raises PlanError."""
    path, colon, name = text.rpartition(":")
    if not colon or "/" in name or name.endswith(".py"):
        path, name = text, ""
    if not path or (name and not name.isidentifier()) or (colon and path != text and not name):
        raise PlanError(
            f"--script {text}: write PATH, or PATH:NAME of a class or function in it, as in train.py:Model."
        )
    return path, name or None


def parse_model_args(text: str) -> dict[str, object]:
    """The values of "layers=3,width=96,activation=gelu". Raises PlanError."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError):
        call = None
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
        raise PlanError(f"--model-args {text}: {_ARGS}.")
    found: dict[str, object] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in found:
            raise PlanError(f"--model-args {text}: {_ARGS}.")
        found[keyword.arg] = _value(text, keyword.value)
    return found


def _value(text: str, node: ast.expr) -> object:
    """A literal, or a word as it stands. Raises PlanError."""
    if isinstance(node, ast.Name):
        return node.id
    try:
        found: object = ast.literal_eval(node)
    except ValueError:
        raise PlanError(f"--model-args {text}: {ast.unparse(node)} is no plain value; {_ARGS}.") from None
    if not isinstance(found, bool | int | float | str | list | tuple | dict | None):
        raise PlanError(f"--model-args {text}: {ast.unparse(node)} is no plain value; {_ARGS}.")
    return found


def acts_on_import(source: str | bytes) -> str | None:
    """Why a script must not be imported to look at its model, as the end of a sentence; None where it may be.

    A script that does things at its top level, and has no `if __name__ == "__main__":`, would train.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is not Python that can be read ({error.args[0] if error.args else type(error).__name__})"
    if any(isinstance(node, ast.If) and _names_main(node.test) for node in body):
        return None
    line = next(_acting(body), None)
    if line is None:
        return None
    return f'would run when it is read (line {line}): put what trains under `if __name__ == "__main__":`'


def _names_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _acting(body: Iterable[ast.stmt]) -> Iterator[int]:
    """Lines of statements that do more than define."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            for part in parts:
                yield from _acting(part)
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Await):
            continue
        elif not isinstance(node, _DEFINES):
            yield node.lineno


def shape_of(
    counted: Counted, layers: int | None = None, hidden: int | None = None, vocab: int | None = None
) -> Shape:
    """The counted model; what is given wins. Raises PlanError where it does not look like a transformer."""
    layers, hidden = layers or counted.layers, hidden or counted.hidden
    if not layers or not hidden:
        missing = " and ".join(
            f"--{name}" for name, value in (("layers", layers), ("hidden", hidden)) if not value
        )
        raise PlanError(
            f"{counted.name} has no list of layers that looks like a transformer: give {missing} for its activations."
        )
    outside = counted.parameters - counted.blocks if counted.layers else None
    usual = shape(counted.parameters, layers, hidden, vocab or counted.vocab or VOCABULARY)
    return replace(usual, outside=outside, largest=counted.largest)


def counted_from(found: Mapping[str, object]) -> Counted:
    """What the training environment's interpreter answered. Raises PlanError."""
    try:
        return Counted(**found)  # type: ignore[arg-type]
    except TypeError:
        raise PlanError(
            "The training environment's interpreter answered something else than a model's sizes."
        ) from None
