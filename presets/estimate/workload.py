"""Input of a memory estimate: model, batch, number formats, and GPUs by their common names. Pure."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..finding import PlanError
from ..known_names import known_names
from ..script_tree import read
from ..spelling import nearest
from ..text_formats import Unreadable

GB = 10**9
CONTEXT_BYTES = 1.5 * GB
"""CUDA context, kernels and NCCL's buffers per GPU, a rough constant."""
USABLE = 0.92
"""Share of a GPU's memory that the allocator can use before fragmentation causes a failure."""
VOCABULARY = 32_000
"""Default vocabulary size."""
FEWEST = 100_000
"""Smallest plausible number of parameters without a unit."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Bytes of model states per parameter."""

    name: str
    weights: float
    gradients: float
    optimizer: float
    """Adam's two moments, and an fp32 copy of the weights if there is one."""
    text: str
    compute: int | None = None
    """Bytes per number in forward and backward. None: the layout and the weights decide."""


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        # torch's AdamW creates its moments in the format of the weights, also under autocast and FSDP2's policy.
        Format(name="fp32", weights=4, gradients=4, optimizer=8, text="fp32 weights, gradients and Adam"),
        Format(name="bf16", weights=2, gradients=2, optimizer=4, text="bf16 weights, gradients and Adam"),
        Format(
            name="mixed",
            weights=2,
            gradients=2,
            optimizer=12,
            text="DeepSpeed's: 16-bit weights and gradients, Adam and a copy of the weights in fp32",
        ),
        Format(
            name="megatron",
            weights=2,
            gradients=4,
            optimizer=12,
            text="Megatron-LM's: 16-bit weights, the rest and a copy of the weights in fp32",
        ),
    )
}
"""tests/inrank/test_formats.py measures torch, tests/launchers/test_formats_of_libraries.py Accelerate and DeepSpeed.
Megatron-LM's are those of its documentation ("Distributed Optimizer")."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device's own memory use."""

    context: float
    """Bytes in use before the first tensor."""
    foreach: bool
    """True if torch's Adam updates all parameters at once by default, which needs another copy of one moment."""
    fused: bool = False
    """True if one kernel updates each parameter, which needs no copies."""


