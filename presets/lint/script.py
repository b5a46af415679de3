"""Rules about a training script, by its syntax tree."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..finding import Finding
from . import syntax, variables
from .nodes import Unreadable
from .rules import found, once
from .syntax import Names, Write
from .torchrun import HERE

COMPUTED = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"})
MEETING = ("MASTER_ADDR", "MASTER_PORT")
PRIVATE = ("torch.distributed._composable.fsdp", "torch.distributed._composable.fully_shard")
SPAWNS = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
STRATEGIES: Mapping[str, tuple[str, str, str]] = {
    "DistributedDataParallel": ("torch.nn", "ddp", "wraps its model in DistributedDataParallel"),
    "FullyShardedDataParallel": ("torch.distributed.fsdp", "fsdp1", "wraps its model in FullyShardedDataParallel"),
    "fully_shard": ("torch.distributed", "fsdp2", "shards its model with fully_shard"),
    "ZeroRedundancyOptimizer": ("torch.distributed.optim", "zero1", "shards its optimizer (ZeroRedundancyOptimizer)"),
    "initialize": ("deepspeed", "deepspeed", "hands its model to DeepSpeed"),
}  # fmt: skip
"""Last part of a call's name → package it comes from, the strategy that it is, what the script does."""
ALONE = frozenset(
    {
        *sys.stdlib_module_names,
        "torch",
        "torchvision",
        "torchaudio",
        "numpy",
        "tqdm",
        "matplotlib",
        "PIL",
        "pandas",
    }
)
"""Imports that cannot make ranks speak to each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """How the script is going to run. None: not known."""

    nproc: int | None = None
    nnodes: int | None = None
    strategy: str | None = None
    """Of the preset."""
    preset: str = ""

    @property
    def world(self) -> int:
        """Ranks, 1 where it is not known."""
        return (self.nproc or 1) * (self.nnodes or 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is in a script that rules ask for."""

    names: Names
    writes: list[Write] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    calls: list[tuple[str, int, bool]] = field(default_factory=list)
    """Full name, line, and whether an `if` decides."""
    mentioned: set[str] = field(default_factory=set)
    """Last parts of all attributes and names."""


def look(source: str | bytes) -> Seen:
    """Raises Unreadable."""
    tree = syntax.parse(source)
    seen = Seen(Names(tree))
    for node, decided in syntax.nodes(tree):
        seen.writes.extend(syntax.writes(node, seen.names, decided))
        read = syntax.reads(node, seen.names)
        if read:
            seen.reads.add(read)
        if isinstance(node, ast.Call):
            seen.calls.append((seen.names.full(node.func), node.lineno, decided))
        if isinstance(node, ast.Attribute):
            seen.mentioned.add(node.attr)
        elif isinstance(node, ast.Name):
            seen.mentioned.add(node.id)
    seen.writes.sort(key=lambda one: one.line)
    del seen.writes[variables.MOST :]
    seen.calls.sort(key=lambda one: one[1])
    return seen


def check(source: str | bytes, file: str, facts: Facts | None = None) -> list[Finding]:
    """Everything about one script. Never raises."""
    facts = facts or Facts()
    try:
        seen = look(source)
    except Unreadable as error:
        text = f"{file} {error}."
        return [found("L41", f"{file}:{error.line}", text, severity="warning", remedy="")]
    rules = (_variables, _private, _launchers_own, _spawns, _strategy, _alone, _left_open)
    return once(one for rule in rules for one in rule(seen, file, facts))


def _variables(seen: Seen, file: str, facts: Facts) -> Iterator[Finding]:
    for one in seen.writes:
        where = f"{file}:{one.line}"
        if one.name not in seen.reads:
            yield from variables.check(
                one.name, "$" if one.value is None else one.value, where, facts.nnodes
            )
        if one.value is not None:
            yield from variables.in_plain_text(one.name, one.value, where)


def _private(seen: Seen, file: str, facts: Facts) -> Iterator[Finding]:
    for module, line in seen.names.imported.items():
        if module.startswith(PRIVATE):
            text = f"{module} is a private path: what it holds lives in torch.distributed.fsdp now."
            yield found("L14", f"{file}:{line}", text, value=module)


def _launchers_own(seen: Seen, file: str, facts: Facts) -> Iterator[Finding]:
    spawns = any(full in SPAWNS for full, _, _ in seen.calls)
    for one in seen.writes:
        if one.gentle or one.name not in (*COMPUTED, *(() if spawns else MEETING)):
            continue  # ranks that the script starts itself have to be told where to meet
        where, several = f"{file}:{one.line}", (facts.nnodes or 1) > 1
        if several and one.name == "MASTER_ADDR" and one.value is not None and HERE.fullmatch(one.value):
            text = f"{one.name} becomes {one.value} on every node: the nodes do not find each other."
            yield found("L23", where, text, value=one.name)
        else:
            text = f"{one.name} is overwritten, which the launcher has set for this rank."
            yield found("L23", where, text, value=one.name, severity="warning")


def _spawns(seen: Seen, file: str, facts: Facts) -> Iterator[Finding]:
    if (facts.nproc or 1) < 2:
        return
    for full, line, decided in seen.calls:
        if full in SPAWNS and not decided:
            text = f"Each of the {facts.nproc} ranks of a node starts ranks of its own here."
            yield found("L24", f"{file}:{line}", text, value=full)


def _own(seen: Seen) -> Iterator[tuple[str, str, int]]:
    """Strategy, what the script does, line: for each strategy that it takes itself."""
    for full, line, _ in seen.calls:
        package, _, last = full.rpartition(".")
        home, kind, what = STRATEGIES.get(last, ("", "", ""))
        if home and (package == home or package.startswith(f"{home}.")):
            yield kind, what, line


def _strategy(seen: Seen, file: str, facts: Facts) -> Iterator[Finding]:
    own = list(_own(seen))
    obeys = any(full.endswith("parallelize.parallelize") for full, _, _ in seen.calls)
    if facts.strategy is None or obeys or not own:
        return
    same = {facts.strategy, *(("ddp",) if facts.strategy == "zero1" else ())}
    if not same & {kind for kind, _, _ in own}:
        _, what, line = own[0]
        text = f"The script {what}: preset {facts.preset} ({facts.strategy}) does not change that."
        yield found("L25", f"{file}:{line}", text, value=own[0][0])


def _alone(seen: Seen, file: str, facts: Facts) -> Iterator[Finding]:
    tops = {module.split(".")[0] for module in seen.names.imported}
    spoken = any(module.startswith("torch.distributed") for module in seen.names.imported)
    spoken = spoken or any("torch.distributed" in full or full.startswith(("torch.nn.parallel", "torch.nn.Data"))
                           for full, _, _ in seen.calls)  # fmt: skip
    trains = next((line for full, line, _ in seen.calls if full.startswith("torch.optim.")), None)
    if facts.world < 2 or trains is None or spoken or not tops <= ALONE or any(_own(seen)):
        return
    text = f"{facts.world} ranks, and nothing here averages gradients: each trains a model of its own."
    yield found("L26", f"{file}:{trains}", text)


def _left_open(seen: Seen, file: str, facts: Facts) -> Iterator[Finding]:
    line = next(
        (line for full, line, _ in seen.calls if full.endswith("distributed.init_process_group")), None
    )
    if line is not None and "destroy_process_group" not in seen.mentioned:
        text = "The process group is made here and never destroyed: torch warns, and the end of a run can hang."
        yield found("L27", f"{file}:{line}", text, value="init_process_group")
