"""Rules for a training script, by its syntax tree."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..finding import Finding, Severity
from ..script_facts import TRAINERS, Names, Script, parse, wraps
from ..script_support import listed
from ..script_tree import MOST_FILES, ScriptTree
from ..text_formats import Unreadable
from . import gpu_calls, lint_rules
from .gpu_calls import SET_DEVICE
from .lint_rules import LOCAL_ADDRESS, issue, once

SIGNS = (
    "checkpoint",
    "ckpt",
    "resume",
    "state_dict",
    "torch.save",
    "save_pretrained",
    "output_dir",
    "save_steps",
)
"""Words in scripts and command lines that save their state."""

SAVING_NAMES = ("save", "checkpoint", "ckpt", "trainer")
"""Parts of names in Python scripts that save their state."""


def saves(text: str) -> bool:
    return any(sign in text.lower() for sign in SIGNS)


def names_save(names: Iterable[str]) -> bool:
    return any(sign in name.lower() for name in names for sign in SAVING_NAMES)


COMPUTED = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"})
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
PRIVATE = ("torch.distributed._composable.fsdp", "torch.distributed._composable.fully_shard")
SPAWNS = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
ALONE = sys.stdlib_module_names | {
    "torch",
    "torchvision",
    "torchaudio",
    "numpy",
    "tqdm",
    "matplotlib",
    "PIL",
    "pandas",
}
"""Imports that do not connect ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptFacts:
    """The planned launch of the script. None means unknown."""

    nproc: int | None = None
    nnodes: int | None = None
    strategy: str | None = None
    """Strategy of the preset."""
    preset: str = ""
    remedy: str = ""
    """What would make the preset act, or "" for the rule's own repair."""
    gpus: bool | None = None
    """True if the ranks have GPUs."""

    @property
    def world(self) -> int:
        """Return the number of ranks, or 1 if it is unknown."""
        return (self.nproc or 1) * (self.nnodes or 1)


@dataclass(frozen=True, slots=True)
class ScriptContents:
    script: Script
    names: Names
    writes: list[Write] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    calls: list[tuple[str, ast.Call]] = field(default_factory=list)
    """Each call with its full name."""
    mentioned: set[str] = field(default_factory=set)
    """Last parts of all attributes and names."""


def inspect(source: str | bytes) -> ScriptContents:
    """Analyse a script. Raises Unreadable."""
    return _contents(parse(source))


@functools.lru_cache(maxsize=MOST_FILES + 14)
def _contents(script: Script) -> ScriptContents:
    names = Names(script.tree)
    seen = ScriptContents(script, names)
    for node in script.tree.nodes:
        seen.writes.extend(writes(node, seen.names, script.tree))
        read = reads(node, seen.names)
        if read:
            seen.reads.add(read)
        if isinstance(node, ast.Call):
            seen.calls.append((seen.names.full(node.func), node))
        if isinstance(node, ast.Attribute):
            seen.mentioned.add(node.attr)
        elif isinstance(node, ast.Name):
            seen.mentioned.add(node.id)
    seen.writes.sort(key=lambda var: var.line)
    del seen.writes[lint_rules.MOST :]
    seen.calls.sort(key=lambda pair: (pair[1].lineno, pair[1].col_offset))
    return seen


def check(source: str | bytes, file: str, facts: ScriptFacts | None = None) -> list[Finding]:
    """Check one script with all rules. Never raises."""
    facts = facts or ScriptFacts()
    try:
        seen = inspect(source)
    except Unreadable as error:
        return [_unread(file, str(error), error.line)]
    rules = (
        _variables,
        _private,
        _launchers_own,
        _spawns,
        _strategy,
        _alone,
        _left_open,
        _without_gpu,
        _global_rank,
        _old,
        _not_sharded,
        _never_imported,
    )
    return once(finding for rule in rules for finding in rule(seen, file, facts))


def _unread(file: str, why: str, line: int = 0) -> Finding:
    """Report that a script was not read."""
    where = f"{file}:{line}" if line else file
    text = f"{file} {why}: nothing in it was checked."
    return issue("L41", where, text, severity="warning", remedy="")


def too_large(files: Sequence[str]) -> Iterator[Finding]:
    """Report in one finding the imported files that were too large to read. Yields nothing for []."""
    if files:
        text = f"Too large to be read with the script that imports them: {listed(files)}; nothing in them was checked."
        yield issue("L41", files[0], text, severity="warning", remedy="")


