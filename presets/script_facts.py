"""The facts of a script's syntax tree: its calls, options, assignments, and the frameworks that it uses."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .script_tree import MOST_FILES, ScriptTree, read

PARALLELIZE = "distui.runners.inrank.parallelize.parallelize"
STEPS = "distui.runners.inrank.parallelize.forward_backward"
"""distui's own calls. A script that calls the second one lets the preset order forward and backward passes."""
COPY, COPIED_STEPS = "parallelize.parallelize", "parallelize.forward_backward"
"""The two calls, from a copy of the folder next to the script."""

FRAMEWORKS: Mapping[str, tuple[str, str, str]] = {
    "DistributedDataParallel": ("torch.nn", "ddp", "wraps its model in DistributedDataParallel"),
    "FullyShardedDataParallel": (
        "torch.distributed.fsdp",
        "fsdp1",
        "wraps its model in FullyShardedDataParallel",
    ),
    "fully_shard": ("torch.distributed", "fsdp2", "shards its model with fully_shard"),
    "ZeroRedundancyOptimizer": (
        "torch.distributed.optim",
        "zero1",
        "shards its optimizer with ZeroRedundancyOptimizer",
    ),
    "parallelize_module": ("torch.distributed", "", "divides its model with parallelize_module"),
    "initialize": ("deepspeed", "deepspeed", "hands its model to DeepSpeed (deepspeed.initialize)"),
    "Accelerator": ("accelerate", "", "leaves it to Accelerate (Accelerator)"),
}
"""Last part of a call's full name → its package, its kind of strategy ("" for none), and what a calling script does."""

TRAINERS = ("transformers", "trl")
"""Packages whose classes …Trainer use Accelerate."""
LIGHTNING = ("lightning", "pytorch_lightning")
"""Packages whose Trainer is Lightning's."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    full: str
    """Full dotted name, or "" if no import explains it."""
    last: str
    """Last part of the name in the source."""
    line: int
    node: ast.Call

    def keyword(self, *names: str) -> ast.keyword | None:
        """Return the first keyword argument of one of these names that is neither None nor False."""
        for keyword in self.node.keywords:
            nothing = isinstance(keyword.value, ast.Constant) and keyword.value.value in (None, False)
            if keyword.arg in names and not nothing:
                return keyword
        return None

    def first_text(self) -> str:
        """Return the first argument if it is a text, else ""."""
        first = self.node.args[0] if self.node.args else None
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """The facts of a script's source."""

    calls: tuple[ScriptCall, ...]
    """In source order."""
    texts: frozenset[str]
    options: tuple[Option, ...]
    assigned: Mapping[str, Sequence[ast.expr]]
    """Name → the expressions assigned to it."""
    tree: ScriptTree

    def find(self, *fulls: str) -> ScriptCall | None:
        """Return the first call of one of these full names."""
        return next((call for call in self.calls if call.full in fulls), None)


def parse(source: str | bytes) -> Script:
    """Parse a script. Raises Unreadable."""
    return _script(read(source))


@functools.lru_cache(maxsize=MOST_FILES + 14)
def _script(tree: ScriptTree) -> Script:
    names = _FrameworkNames(tree)
    calls = sorted(tree.of(ast.Call), key=lambda call: (call.lineno, call.col_offset))
    texts = (node.value for node in tree.of(ast.Constant))
    assigned: dict[str, list[ast.expr]] = {}
    for node in tree.nodes:
        for name, value in _assignments(node):
            assigned.setdefault(name, []).append(value)
    return Script(
        tuple(ScriptCall(names.full(node.func), last_name(node.func), node.lineno, node) for node in calls),
        frozenset(text for text in texts if isinstance(text, str)),
        tuple(option for node in calls if (option := _option(node)) is not None),
        assigned,
        tree,
    )


