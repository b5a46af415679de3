"""What the calls of a script are called in full, by its imports and subclasses. Nothing is executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

PARALLELIZE = "distui.runners.inrank.parallelize.parallelize"
STEPS = "distui.runners.inrank.parallelize.forward_backward"
"""distui's own calls; the second leaves the order of forward and backward passes to the preset."""

FRAMEWORKS = {
    "DistributedDataParallel": (
        ("torch.nn.parallel", "torch.nn"),
        "wraps its model in DistributedDataParallel",
    ),
    "FullyShardedDataParallel": (
        ("torch.distributed.fsdp",),
        "wraps its model in FullyShardedDataParallel",
    ),
    "fully_shard": (("torch.distributed",), "shards its model with fully_shard"),
    "ZeroRedundancyOptimizer": (
        ("torch.distributed.optim",),
        "shards its optimizer with ZeroRedundancyOptimizer",
    ),
    "parallelize_module": (("torch.distributed",), "divides its model with parallelize_module"),
    "initialize": (("deepspeed",), "hands its model to DeepSpeed (deepspeed.initialize)"),
    "Accelerator": (("accelerate",), "leaves it to Accelerate (Accelerator)"),
}
"""Last part of a call's full name → packages it may come from, and what a script that calls it does."""

TRAINERS = ("transformers", "trl")
"""Packages whose classes called …Trainer go through Accelerate."""
LIGHTNING = ("lightning", "pytorch_lightning")
"""Packages whose Trainer is Lightning's."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    full: str
    """Full dotted name; "" when no import explains it."""
    last: str
    """Its last part as it is written there, explained or not."""
    line: int
    node: ast.Call

    def keyword(self, *names: str) -> ast.keyword | None:
        """The first keyword argument of one of these names that is neither None nor False."""
        for one in self.node.keywords:
            nothing = isinstance(one.value, ast.Constant) and one.value.value in (None, False)
            if one.arg in names and not nothing:
                return one
        return None

    def first_text(self) -> str:
        """Its first argument, where that is a text; else ""."""
        first = self.node.args[0] if self.node.args else None
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


@dataclass(frozen=True, slots=True)
class Script:
    """What there is to know about a script's text."""

    calls: tuple[Call, ...]
    """In the order of the text."""
    texts: frozenset[str]
    """Every text in it."""

    def find(self, *fulls: str) -> Call | None:
        """The first call of one of these full names."""
        return next((call for call in self.calls if call.full in fulls), None)


def parse(source: str | bytes) -> Script:
    """Read a script. Raises SyntaxError, ValueError (a NUL byte), RecursionError or MemoryError."""
    if isinstance(source, str):
        source = source.removeprefix("\ufeff")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in the user's strings are not this look's business
        tree = ast.parse(source)
    names = _Names(tree)
    calls = (Call(names.full(node.func), _last(node.func), node.lineno, node) for node in _calls(tree))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return Script(tuple(calls), frozenset(text for text in texts if isinstance(text, str)))


def framework(full: str) -> str | None:
    """What a script does that calls this; None where it says nothing about a strategy."""
    package, _, last = full.rpartition(".")
    top = package.split(".", 1)[0]
    if last in ("Trainer", "Fabric") and top in LIGHTNING:
        return f"leaves it to Lightning ({last})"
    if top in TRAINERS and last.endswith("Trainer"):
        return f"leaves it to the {top} {last}"
    packages, what = FRAMEWORKS.get(last, ((), ""))
    if any(package == known or package.startswith(f"{known}.") for known in packages):
        return what
    return None


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return iter(sorted(found, key=lambda call: (call.lineno, call.col_offset)))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Names:
    """What the script's imports and subclasses make of a name."""

    def __init__(self, tree: ast.Module) -> None:
        self.known: dict[str, str] = {}
        self.stars: list[str] = []
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Import):
                self._imported(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._imported_from(node, node.module)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                for full in filter(framework, map(self.full, node.bases)):
                    self.known[node.name] = full

    def _imported(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.split(".", 1)[0]
            self.known.setdefault(alias.asname or top, alias.name if alias.asname else top)

    def _imported_from(self, node: ast.ImportFrom, module: str) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(module)
            else:
                self.known.setdefault(alias.asname or alias.name, f"{module}.{alias.name}")

    def full(self, node: ast.expr) -> str:
        """The full dotted name of `node`; "" when it is not a name that an import explains."""
        if isinstance(node, ast.Name):
            starred = (f"{module}.{node.id}" for module in self.stars)
            guess = next((full for full in starred if full in (PARALLELIZE, STEPS) or framework(full)), "")
            return self.known.get(node.id, guess)
        if isinstance(node, ast.Attribute):
            inner = self.full(node.value)
            return f"{inner}.{node.attr}" if inner else ""
        return ""