def _variables(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    for var in seen.writes:
        where = f"{file}:{var.line}"
        if var.name not in seen.reads:
            yield from lint_rules.check_variables(
                var.name, "$" if var.value is None else var.value, where, facts.nnodes
            )
        if var.value is not None:
            yield from lint_rules.in_plain_text(var.name, var.value, where)


def _private(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    for module, line in seen.names.imported.items():
        if module.startswith(PRIVATE):
            text = f"{module} is a private path: what it holds lives in torch.distributed.fsdp now."
            yield issue("L14", f"{file}:{line}", text, value=module)


def _launchers_own(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    names = COMPUTED
    if all(full not in SPAWNS for full, _ in seen.calls):
        names |= set(RENDEZVOUS)  # otherwise the ranks that the script starts need these variables
    for var in seen.writes:
        if var.gentle or var.name not in names:
            continue
        where, several = f"{file}:{var.line}", (facts.nnodes or 1) > 1
        if several and var.name == "MASTER_ADDR" and LOCAL_ADDRESS.fullmatch(str(var.value)):
            text = f"{var.name} becomes {var.value} on every node: the nodes do not find each other."
            yield issue("L23", where, text, value=var.name)
        else:
            text = f"{var.name} is overwritten, which the launcher has set for this rank."
            yield issue("L23", where, text, value=var.name, severity="warning")


def _spawns(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    if (facts.nproc or 1) < 2:
        return
    for full, call in seen.calls:
        if full in SPAWNS and not is_decided(seen.script.tree, call):
            text = f"Each of the {facts.nproc} ranks of a node starts ranks of its own here."
            yield issue("L24", f"{file}:{call.lineno}", text, value=full)


def _own(seen: ScriptContents) -> Iterator[tuple[str, str, int]]:
    """Yield strategy, description and line of each strategy that the script applies itself."""
    for full, call in seen.calls:
        kind, what = wraps(full)
        if kind:
            yield kind, what, call.lineno


def _strategy(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    own = list(_own(seen))
    obeys = any(full.endswith("parallelize.parallelize") for full, _ in seen.calls)
    if facts.strategy is None or obeys or not own:
        return
    if facts.strategy not in {kind for kind, _, _ in own}:
        kind, what, line = own[0]
        text = f"The script {what}: preset {facts.preset} ({facts.strategy}) does not change that."
        yield issue("L25", f"{file}:{line}", text, value=kind, remedy=facts.remedy or None)


def check_imported(source: str | bytes, file: str, facts: ScriptFacts) -> list[Finding]:
    """Check an imported file: a strategy that differs from the preset's, and the use of GPUs. Never raises."""
    try:
        seen = inspect(source)
    except Unreadable as error:
        return [_unread(file, str(error), error.line)]
    taken = (replace(hit, severity="warning") for hit in _without_gpu(seen, file, facts))
    return [*_strategy(seen, file, facts), *taken]


def fills_in(seen: ScriptContents) -> bool | None:
    """Return True if a library replaces DeepSpeed's "auto" for this script, or None if unknown."""
    if any(full == "deepspeed.initialize" for full, _ in seen.calls):
        return False
    tops = {module.split(".")[0] for module in seen.names.imported}
    return True if tops & {"accelerate", *TRAINERS} else None


def _without_gpu(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    if facts.gpus is False:
        asks = "is_available" in seen.mentioned
        yield from gpu_calls.without_gpu(seen.script.tree, seen.names, asks, file)


Assigned = Mapping[str, Sequence[ast.expr]]
"""Name → the expressions assigned to it."""


def _global_rank(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    """Report calls that use the global rank as the number of a GPU."""
    for node in seen.script.tree.of(ast.Call):
        if facts.nnodes == 1 or len(node.args) != 1 or seen.names.full(node.func) != SET_DEVICE:
            continue
        source = _rank(node.args[0], seen.script.assigned)
        if source:
            text = f"{source} counts ranks over all nodes: from the second node on there is no such GPU."
            severity: Severity = "warning" if (facts.nnodes or 1) > 1 else "note"
            yield issue("L50", f"{file}:{node.lineno}", text, value=source, severity=severity)


def _rank(node: ast.expr, assigned: Assigned, deep: int = 0) -> str:
    """Return the expression that reads the global rank, or "" if there is none, or if it is only an operand."""
    inner = _inside(node, assigned)
    if inner is not None:
        return _rank(inner, assigned, deep + 1) if deep < 4 else ""
    text = ast.unparse(node).replace('"', "'")
    if isinstance(node, ast.Call) and text.endswith("get_rank()"):
        return text
    if re.fullmatch(r"(os\.)?environ\['RANK'\]|(os\.)?(environ\.get|getenv)\('RANK'.*\)", text):
        return text
    return ""


def _inside(node: ast.expr, assigned: Assigned) -> ast.expr | None:
    """Return the only value of a name, or the argument of int(), else None."""
    if isinstance(node, ast.Name):
        values = assigned.get(node.id, [])
        return values[0] if len(values) == 1 else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return node.args[0] if len(node.args) == 1 else None
    return None


def _not_sharded(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    """Report FSDP1 with NO_SHARD."""
    for node in seen.script.tree.of(ast.Attribute):
        if node.attr == "NO_SHARD":
            text = "NO_SHARD keeps everything on every GPU, as DDP does, and is slower."
            yield issue("L42", f"{file}:{node.lineno}", text, value="ShardingStrategy.NO_SHARD")
            return


def _old(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    """Report FSDP1."""
    for full, call in seen.calls:
        if wraps(full)[0] == "fsdp1":
            text = "FullyShardedDataParallel is FSDP1, which torch has deprecated: FSDP2 is fully_shard."
            yield issue("L51", f"{file}:{call.lineno}", text, value=full, remedy="")
            return


WRAPPERS = frozenset({"DDP", "FSDP", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"})
"""Names of torch's wrappers."""


def _never_imported(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    """Report a call of one of torch's wrappers by a name that the script neither imports nor defines."""
    defined = {node.name for node in seen.script.tree.of(ast.ClassDef, ast.FunctionDef)}
    unbound = WRAPPERS - defined - seen.script.assigned.keys()
    for node in seen.script.tree.of(ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in unbound and not seen.names.full(node.func):
            text = f"{node.func.id} is called here, and nothing imports or defines it: distui does not know what it is."
            yield issue("L52", f"{file}:{node.lineno}", text, value=node.func.id)
            return


def _alone(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    tops = {module.split(".")[0] for module in seen.names.imported}
    trains = next((call.lineno for full, call in seen.calls if full.startswith("torch.optim.")), None)
    if facts.world < 2 or trains is None or _is_distributed(seen) or not tops <= ALONE or any(_own(seen)):
        return
    text = f"{facts.world} ranks, and nothing here averages gradients: each trains a model of its own."
    yield issue("L26", f"{file}:{trains}", text)


def _is_distributed(seen: ScriptContents) -> bool:
    if any(module.startswith("torch.distributed") for module in seen.names.imported):
        return True
    parallel = ("torch.nn.parallel", "torch.nn.Data")
    return any("torch.distributed" in full or full.startswith(parallel) for full, _ in seen.calls)


def _left_open(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    line = next(
        (call.lineno for full, call in seen.calls if full.endswith("distributed.init_process_group")), None
    )
    if line is not None and "destroy_process_group" not in seen.mentioned:
        text = "init_process_group() without destroy_process_group(): PyTorch warns, and the exit may hang."
        yield issue("L27", f"{file}:{line}", text, value="init_process_group")


def is_decided(tree: ScriptTree, node: ast.AST) -> bool:
    """Return True if an `if` (except `if __name__ == "__main__"`) or an `except` decides about a node."""
    deciding = (ast.If, ast.IfExp, ast.ExceptHandler, ast.Match)
    return any(isinstance(outer, deciding) for outer in tree.around(node))


@dataclass(frozen=True, slots=True)
class Write:
    """An environment variable that the script sets."""

    name: str
    value: str | None
    """None for a computed value."""
    line: int
    gentle: bool
    """True if an existing value stays, or an `if` decides."""


def writes(node: ast.AST, names: Names, tree: ScriptTree) -> Iterator[Write]:
    """Yield the variables that one node sets in os.environ."""
    for key, value, line, is_default in _assignments(node, names):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            literal = str(value.value) if isinstance(value, ast.Constant) else None
            yield Write(key.value, literal, line, is_default or is_decided(tree, node))


def _assignments(node: ast.AST, names: Names) -> Iterator[tuple[ast.expr | None, ast.expr, int, bool]]:
    """Yield key, value and line of each assignment to os.environ, and True if an existing value stays."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and names.full(target.value) == "os.environ":
                yield target.slice, node.value, node.lineno, False
    elif isinstance(node, ast.Call):
        full = names.full(node.func)
        if full in ("os.environ.setdefault", "os.putenv") and len(node.args) == 2:
            yield node.args[0], node.args[1], node.lineno, full.endswith("setdefault")
        elif full == "os.environ.update":
            yield from _updates(node)


def _updates(call: ast.Call) -> Iterator[tuple[ast.expr | None, ast.expr, int, bool]]:
    for argument in call.args[:1]:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                yield key, value, value.lineno, False
    for word in call.keywords:
        if word.arg:
            yield ast.Constant(word.arg), word.value, word.value.lineno, False


def reads(node: ast.AST, names: Names) -> str:
    """Return the environment variable that one node reads, or ""."""
    key: ast.AST | None = None
    if (
        isinstance(node, ast.Call)
        and names.full(node.func) in ("os.getenv", "os.environ.get")
        and node.args
    ):
        key = node.args[0]
    elif (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and names.full(node.value) == "os.environ"
    ):
        key = node.slice
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
