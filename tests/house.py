"""`make house`: the size and shape of the code, as a table. tests/test_rooms.py holds the limits."""

from __future__ import annotations

import ast
import functools
import io
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("presets", "runners", "tui")
HEAVY = ("torch", "sky", "textual", "rich", "pynvml")
"""Packages that a function may import for itself."""
BANNED_NAMES = frozenset(
    ("look", "looked", "looks", "tell", "told", "telling", "said", "found", "one", "known", "thing", "brush", "kin",
     "shelf", "meeting", "spot")
)  # fmt: skip
"""Words that name nothing in this field, as whole names or as parts of them."""


@dataclass(frozen=True)
class House:
    """What is counted; less is better for all but `modules` and `functions` by themselves."""

    modules: int
    lines: int
    code: int
    """Lines with anything but comments and docstrings."""
    module_lines: tuple[int, int, int]
    """Median, 90th percentile, most."""
    functions: int
    function_lines: tuple[int, int, int]
    cycles: int
    """Groups of modules that import each other, in functions and for type checkers, too."""
    in_cycles: int
    """Modules in such groups."""
    local_imports: int
    """Imports of our own modules inside functions."""
    doubled_classes: int
    """Names of classes that two modules or more define."""
    doubled_files: int
    """Names that two modules or more have."""
    broad: int
    """Handlers of everything: `except Exception`, `suppress(Exception)`, `gather(return_exceptions=True)`."""
    banned: int
    """Names of functions, classes, attributes and variables with a word of BANNED_NAMES."""


