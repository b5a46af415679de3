"""Whether a script obeys a preset's strategy: a look at its syntax tree. Nothing is executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

NOTHING = "obeys nothing: the preset sets only flags and environment"

PARALLELIZE = "distui.runners.inrank.parallelize.parallelize"
"""The one call that obeys."""

COPY = "parallelize.parallelize"
"""The same from a copy of the file beside the script."""

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
    "Trainer": (("transformers",), "leaves it to the transformers Trainer"),
    "Seq2SeqTrainer": (("transformers",), "leaves it to the transformers Seq2SeqTrainer"),
    "SFTTrainer": (("trl",), "leaves it to the trl SFTTrainer"),
}
"""Last part of a call's full name → packages it may come from, and what a script that calls it does."""

LIGHTNING = ("lightning", "pytorch_lightning")
"""Packages whose Trainer is Lightning's."""


@dataclass(frozen=True, slots=True)
class Obeys:
    """What the look found."""

    how: str | None
    """How the script obeys the preset's strategy; None when it does not."""
    why: str
    """One sentence with the reason."""


def look(script: str | None, source: str | bytes | None) -> Obeys:
    """Look at the text (or bytes) `source` of `script`. Never raises."""
    name = script or "the command"
    if source is None:
        return Obeys(None, f"{name} could not be read as a script, so what it obeys is unknown.")
    try:
        tree = _parse(source)
        names = _Names(tree)
        calls = [(names.full(call.func), call.lineno) for call in _calls(tree)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Obeys(None, f"{name} {_unreadable(error, source)}, so what it obeys is unknown.")
    for full, line in calls:
        if full in (PARALLELIZE, COPY):
            doubt = "" if full == PARALLELIZE else ", if the parallelize.py beside it is distui's"
            how = f"{name} calls parallelize() in line {line}: it obeys strategy and precision{doubt}."
            return Obeys(how, how)
    for full, line in calls:
        what = _framework(full)
        if what:
            return Obeys(None, f"{name} {what} in line {line}: the preset's strategy does not change that.")
    return Obeys(None, f"{name} {NOTHING}.")


def _parse(source: str | bytes) -> ast.Module:
    """The tree. Raises SyntaxError, ValueError (a NUL byte), RecursionError or MemoryError."""
    if isinstance(source, str):
        source = source.removeprefix("\ufeff")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in the user's strings are not this look's business
        return ast.parse(source)


def _unreadable(error: Exception, source: str | bytes) -> str:
    zero = b"\0" in source if isinstance(source, bytes) else "\0" in source
    if zero:
        return "is not text"
    if isinstance(error, SyntaxError):
        if "print" in (error.msg or "") and "parentheses" in (error.msg or ""):
            return f"is Python 2 (line {error.lineno}: print without parentheses)"
        where = f" in line {error.lineno}" if error.lineno else ""
        return f"is not Python that can be read{where} ({error.msg})"
    return "is too deeply nested to be read"


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return iter(sorted(found, key=lambda call: (call.lineno, call.col_offset)))


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
                for full in filter(_framework, map(self.full, node.bases)):
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
            guess = next((full for full in starred if full == PARALLELIZE or _framework(full)), "")
            return self.known.get(node.id, guess)
        if isinstance(node, ast.Attribute):
            inner = self.full(node.value)
            return f"{inner}.{node.attr}" if inner else ""
        return ""


def _framework(full: str) -> str | None:
    package, _, last = full.rpartition(".")
    if last in ("Trainer", "Fabric") and package.split(".", 1)[0] in LIGHTNING:
        return f"leaves it to Lightning ({last})"
    packages, what = FRAMEWORKS.get(last, ((), ""))
    if any(package == known or package.startswith(f"{known}.") for known in packages):
        return what
    return None
