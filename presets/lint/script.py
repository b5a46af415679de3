"""Rules for a training script: its syntax tree, model sizes that the mesh does not divide, missing checkpoints."""

from __future__ import annotations

import ast
import functools
import sys
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..finding import Finding
from ..model import Preset
from ..script_support import COPY, PARALLELIZE, TRAINERS, Names, Script, Value, Values, listed, parse, wraps
from ..script_tree import MOST_FILES, ScriptTree
from ..text_formats import Unreadable
from . import gpu_calls, lint_rules
from .gpu_calls import GuardedCall
from .lint_rules import HERE, issue, once

SIZE_NAMES: Mapping[str, frozenset[str]] = {
    "heads": frozenset({"heads", "n_head", "n_heads", "nhead", "num_heads", "num_attention_heads"}),
    "key-value heads": frozenset({"kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads"}),
    "layers": frozenset({"layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"}),
    "experts": frozenset({"experts", "n_experts", "num_experts", "num_local_experts"}),
    "positions": frozenset(
        {"block", "block_size", "seq_len", "seq_length", "sequence_length", "context_length"}
    ),
    "samples": frozenset({"batch", "batch_size", "micro_batch", "micro_batch_size"}),
    "features": frozenset({"width", "dim", "d_model", "n_embd", "hidden_size", "embed_dim"}),
    "characters or tokens": frozenset({"vocab", "vocab_size", "vocabulary", "n_vocab"}),
}
"""Counted things → names of options and constants with their number."""


@dataclass(frozen=True, slots=True)
class Size:
    """A number in the script."""

    count: int
    what: str
    name: str
    """Name of the option or constant."""


def check_sizes(
    sources: Sequence[str | bytes | None], args: Sequence[str], mesh: Mapping[str, int], preset: Preset
) -> Iterator[Finding]:
    """Check the model's sizes against the mesh. Never raises.

    `sources`: the script and its imported files from the same folder. `args`: the script's arguments.
    """
    scripts = list(_parsed(sources))
    if any(script.find(PARALLELIZE, COPY) for script in scripts):
        sizes = dict(_sizes(scripts, args))
        yield from _tensor(sizes, mesh, preset)
        yield from _others(sizes, mesh, preset)


def _parsed(sources: Sequence[str | bytes | None]) -> Iterator[Script]:
    for source in sources:
        try:
            if source is not None:
                yield parse(source)
        except Unreadable:
            continue


def _sizes(scripts: Sequence[Script], args: Sequence[str]) -> Iterator[tuple[str, Size]]:
    """Yield sizes from the script's options, or from its constants if there is no option."""
    by_script = [Values(script, args) for script in scripts]
    for what, names in SIZE_NAMES.items():
        numbers = _options(by_script, names) or _constants(by_script, names)
        if len(numbers) == 1 and (count := _number(numbers[0][1].literal)):
            yield what, Size(count, what, numbers[0][0])


def _options(by_script: Sequence[Values], names: Container[str]) -> list[tuple[str, Value]]:
    found = []
    for values in by_script:
        options = [option for option in values.options if option.dest in names]
        found += [(option.name, values.of_option(option)) for option in options[:2]]
    return found


def _constants(by_script: Sequence[Values], names: Container[str]) -> list[tuple[str, Value]]:
    found = []
    for values in by_script:
        for name, assigned in values.assigned.items():
            if name.lower() in names and len(assigned) == 1:
                found.append((name, values.of(assigned[0])))
    return found