def sources(root: Path = ROOT) -> list[Path]:
    """The product's modules; not the examples, which are the users' own."""
    found = (path for room in ROOMS for path in (root / room).rglob("*.py"))
    return sorted(path for path in found if "examples" not in path.parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8")
    try:
        return ast.parse(text, str(path))
    except SystemError:
        # CPython 3.11 miscounts its depth when garbage is collected meanwhile ("AST constructor recursion depth
        # mismatch", https://github.com/python/cpython/issues/106905); each parse begins to count anew.
        return ast.parse(text, str(path))


def measure(root: Path = ROOT) -> House:
    """Read all of the code once."""
    paths = sources(root)
    sizes = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in paths
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    circles = cycles(graph(paths, root))
    return House(
        modules=len(paths),
        lines=sum(sizes),
        code=sum(map(code_lines, paths)),
        module_lines=spread(sizes),
        functions=len(lengths),
        function_lines=spread(lengths),
        cycles=len(circles),
        in_cycles=sum(map(len, circles)),
        local_imports=sum(len(list(local_imports(tree(path)))) for path in paths),
        doubled_classes=len(doubled_classes(paths)),
        doubled_files=len(doubled_files(paths)),
        broad=sum(len(list(broad(tree(path)))) for path in paths),
        banned=sum(banned_names(paths).values()),
    )


def spread(numbers: list[int]) -> tuple[int, int, int]:
    """Median, 90th percentile and most."""
    return int(statistics.median(numbers)), sorted(numbers)[len(numbers) * 9 // 10], max(numbers)


def code_lines(path: Path) -> int:
    """Lines that hold a token of code."""
    text = path.read_text(encoding="utf-8")
    documented = {
        line
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    passed = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in passed:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.Import | ast.ImportFrom, module: str, package: bool) -> list[str]:
    """Our own modules that a statement may mean, as dotted names without `distui`."""
    if isinstance(node, ast.Import):
        return []
    if not node.level:
        return []
    base = module.split(".")
    base = base[: len(base) - node.level + package]
    inside = ".".join([*base, *(node.module.split(".") if node.module else ())])
    return [f"{inside}.{alias.name}" for alias in node.names] + [inside]


def graph(paths: Iterable[Path], root: Path) -> dict[str, set[str]]:
    """Module → modules that it imports, wherever the import stands."""
    names = {module_name(path, root): path for path in paths}
    edges: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        package = path.name == "__init__.py"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                *exact, inside = imported(node, name, package) or [""]
                hits = [target for target in exact if target in names]
                if len(hits) < len(exact) and inside in names:
                    hits.append(inside)
                edges[name].update(target for target in hits if target != name)
    return edges


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected groups of more than one module (Tarjan), the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(edges[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for name in sorted(edges):
            if name not in index:
                visit(name)
    finally:
        sys.setrecursionlimit(limit)
    return sorted(groups, key=len, reverse=True)


def local_imports(module: ast.Module) -> Iterator[ast.ImportFrom]:
    """Imports of our own modules that stand in a function."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (
                inner for inner in ast.walk(node) if isinstance(inner, ast.ImportFrom) and inner.level
            )


def doubled_classes(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Public and private names of classes that stand in several modules."""
    homes: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and path not in homes[node.name]:
                homes[node.name].append(path)
    return {name: where for name, where in homes.items() if len(where) > 1}


def doubled_files(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Names that several modules have; those that Python gives a meaning do not count."""
    homes: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        if not path.stem.startswith("__"):
            homes[path.stem].append(path)
    return {name: where for name, where in homes.items() if len(where) > 1}


def broad(module: ast.Module) -> Iterator[ast.ExceptHandler | ast.Call]:
    """Whatever catches everything."""
    everything = ("Exception", "BaseException")
    for node in ast.walk(module):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(
                kind is None or (isinstance(kind, ast.Name) and kind.id in everything) for kind in kinds
            ):
                yield node
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            kept = [word.value for word in node.keywords if word.arg == "return_exceptions"]
            gathers = name == "gather" and any(
                isinstance(value, ast.Constant) and value.value for value in kept
            )
            if gathers or (
                name == "suppress" and any(getattr(arg, "id", "") in everything for arg in node.args)
            ):
                yield node


def banned_names(paths: Iterable[Path]) -> Counter[str]:
    """How often each banned word is bound: as a name, or as a part of one."""
    counted: Counter[str] = Counter()
    for path in paths:
        for name in bindings(tree(path)):
            words = set(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))
            counted.update(BANNED_NAMES & {word.lower() for word in words})
    return counted


def bindings(module: ast.Module) -> Iterator[str]:
    """Names that a module gives to anything; a variable once in each function."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            arguments = node.args
            bound = {arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
            bound |= {
                inner.id
                for inner in ast.walk(node)
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            }
            yield from bound


def table(house: House) -> str:
    """The measures, a line each."""
    rows = [
        ("modules", str(house.modules)),
        ("lines", f"{house.lines:,}, of them code {house.code:,}"),
        ("lines of a module", "median {}, 90 % {}, most {}".format(*house.module_lines)),
        ("functions", f"{house.functions:,}"),
        ("lines of a function", "median {}, 90 % {}, most {}".format(*house.function_lines)),
        ("import cycles", f"{house.cycles}, of {house.in_cycles} modules"),
        ("imports of our own in functions", str(house.local_imports)),
        ("class names defined twice", str(house.doubled_classes)),
        ("module names used twice", str(house.doubled_files)),
        ("catch-alls", str(house.broad)),
        ("names with a banned word", str(house.banned)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def details() -> str:
    """Where the cycles, the doubled names and the catch-alls are."""
    paths = sources()
    lines = [f"cycle of {len(group)}: {' '.join(group)}" for group in cycles(graph(paths, ROOT))]
    for title, homes in (("class", doubled_classes(paths)), ("module", doubled_files(paths))):
        for name, where in sorted(homes.items()):
            lines.append(f"{title} {name}: {' '.join(path.relative_to(ROOT).as_posix() for path in where)}")
    for path in paths:
        lines += [
            f"catch-all: {path.relative_to(ROOT).as_posix()}:{node.lineno}" for node in broad(tree(path))
        ]
    lines += [f"banned word {word}: {times}" for word, times in banned_names(paths).most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table(measure()) + "\n")
    if "--details" in sys.argv[1:]:
        sys.stdout.write("\n" + details() + "\n")