GPU = Device(context=CONTEXT_BYTES, foreach=True)
CPU = Device(context=0.0, foreach=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A decoder-only transformer and its batch."""

    parameters: int
    layers: int
    hidden: int
    vocab: int = VOCABULARY
    seq: int = 2048
    """Positions of a sequence."""
    micro_batch: int = 1
    """Sequences per GPU and pass."""
    recompute: bool = False
    """Activation checkpointing of every layer."""
    outside: int | None = None
    """Parameters outside the layers. None means an embedding and a head of `vocab` × `hidden`."""
    largest: int | None = None
    """Parameters of the largest tensor. None means the typical size."""
    experts: float = 0.0
    """Parameters inside experts, of all layers."""
    expert_count: int = 0
    """Experts of each mixture-of-experts layer. 0: a dense model."""
    trained: int | None = None
    """Parameters that are not frozen. None means all."""
    layer_kept: float = 0.0
    """Numbers per position and hidden unit that a layer keeps for backward. 0 means the typical count."""

    @property
    def trained_share(self) -> float:
        """Return the share of the parameters with gradients and optimizer states, below 1 for LoRA."""
        return 1.0 if self.trained is None else self.trained / self.parameters

    @property
    def rest(self) -> int:
        """Return the parameters outside the layers."""
        usual = min(2 * self.vocab * self.hidden, self.parameters // 2)
        return usual if self.outside is None else self.outside

    @property
    def layer(self) -> float:
        return (self.parameters - self.rest) / self.layers

    @property
    def tensor(self) -> float:
        """Return the parameters of the largest tensor, the smallest unit of division by whole tensors."""
        usual = max(self.rest / 2, min(4 * self.hidden**2, self.layer))
        return usual if self.largest is None else self.largest


def parse_parameters(text: str) -> int:
    """Parse "7B", "350M", "1.3b", "124_000_000" to a number. Raises PlanError."""
    cleaned = text.strip().replace("_", "").replace(",", "").upper()
    unit = cleaned[-1:] if cleaned[-1:] in "KMBT" else ""
    if not unit and cleaned.replace(".", "", 1).isdecimal() and 0 < float(cleaned) < FEWEST:
        raise PlanError(f"--params {text}: the unit is missing: write {cleaned}B or {cleaned}M")
    try:
        number = float(cleaned.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1e15:  # also false for nan
        raise PlanError(f"--params {text}: write a number of parameters, as in 7B or 350M")
    return round(number)


def shape(
    parameters: int, layers: int | None = None, hidden: int | None = None, vocab: int = VOCABULARY
) -> Shape:
    """Return a transformer with this many parameters. Missing dimensions get typical values.

    A layer has 12 h² parameters, and the usual hidden size is 128 times the number of layers (7B: 4096 × 32).
    """
    if hidden is None:
        free = (
            (parameters / (12 * layers)) ** 0.5 if layers else 128 * (parameters / (12 * 128**2)) ** (1 / 3)
        )
        step = 512 if free >= 2048 else 64
        hidden = max(64, step * round(free / step))
    if layers is None:
        layers = max(1, round((parameters - 2 * vocab * hidden) / (12 * hidden**2)))
    return Shape(parameters=parameters, layers=layers, hidden=hidden, vocab=vocab)


_ARGS = "write NAME=VALUE,NAME=VALUE, as in layers=3,width=96"
_DEFINES = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Pass,
    ast.Assert,
    ast.Raise,
)
"""Statements that define names in a module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Sizes of a model that was built on the meta device."""

    name: str
    """Name of the class or function."""
    parameters: int
    trainable: int
    layers: int
    """Outermost members of module lists, which FSDP gathers one by one."""
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
    experts: int = 0
    """Parameters of the parts that expert parallelism divides: those with `expert_parallel`."""
    expert_count: int = 0
    """Experts of each of these parts."""
    layer_kept: float = 0.0
    """Numbers per position and hidden unit that a layer keeps for backward, or 0 if the model did not run."""

    @property
    def text(self) -> str:
        """ "CharGPT: 353,792 parameters: embedding 18,432, 3 layers 335,520 (the largest 111,840), rest 12,608"."""
        layers = f"{self.layers} layers {self.blocks:,} (the largest {self.largest_layer:,})"
        frozen = self.parameters - self.trainable
        text = f"{self.name}: {self.parameters:,} parameters: embedding {self.embedding:,}, {layers}, rest {self.head:,}"
        text += f"; {frozen:,} are frozen" if frozen else ""
        return text + (
            "" if self.layer_kept else "; its activations are assumed to be a usual transformer's"
        )


def parse_script(text: str) -> tuple[str, str | None]:
    """Return path and name of "PATH[:NAME]". Raises PlanError."""
    path, colon, name = text.rpartition(":")
    if text and (not colon or "/" in name or name.endswith(".py")):
        return text, None
    if not path or not name.isidentifier():
        raise PlanError(
            f"--script {text}: write PATH, or PATH:NAME of a class or function in it, as in train.py:Model"
        )
    return path, name


def parse_model_args(text: str) -> dict[str, object]:
    """Return the values of "layers=3,width=96,activation=gelu". Raises PlanError."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError):
        call = None
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
        raise PlanError(f"--model-args {text}: {_ARGS}")
    values: dict[str, object] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise PlanError(f"--model-args {text}: {_ARGS}")
        values[keyword.arg] = _value(text, keyword.value)
    return values


def _value(text: str, node: ast.expr) -> object:
    """Return a literal, or a bare word as text. Raises PlanError."""
    if isinstance(node, ast.Name):
        return node.id
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        raise PlanError(f"--model-args {text}: {ast.unparse(node)} is not a plain value; {_ARGS}") from None
    if not isinstance(value, bool | int | float | str | list | tuple | dict | None):
        raise PlanError(f"--model-args {text}: {ast.unparse(node)} is not a plain value; {_ARGS}")
    return value


def acts_on_import(source: str | bytes) -> str | None:
    """Return why a script must not be imported to inspect its model, as the end of a sentence, or None.

    A script with actions at its top level, and without `if __name__ == "__main__":`, would train.
    """
    try:
        body = read(source).module.body
    except Unreadable as error:
        return str(error)
    if any(isinstance(node, ast.If) and _names_main(node.test) for node in body):
        return None
    line = next(_acting(body), None)
    if line is None:
        return None
    return f'would run when it is read (line {line}): put what trains under `if __name__ == "__main__":`'


def _names_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _acting(body: Iterable[ast.stmt]) -> Iterator[int]:
    """Yield the lines of statements that do more than define names."""
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
    """Return the shape of the counted model. Explicit values have priority. Raises PlanError if no layers are known."""
    layers, hidden = layers or counted.layers, hidden or counted.hidden
    if not layers or not hidden:
        missing = " and ".join(
            f"--{name}" for name, value in (("layers", layers), ("hidden", hidden)) if not value
        )
        raise PlanError(
            f"{counted.name} has no recognisable list of transformer layers: give {missing} to estimate its activations"
        )
    outside = counted.parameters - counted.blocks if counted.layers else None
    # Without an embedding the outputs are few classes, if the model did run.
    words = vocab or counted.vocab or (1 if counted.layer_kept else VOCABULARY)
    usual = shape(counted.parameters, layers, hidden, words)
    return replace(
        usual,
        outside=outside,
        largest=counted.largest,
        trained=counted.trainable,
        layer_kept=counted.layer_kept,
        experts=float(counted.experts),
        expert_count=counted.expert_count,
    )


def counted_from(answer: Mapping[str, object]) -> Counted:
    """Parse the answer of the training environment's interpreter. Raises PlanError."""
    try:
        return Counted(**answer)  # type: ignore[arg-type]
    except TypeError:
        raise PlanError("The training environment's interpreter did not print the model's sizes") from None


@functools.cache
def known_gpus() -> Mapping[str, int]:
    """Return the GB (10⁹ bytes) of each known GPU by its name in SkyPilot's catalogue."""
    known = known_names("gpus_by_memory")
    return {name: int(size) for size, names in known.items() for name in names}


_GPUS = re.compile(r"(?:(\d+)\s*[x×*]\s*)?([A-Za-z][A-Za-z0-9-]*)(?::(\d+))?")
_OWN_SIZE = re.compile(r"-(\d+)GB?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGpus:
    name: str
    count: int
    memory_gb: float
    """GB (10⁹ bytes) per GPU."""


def parse_gpus(text: str, memory_gb: float | None = None) -> NodeGpus:
    """Parse "8xA100-80GB" or "A100-80GB:8". `memory_gb` is for GPUs with an unknown name. Raises PlanError."""
    match = _GPUS.fullmatch(text.strip())
    counts = [int(part) for part in match.group(1, 3) if part is not None] if match else []
    if match is None or len(counts) > 1 or 0 in counts:
        raise PlanError(f"--gpus {text}: write COUNTxNAME, the count of one node, as in 8xA100-80GB")
    name = match[2].upper()
    memory = _memory_of(name) if memory_gb is None else memory_gb
    if memory is None:
        near = nearest(name, known_gpus())
        hint = f"did you mean {near}? Else give" if near else "give"
        raise PlanError(f"--gpus {text}: unknown GPU {match[2]}; {hint} its memory with --gpu-memory GB")
    return NodeGpus(name=name, count=next(iter(counts), 1), memory_gb=memory)


def _memory_of(name: str) -> int | None:
    size = _OWN_SIZE.search(name)
    return known_gpus().get(name) or (int(size[1]) if size else None)


def name_of_gpu(model: str) -> str:
    """Return "A100-80GB" for "NVIDIA A100-SXM4-80GB", or "" for an unknown GPU."""
    words = set(re.split(r"[\s-]+", model.upper().replace("GEFORCE ", "").replace("RTX ", "RTX")))
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    fitting = [name for name in known_gpus() if set(name.split("-")) <= words]
    if not fitting:
        return ""
    best = max(fitting, key=lambda name: (name.count("-"), len(name)))
    sold = next((int(size[:-2]) for size in sizes), known_gpus()[best])
    return best if abs(known_gpus()[best] / sold - 1) < 0.1 else ""