def _number(value: object) -> int:
    """Return a number above 0, else 0."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        return int(value)
    return value if type(value) is int and value > 0 else 0


def _tensor(sizes: Mapping[str, Size], mesh: Mapping[str, int], preset: Preset) -> Iterator[Finding]:
    tp, cp = mesh.get("tp", 1), mesh.get("cp", 1)
    for what in ("heads", "key-value heads"):
        yield from _divided(sizes.get(what), "tp", tp)
    features, heads = sizes.get("features"), sizes.get("heads")
    if features and heads and features.count % heads.count:
        ratio = _ratio(features.count, heads.count)
        text = f"{features.count} {features.what} cannot be divided by {heads.count} heads: {ratio}."
        remedy = (
            f"Give a multiple of {heads.count} with {features.name}, or another number of {heads.name}."
        )
        yield issue("L44", features.name, text, value=str(features.count), remedy=remedy)
    yield from _divided(sizes.get("positions"), "cp", cp)
    if preset.mesh.sequence_parallel and tp > 1 and not (sizes.get("positions") or _NONE).count % cp:
        yield from _divided(sizes.get("positions"), "tp", tp, of=cp)


def _others(sizes: Mapping[str, Size], mesh: Mapping[str, int], preset: Preset) -> Iterator[Finding]:
    pp, layers = mesh.get("pp", 1), sizes.get("layers")
    yield from _divided(sizes.get("experts"), "ep", mesh.get("ep", 1))
    if layers and layers.count < pp:
        text = f"{layers.count} layers cannot be cut into {pp} stages (pp {pp}): each needs one."
        remedy = f"Give {pp} layers or more with {layers.name}, or set mesh.pp to {layers.count} or less."
        yield issue("L44", "mesh.pp", text, value=str(pp), remedy=remedy)
    if pp > 1:
        yield from _microbatches(sizes.get("samples"), pp, preset)


def _microbatches(samples: Size | None, pp: int, preset: Preset) -> Iterator[Finding]:
    """Check that the samples of a pass can be cut into the pipeline's microbatches."""
    micro = preset.batch.micro or (samples.count if samples else 0)
    pieces = preset.mesh.microbatches or 2 * pp
    whole = micro * preset.batch.accumulation
    if whole % pieces:
        text = f"{whole} samples cannot be cut into {pieces} microbatches: {_ratio(whole, pieces)}."
        by = samples.name if samples and not preset.batch.micro else "batch.micro"
        remedy = f"Give a multiple of {pieces} samples with {by}, or change mesh.microbatches."
        yield issue("L44", "mesh.microbatches", text, value=str(pieces), remedy=remedy)


_NONE = Size(0, "", "")


def _divided(size: Size | None, dimension: str, ranks: int, of: int = 1) -> Iterator[Finding]:
    """Check that `ranks` divide a size. `of`: parts that the size is cut into first."""
    count = size.count // of if size else 0
    if size is None or ranks < 2 or count % ranks == 0:
        return
    text = f"{count} {size.what} cannot be divided by {dimension} {ranks}: {_ratio(count, ranks)}."
    fitting = [n for n in range(1, min(count, 64) + 1) if count % n == 0]
    others = ", ".join(map(str, fitting[:-1])) + f" or {fitting[-1]}" if len(fitting) > 1 else "1"
    remedy = f"Give a multiple of {ranks * of} with {size.name}, or set mesh.{dimension} to {others}."
    yield issue("L44", f"mesh.{dimension}", text, value=str(ranks), remedy=remedy)


def _ratio(count: int, parts: int) -> str:
    return f"{count} / {parts} = {count / parts:.4g}"


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
    calls: list[tuple[str, int, bool]] = field(default_factory=list)
    """Full name, line, and True if an `if` decides about the call."""
    mentioned: set[str] = field(default_factory=set)
    """Last parts of all attributes and names."""
    gpu_calls: Sequence[GuardedCall] = ()


def inspect(source: str | bytes) -> ScriptContents:
    """Analyse a script. Raises Unreadable."""
    return _contents(parse(source))


@functools.lru_cache(maxsize=MOST_FILES + 14)
def _contents(script: Script) -> ScriptContents:
    names = Names(script.tree)
    seen = ScriptContents(script, names, gpu_calls=gpu_calls.calls(script.tree, names))
    for node, decided in nodes(script.tree.module):
        seen.writes.extend(writes(node, seen.names, decided))
        read = reads(node, seen.names)
        if read:
            seen.reads.add(read)
        if isinstance(node, ast.Call):
            seen.calls.append((seen.names.full(node.func), node.lineno, decided))
        if isinstance(node, ast.Attribute):
            seen.mentioned.add(node.attr)
        elif isinstance(node, ast.Name):
            seen.mentioned.add(node.id)
    seen.writes.sort(key=lambda var: var.line)
    del seen.writes[lint_rules.MOST :]
    seen.calls.sort(key=lambda call: call[1])
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
        _gpu,
        _old,
        _passes,
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
    if all(full not in SPAWNS for full, _, _ in seen.calls):
        names |= set(RENDEZVOUS)  # otherwise the ranks that the script starts need these variables
    for var in seen.writes:
        if var.gentle or var.name not in names:
            continue
        where, several = f"{file}:{var.line}", (facts.nnodes or 1) > 1
        if several and var.name == "MASTER_ADDR" and HERE.fullmatch(str(var.value)):
            text = f"{var.name} becomes {var.value} on every node: the nodes do not find each other."
            yield issue("L23", where, text, value=var.name)
        else:
            text = f"{var.name} is overwritten, which the launcher has set for this rank."
            yield issue("L23", where, text, value=var.name, severity="warning")