@dataclass(frozen=True, slots=True)
class Option:
    """An argparse option of the script."""

    names: tuple[str, ...]
    """With their dashes. The last one is the name in sentences."""
    dest: str
    action: str
    default: ast.expr | None

    @property
    def name(self) -> str:
        return self.names[-1]


def _option(node: ast.Call) -> Option | None:
    if last_name(node.func) not in ("add_argument", "add", "add_arg"):
        return None
    names = [_literal(arg, "") for arg in node.args]
    if not names or not all(name.startswith("-") for name in names):
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    long = next((name for name in names if name.startswith("--")), names[0])
    return Option(
        tuple(sorted(names, key=lambda name: name == long)),  # the long name is the last one
        _literal(keywords.get("dest"), long.lstrip("-").replace("-", "_")),
        _literal(keywords.get("action"), "store"),
        keywords.get("default"),
    )


def _literal(node: ast.expr | None, default: str) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else default


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            else:
                yield from _parts(target)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.target if isinstance(node, ast.AugAssign) else node.value
    elif isinstance(node, ast.arg):
        yield node.arg, ast.Name(node.arg)
    elif isinstance(node, ast.For | ast.comprehension):
        yield from _parts(node.target)


def _parts(target: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of a tuple or a loop, whose values are never literals."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id, node


def framework(full: str) -> str | None:
    """Return what a script does that calls this name, or None if the call implies no strategy."""
    package, _, last = full.rpartition(".")
    top = package.split(".", 1)[0]
    if last in ("Trainer", "Fabric") and top in LIGHTNING:
        return f"leaves it to Lightning ({last})"
    if top in TRAINERS and last.endswith("Trainer"):
        return f"leaves it to the {top} {last}"
    return wraps(full)[1] or None


def wraps(full: str) -> tuple[str, str]:
    """Return the strategy kind of a call and what a calling script does, or two empty texts."""
    package, _, last = full.rpartition(".")
    home, kind, what = FRAMEWORKS.get(last, ("", "", ""))
    inside = home and (package == home or package.startswith(f"{home}."))
    return (kind, what) if inside else ("", "")


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


MOST_STARS = 50
"""Most star imports to search for a name."""


class Names:
    """Resolves names by the imports of a script. `relative`: also by relative imports."""

    def __init__(self, tree: ScriptTree, *, relative: bool = True) -> None:
        self._names: dict[str, str] = {}
        self._stars: list[str] = []
        self.imported: dict[str, int] = {}
        """Module as written, with its leading dots → line of its first import."""
        for node in tree.of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                self._add_modules(node)
            elif relative or not node.level:
                self._add_members(node)

    def _add_modules(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.split(".", 1)[0]
            self.imported.setdefault(alias.name, node.lineno)
            self._names.setdefault(alias.asname or top, alias.name if alias.asname else top)

    def _add_members(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        self.imported.setdefault(module, node.lineno)
        for alias in node.names:
            if alias.name == "*":
                self._stars.append(module)
            else:
                self._names.setdefault(alias.asname or alias.name, f"{module}.{alias.name}")

    def full(self, node: ast.AST) -> str:
        """Return the full dotted name of `node`, or "" if no import explains it. A star import may."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self._names.get(node.id) or self._starred(node.id)
        return ".".join([first, *reversed(parts)]) if first else ""

    def _starred(self, name: str) -> str:
        return f"{self._stars[-1]}.{name}" if self._stars else ""


class _FrameworkNames(Names):
    """Resolves also subclasses of classes that wrap a model. A star import explains only names that distui knows."""

    def __init__(self, tree: ScriptTree) -> None:
        super().__init__(tree, relative=False)
        for node in tree.of(ast.ClassDef):
            for full in filter(framework, map(self.full, node.bases)):
                self._names[node.name] = full

    def _starred(self, name: str) -> str:
        starred = (f"{module}.{name}" for module in self._stars[:MOST_STARS])
        return next((full for full in starred if full in (PARALLELIZE, STEPS) or framework(full)), "")
