"""The preset: its parts, the schema of its fields, and the help texts of its fields.

The docstrings of the fields are help texts of the screens: see `help_of`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import types
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from . import nccl
from .finding import PresetError
from .spelling import nearest_or_all

StrategyKind = Literal["single", "ddp", "zero1", "fsdp1", "fsdp2", "deepspeed"]
Dtype = Literal["fp32", "bf16", "fp16"]
Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
"""FSDP1's names. Strategy.sharding describes them."""
Offload = Literal["none", "cpu", "nvme"]

LAYERS = ("activation_checkpointing", "compile")
DDP_OPTIONS = (
    "bucket_cap_mb",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "device_mesh",
    *LAYERS,
)
STRATEGY_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "single": LAYERS,
    "ddp": (*DDP_OPTIONS, "powersgd_rank"),
    "zero1": DDP_OPTIONS,
    "fsdp1": ("sharding", "wrap", "limit_all_gathers", "cpu_offload", *LAYERS),
    "fsdp2": ("reshard_after_forward", "wrap", "cpu_offload", *LAYERS),
    "deepspeed": ("stage", "offload_optimizer", "offload_param", "nvme_path"),
}
"""Options of Strategy that act in each kind. zero1 is DDP with a partitioned optimizer."""
MESH_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "ddp": ("pp", "ep", "cp", "schedule", "microbatches"),
    "zero1": ("cp",),
    "fsdp1": ("dp_replicate",),
    "fsdp2": ("pp", "dp_replicate", "cp", "tp", "sequence_parallel", "schedule", "microbatches"),
    "deepspeed": (),
}
"""Fields of Mesh that act in each kind of Strategy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How the model is spread over the ranks."""

    kind: StrategyKind = "ddp"
    """"single" one process; "ddp" a replica a rank; "zero1" DDP with the optimizer state in shards
    (`ZeroRedundancyOptimizer`); "fsdp1" `FullyShardedDataParallel`; "fsdp2" parameters, gradients and
    optimizer state in shards (`fully_shard`); "deepspeed" a ZeRO stage of DeepSpeed."""
    bucket_cap_mb: int | None = None
    """MiB of gradients that one all-reduce takes together (ddp, zero1). None: torch's own choice."""
    find_unused_parameters: bool = False
    """Look each step for parameters that took no part (ddp, zero1); costs a walk over the graph."""
    gradient_as_bucket_view: bool = False
    """Gradients are views into the all-reduce buckets (ddp, zero1); saves one copy of the gradients."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order (ddp, zero1)."""
    reshard_after_forward: bool | int = True
    """fsdp2: true frees the gathered parameters after forward (least memory), false keeps them until
    backward (one all-gather less), a number re-shards to that many ranks."""
    device_mesh: bool = False
    """ddp, zero1: hand DDP a DeviceMesh instead of the default process group."""
    powersgd_rank: int | None = None
    """ddp: after its first 1,000 steps gradients travel as matrices of so low a rank (PowerSGD), which loses a little of
    each step and adds it in the next. None: whole."""
    sharding: Sharding = "FULL_SHARD"
    """fsdp1: FULL_SHARD divides parameters, gradients and optimizer state; SHARD_GRAD_OP the latter two;
    NO_SHARD nothing; HYBRID_SHARD divides inside a node and replicates over nodes, _ZERO2 without parameters."""
    wrap: tuple[str, ...] = ()
    """fsdp1, fsdp2: class names of the layers that are gathered as one. Empty: the members of module lists."""
    limit_all_gathers: bool = True
    """fsdp1: the CPU waits rather than ask for more than two gathered layers ahead."""
    cpu_offload: bool = False
    """fsdp1, fsdp2: parameters, gradients and optimizer state rest in host memory; slow, for what fits nowhere else."""
    activation_checkpointing: bool = False
    """Compute the activations of each layer again in backward (not deepspeed): much less memory, about a third more
    computation."""
    compile: bool = False
    """torch.compile of each layer (not deepspeed): some minutes at the first step, then faster steps."""
    stage: Literal[0, 1, 2, 3] = 2
    """deepspeed: ZeRO stage. 1 divides the optimizer state, 2 the gradients too, 3 the parameters too."""
    offload_optimizer: Offload = "none"
    """deepspeed: where the optimizer state rests, "cpu" host memory or "nvme" a disk at `nvme_path`."""
    offload_param: Offload = "none"
    """deepspeed, stage 3: where the parameters rest."""
    nvme_path: str = "/local_nvme"
    """deepspeed: folder of the states and parameters offloaded to "nvme", on a local disk of every node."""

    def extras(self) -> tuple[str, ...]:
        """Return the enabled options that do more than distribute the model."""
        return tuple(name for name in (*LAYERS, "powersgd_rank") if getattr(self, name))

    def options(self) -> dict[str, object]:
        """Return this kind's options without None and disabled layer options: the arguments of `parallelize()`."""
        pairs = ((name, getattr(self, name)) for name in STRATEGY_OPTIONS[self.kind])
        return {name: value for name, value in pairs if value is not None and (value or name not in LAYERS)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """How the ranks are arranged: sizes of the named dimensions. Data parallelism has the ranks that are left."""

    pp: int = 1
    """Pipeline stages: the layers are cut into so many pieces, one after the other."""
    dp_replicate: int = 1
    """fsdp1, fsdp2: so many replicas, each divided over the ranks that are left (HSDP)."""
    ep: int = 1
    """ddp: the experts of each mixture-of-experts layer are divided over so many ranks."""
    cp: int = 1
    """Ranks that share one sequence, each with a piece of it."""
    tp: int = 1
    """fsdp2: ranks that share each matrix product. Wants NVLink: at most the ranks of a node."""
    sequence_parallel: bool = False
    """With `tp`: norms and residuals are divided along the sequence; less memory for activations."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """With `pp`: "gpipe" all forward passes, then all backward passes; "1f1b" in turn, less memory."""
    microbatches: int | None = None
    """With `pp`: pieces of each batch; the pipeline idles (pp-1)/(microbatches+pp-1) of the time. None: 2 × pp."""

    @staticmethod
    def takers(option: str) -> list[str]:
        """Return the kinds of strategy that support a field of this class."""
        return [kind for kind, options in MESH_OPTIONS.items() if option in options]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """How many samples one optimizer step sees."""

    micro: int | None = None
    """Samples that a rank takes at once. None: as the script says."""
    accumulation: int = 1
    """Backward passes before each optimizer step."""
    total: int | None = None
    """Samples of one optimizer step over all ranks, checked: micro × accumulation × data-parallel ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Number formats inside the model."""

    param: Dtype = "fp32"
    """Format in which the forward and backward pass compute."""
    reduce: Dtype = "fp32"
    """Format in which gradients are summed over the ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """How torchrun starts and stops the ranks."""

    grace_s: float = 30.0
    """Seconds between SIGTERM and SIGKILL when the ranks are stopped."""
    save_on: str = ""
    """What asks the script to save: "SIGUSR1", or "FILE:PATH" of a file that is touched; "": nothing does."""
    monitor_interval_s: float = 0.1
    """Seconds between two looks of the launcher at its ranks."""
    args: tuple[str, ...] = ()
    """Further arguments for the launcher, before the script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """How many nodes and ranks."""

    nnodes: int = 1
    """Nodes."""
    nnodes_min: int | None = None
    """An elastic run goes on with as few nodes. None: `nnodes`, always."""
    nproc_per_node: int | Literal["gpu", "cpu", "auto"] = "auto"
    """Ranks on each node: a number, "gpu" one a GPU, "cpu" one a core, "auto" gpu where there are GPUs,
    else cpu."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nccl:
    """Settings of NCCL and of torch's use of it."""

    env: Mapping[str, str] = field(default_factory=dict)
    """NCCL_*, TORCH_NCCL_* and TORCH_FR_* variables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """When the worker group starts again after a rank failed."""

    limit: int = 3
    """Failures in a row after which the ranks restart; one more ends the run. 0: never restart."""
    backoff_s: float = 1.0
    """Seconds before the first restart; doubled with each further failure."""
    backoff_max_s: float = 60.0
    """Upper bound of that wait, seconds."""
    reset_after_s: float = 600.0
    """Seconds without failure after which the count starts again at 0."""
    always: bool = False
    """Restart also after failures that would come again: a missing module, the same exception at the same step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One named way to run a script."""

    name: str
    """How the user calls it: `distui launch NAME`."""
    title: str = ""
    """A few words for the list."""
    summary: str = ""
    """When to take it, in a sentence or two."""
    strategy: Strategy = field(default_factory=Strategy)
    """How the model is spread over the ranks."""
    mesh: Mesh = field(default_factory=Mesh)
    """How the ranks are arranged."""
    batch: Batch = field(default_factory=Batch)
    """How many samples a step sees."""
    precision: Precision = field(default_factory=Precision)
    """Number formats."""
    launcher: Launcher = field(default_factory=Launcher)
    """What starts the ranks."""
    topology: Topology = field(default_factory=Topology)
    """How many nodes and ranks."""
    nccl: Nccl = field(default_factory=Nccl)
    """NCCL's settings."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    """What happens after a failure."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment of every rank."""
    hook: bool = True
    """Whether the hook is injected into the ranks."""
    hosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pattern of host names (as in "gpu0?") → variables for the ranks of only those nodes; they win over `env`."""
    deepspeed: Mapping[str, object] = field(default_factory=dict)
    """Further keys of DeepSpeed's configuration, nested as in its JSON; none may contradict a field."""
    accelerate: Mapping[str, object] = field(default_factory=dict)
    """Further keys of accelerate's YAML; none may contradict a field."""
    sky: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the SkyPilot task; they win over what the fields make."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A preset with the origin of each of its values."""

    preset: Preset
    origins: Mapping[str, str] = field(default_factory=dict)
    """Field path ("strategy.kind", "env.OMP_NUM_THREADS") → file or option that set it last.

    Default values have no entry.
    """
    sources: tuple[str, ...] = ()
    """The files that define the preset, except the builtin ones: "user FILE", "project FILE"."""
    notes: tuple[str, ...] = ()
    """One sentence per file that was found and ignored."""


FREE = ("nccl", "env")
"""Tables that accept any variable name. Their values become texts."""

NESTED = ("hosts", "deepspeed", "accelerate", "sky")
"""Tables of tables with any keys: variables per host, and configurations of other programs."""

LEAST: Mapping[str, float] = {
    "strategy.stage": 0,
    "launcher.grace_s": 0,
    "launcher.monitor_interval_s": 0.01,
    "restart.limit": 0,
    "restart.backoff_s": 0,
    "restart.backoff_max_s": 0,
    "restart.reset_after_s": 0,
}
"""Smallest number that a field accepts, if it is not 1."""

Value = str | bool | int | float | tuple[str, ...] | Mapping[str, Any] | list[Any]
"""Types of field values. Mappings and lists occur only in NESTED."""


@functools.cache
def _part_types() -> Mapping[str, Any]:
    """Return the type of each part of a preset by its name. Evaluating annotations costs half of a load."""
    return get_type_hints(Preset)


@functools.cache
def fields() -> Mapping[str, Any]:
    """Return the type of each field with a fixed name, by its path ("strategy.kind", "hook")."""
    types: dict[str, Any] = {}
    for name, hint in _part_types().items():
        if name in ("name", *FREE, *NESTED):
            continue
        if dataclasses.is_dataclass(hint):
            types |= {f"{name}.{inner}": kind for inner, kind in get_type_hints(hint).items()}
        else:
            types[name] = hint
    return types


@functools.cache
def tables() -> tuple[str, ...]:
    """Return the names of the tables of a preset file, in order."""
    return (*dict.fromkeys(path.split(".")[0] for path in fields() if "." in path), *FREE, *NESTED)


def accept(path: str, value: object, where: str) -> Value:
    """Convert `value` to the type of the field `path`. `where` names the file in the text of a PresetError."""
    table, _, key = path.partition(".")
    if key and table in (*FREE, "hosts", *NESTED):
        return _accept_entry(path, value, where)
    if path not in fields():
        raise PresetError(f"{where}: {path} is not a field of a preset{nearest_or_all(path, fields())}")
    hint = fields()[path]
    if isinstance(value, list):
        value = tuple(value)
    if not fits(hint, value):
        raise PresetError(f"{where}: {path} takes {words(hint)}, not {show(value)}")
    least = LEAST.get(path, 1)
    if isinstance(value, int | float) and not isinstance(value, bool) and value < least:
        raise PresetError(f"{where}: {path} takes {least:g} or more, not {show(value)}")
    return float(value) if hint is float else value  # type: ignore[arg-type,return-value]


def _accept_entry(path: str, value: object, where: str) -> Value:
    """Accept an entry of a table whose keys the user chooses."""
    table, _, key = path.partition(".")
    if table in FREE:
        return _accept_variable(table, key, value, where)
    return _accept_host(path, value, where) if table == "hosts" else _accept_nested(path, value, where)


def _accept_variable(table: str, variable: str, value: object, where: str) -> str:
    if not variable.replace("_", "").isalnum():
        name = f"{table}.{variable!a}"
        raise PresetError(
            f"{where}: {name} is not a valid name of an environment variable: write NAME = VALUE"
        )
    if not isinstance(value, str | int | float):
        raise PresetError(f"{where}: {table}.{variable} takes a text or a number, not {show(value)}")
    text = variable_text(value)
    problem = nccl.error_in(variable, text) if table == "nccl" else None
    if problem:
        raise PresetError(f"{where}: {problem}")
    return text


def variable_text(value: object) -> str:
    """Return the text of an environment variable: true is 1, false is 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _accept_host(path: str, value: object, where: str) -> dict[str, str]:
    """Convert the variables for one pattern of host names."""
    if not isinstance(value, Mapping):
        raise PresetError(
            f"{where}: {path} is a table of variables: write [{path}], and NAME = VALUE below"
        )
    return {
        name: _accept_variable("nccl" if nccl.covers(name) else path, name, part, where)
        for name, part in value.items()
    }


def _accept_nested(path: str, value: object, where: str) -> Value:
    """Accept the types of JSON. TOML's dates are refused."""
    if isinstance(value, Mapping):
        return {str(key): _accept_nested(f"{path}.{key}", part, where) for key, part in value.items()}
    if isinstance(value, list):
        return [_accept_nested(f"{path}[{at}]", part, where) for at, part in enumerate(value)]
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise PresetError(
        f"{where}: {path} is {value}: write a text, a number, true or false, a list or a table"
    )


def merged(below: Value, above: Value) -> Value:
    """Merge two values of a NESTED table, tables key by key."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys()}
    return {**below, **above, **both}


def without(table: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    """Return a copy of a table without some of its keys."""
    return {key: value for key, value in table.items() if key not in keys}


def belongs(values: Mapping[str, Value], origins: Mapping[str, str]) -> None:
    """Raise PresetError if an option is set that the preset's strategy ignores."""
    kind = str(values.get("strategy.kind", Strategy().kind))
    for path in values:
        option = path.removeprefix("strategy.")
        if option in (path, "kind") or option in STRATEGY_OPTIONS[kind]:  # the plan checks the mesh
            continue
        takers = ", ".join(name for name, options in STRATEGY_OPTIONS.items() if option in options)
        raise PresetError(
            f"{origins[path]}: {path} has no effect in strategy {kind}: remove it, or take {takers}"
        )


def fits(hint: Any, value: object) -> bool:
    """Return True if `value` is of the type `hint`. Supports only the types of this module."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(part, value) for part in get_args(hint))
    if origin is Literal:
        return (type(value), value) in [(type(choice), choice) for choice in get_args(hint)]
    if origin is tuple:
        return isinstance(value, tuple) and set(map(type, value)) <= {str}
    if isinstance(value, bool):  # a subclass of int
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, hint)


def words(hint: Any) -> str:
    """Describe the type `hint` in words."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return ", or ".join(words(part) for part in get_args(hint) if part is not type(None))
    if origin is Literal:
        *most, last = (show(choice) for choice in get_args(hint))
        return f"{', '.join(most)} or {last}" if most else last
    if origin is tuple:
        return "a list of texts"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names[hint]


def show(value: object) -> str:
    """Return a value from a file as a sentence quotes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    return f'"{value}"' if isinstance(value, str) else str(value)


def build(name: str, values: Mapping[str, Value]) -> Preset:
    """Build the preset `name` from values that `accept` returned."""
    hints = _part_types()
    parts: dict[str, Any] = {key: {} for key in tables()}
    plain: dict[str, Any] = {}
    for path, value in values.items():
        table, _, inner = path.partition(".")
        if inner:
            parts[table][inner] = value
        else:
            plain[table] = value
    env = parts.pop("env")
    plain |= {table: parts.pop(table) for table in NESTED}
    parts["nccl"] = Nccl(env=parts["nccl"])
    made: dict[str, Any] = {
        key: part if isinstance(part, Nccl) else hints[key](**part) for key, part in parts.items()
    }
    return Preset(name=name, env=env, **plain, **made)


def flat(preset: Preset) -> dict[str, Value | None]:
    """Return every value of `preset` by its path, without options of other strategies."""
    skipped = options_of(None) - options_of(preset.strategy.kind)
    values: dict[str, Value | None] = {}
    for path in fields():
        if path not in skipped:
            values[path] = functools.reduce(getattr, path.split("."), preset)  # type: ignore[assignment]
    values |= {f"nccl.{name}": value for name, value in sorted(preset.nccl.env.items())}
    values |= {f"env.{name}": value for name, value in sorted(preset.env.items())}
    for table in NESTED:
        values |= {f"{table}.{key}": value for key, value in getattr(preset, table).items()}
    return values


def options_of(kind: str | None) -> set[str]:
    """Return the paths of options that act in a kind of strategy, or in any kind for None."""
    kinds = STRATEGY_OPTIONS if kind is None else (kind,)
    return {f"strategy.{name}" for kind in kinds for name in STRATEGY_OPTIONS[kind]} | {
        f"mesh.{name}" for kind in kinds for name in MESH_OPTIONS[kind]
    }


def help_of(path: str) -> str:
    """Return the help text of a field ("strategy.kind") or table ("strategy") on one line, or "" if it is unknown.

    Variables and keys of tables with free names ("nccl.NCCL_ALGO") get the text of their table.
    """
    text = _texts().get(path)
    return text if text is not None else _texts().get(path.partition(".")[0], "")


@functools.cache
def _texts() -> Mapping[str, str]:
    """Return the help text of every field and table by its path, parsed from this module's source."""
    source = resources.files(__package__).joinpath("model.py").read_text("utf-8")
    classes = {
        node.name: dict(_fields(node)) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)
    }
    texts: dict[str, str] = {}
    for name, hint in _part_types().items():
        texts[name] = classes["Preset"][name]
        inner = classes.get(getattr(hint, "__name__", ""), {})
        texts |= {f"{name}.{field}": text for field, text in inner.items()}
    return texts


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the name and docstring of each field of a class."""
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield statement.target.id, " ".join(text.value.split())