def _spawns(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    if (facts.nproc or 1) < 2:
        return
    for full, line, decided in seen.calls:
        if full in SPAWNS and not decided:
            text = f"Each of the {facts.nproc} ranks of a node starts ranks of its own here."
            yield issue("L24", f"{file}:{line}", text, value=full)


def _own(seen: ScriptContents) -> Iterator[tuple[str, str, int]]:
    """Yield strategy, description and line of each strategy that the script applies itself."""
    for full, line, _ in seen.calls:
        kind, what = wraps(full)
        if kind:
            yield kind, what, line


def _strategy(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    own = list(_own(seen))
    obeys = any(full.endswith("parallelize.parallelize") for full, _, _ in seen.calls)
    if facts.strategy is None or obeys or not own:
        return
    same = {facts.strategy, *(("ddp",) if facts.strategy == "zero1" else ())}
    if not same & {kind for kind, _, _ in own}:
        _, what, line = own[0]
        text = f"The script {what}: preset {facts.preset} ({facts.strategy}) does not change that."
        yield issue("L25", f"{file}:{line}", text, value=own[0][0])


def check_imported(source: str | bytes, file: str, facts: ScriptFacts) -> list[Finding]:
    """Check an imported file: a strategy that differs from the preset's, and the use of GPUs. Never raises."""
    try:
        seen = inspect(source)
    except Unreadable as error:
        return [_unread(file, str(error), error.line)]
    taken = _without_gpu(seen, file, facts)
    return [*_strategy(seen, file, facts), *(replace(hit, severity="warning") for hit in taken)]


def fills_in(seen: ScriptContents) -> bool | None:
    """Return True if a library replaces DeepSpeed's "auto" for this script, or None if unknown."""
    if any(full == "deepspeed.initialize" for full, _, _ in seen.calls):
        return False
    tops = {module.split(".")[0] for module in seen.names.imported}
    return True if tops & {"accelerate", *TRAINERS} else None


def _gpu(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    yield from _without_gpu(seen, file, facts)
    yield from gpu_calls.global_rank(seen.gpu_calls, Values(seen.script, ()), file, facts.nnodes)


def _without_gpu(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    if facts.gpus is False:
        yield from gpu_calls.without_gpu(seen.gpu_calls, "is_available" in seen.mentioned, file)


WRAPPERS = frozenset({"DDP", "FSDP", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"})
"""Names of torch's wrappers."""


def _old(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    """Report FSDP1, and wrappers that are not imported."""
    for full, line, _ in seen.calls:
        if wraps(full)[0] == "fsdp1":
            text = "FullyShardedDataParallel is FSDP1, which torch has deprecated: FSDP2 is fully_shard."
            yield issue("L51", f"{file}:{line}", text, value=full, remedy="")
            break
    unbound = WRAPPERS - _bound(seen.script.tree)
    for node in seen.script.tree.of(ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in unbound:
            text = f"{node.func.id} is called here, and nothing imports or defines it: distui does not know what it is."
            yield issue("L52", f"{file}:{node.lineno}", text, value=node.func.id)
            return


def _bound(tree: ScriptTree) -> frozenset[str]:
    """Return the names that a script binds, and all of WRAPPERS if a star import may bind them."""
    names: set[str] = set()
    for node in tree.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return frozenset(names | WRAPPERS if "*" in names else names)


QUIET = frozenset(
    {"no_sync", "set_requires_gradient_sync", "require_backward_grad_sync", "set_is_last_backward"}
)
"""Names that show that a script exchanges gradients only in its last pass."""


def _passes(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    """Report gradients that are exchanged in every pass, although only every n-th pass ends with an optimizer step."""
    kinds = {kind for kind, _, _ in _own(seen)}
    if not kinds & {"ddp", "fsdp1", "fsdp2"} or "deepspeed" in kinds or QUIET & seen.mentioned:
        return
    backward, step = _method(seen.script.tree, "backward"), _method(seen.script.tree, "step")
    for loop in seen.script.tree.of(ast.For, ast.While):
        passes = _within(loop.body, backward)
        if passes and any(_within([node], step) for node in filter(_runs_every_nth, loop.body)):
            text = "Every pass exchanges the gradients, and the optimizer steps only every n-th time."
            yield issue("L53", f"{file}:{passes[0][0]}", text, value="backward()")
            return


Position = tuple[int, int]
"""Line and column."""


def _method(tree: ScriptTree, name: str) -> list[Position]:
    """Return the positions of calls to methods of this name, in source order."""
    called = (
        call
        for call in tree.of(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == name
    )
    return sorted((call.lineno, call.col_offset) for call in called)


def _within(body: Sequence[ast.stmt], positions: Sequence[Position]) -> Sequence[Position]:
    """Return the sorted positions that lie within consecutive statements."""
    first, last = body[0], body[-1]
    end = (last.end_lineno or last.lineno, last.end_col_offset or 0)
    begin = bisect_left(positions, (first.lineno, first.col_offset))
    return positions[begin : bisect_left(positions, end)]


def _runs_every_nth(node: ast.stmt) -> bool:
    """Return True for an `if` that holds only every n-th time: `if (i + 1) % n == 0`."""
    parts = ast.walk(node.test) if isinstance(node, ast.If) else ()
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in parts)


def _alone(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    tops = {module.split(".")[0] for module in seen.names.imported}
    trains = next((line for full, line, _ in seen.calls if full.startswith("torch.optim.")), None)
    if facts.world < 2 or trains is None or _is_distributed(seen) or not tops <= ALONE or any(_own(seen)):
        return
    text = f"{facts.world} ranks, and nothing here averages gradients: each trains a model of its own."
    yield issue("L26", f"{file}:{trains}", text)


def _is_distributed(seen: ScriptContents) -> bool:
    if any(module.startswith("torch.distributed") for module in seen.names.imported):
        return True
    parallel = ("torch.nn.parallel", "torch.nn.Data")
    return any("torch.distributed" in full or full.startswith(parallel) for full, _, _ in seen.calls)


def _left_open(seen: ScriptContents, file: str, facts: ScriptFacts) -> Iterator[Finding]:
    line = next(
        (line for full, line, _ in seen.calls if full.endswith("distributed.init_process_group")), None
    )
    if line is not None and "destroy_process_group" not in seen.mentioned:
        text = "The process group is made here and never destroyed: torch warns, and the end of a run can hang."
        yield issue("L27", f"{file}:{line}", text, value="init_process_group")


def nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node, and True if an `if` (except `if __name__ == "__main__"`) or an `except` decides about it."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, decided = stack.pop()
        yield node, decided
        inside = decided or (
            isinstance(node, ast.If | ast.IfExp | ast.ExceptHandler | ast.Match) and not _is_main(node)
        )
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]


def _is_main(node: ast.AST) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


@dataclass(frozen=True, slots=True)
class Write:
    """An environment variable that the script sets."""

    name: str
    value: str | None
    """None for a computed value."""
    line: int
    gentle: bool
    """True if an existing value stays, or an `if` decides."""


def writes(node: ast.AST, names: Names, decided: bool) -> Iterator[Write]:
    """Yield the variables that one node sets in os.environ."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and names.full(target.value) == "os.environ":
                yield from _write(target.slice, node.value, node.lineno, decided)
    elif isinstance(node, ast.Call):
        full = names.full(node.func)
        if full in ("os.environ.setdefault", "os.putenv") and len(node.args) == 2:
            yield from _write(
                node.args[0], node.args[1], node.lineno, decided or full.endswith("setdefault")
            )
        elif full == "os.environ.update":
            yield from _updates(node, decided)


def _updates(call: ast.Call, decided: bool) -> Iterator[Write]:
    for argument in call.args[:1]:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                yield from _write(key, value, value.lineno, decided)
    for word in call.keywords:
        if word.arg:
            yield from _write(ast.Constant(word.arg), word.value, word.value.lineno, decided)


def _write(key: ast.expr | None, value: ast.expr, line: int, gentle: bool) -> Iterator[Write]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        literal = str(value.value) if isinstance(value, ast.Constant) else None
        yield Write(key.value, literal, line, gentle)


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
