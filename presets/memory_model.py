"""What a memory estimate is asked about: the model and its batch, number formats, the device. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import PlanError
from .hardware import GB

CONTEXT_BYTES = 1.5 * GB
"""CUDA context, kernels and NCCL's buffers on each GPU: a rough constant."""
USABLE = 0.92
"""Share of a GPU's memory that an allocator fills before it fails for fragments."""
VOCABULARY = 32_000
"""Words of a model that says nothing else."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Bytes of model states for each parameter."""

    name: str
    weights: int
    gradients: int
    optimizer: int
    """Adam's two moments in 32 bit, and a 32 bit copy of the weights where there is one."""
    text: str


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format(name="bf16", weights=2, gradients=2, optimizer=8, text="bf16 weights, Adam in fp32"),
        Format(name="mixed", weights=2, gradients=2, optimizer=12,
               text="bf16 weights, Adam and a copy of the weights in fp32"),
        Format(name="fp32", weights=4, gradients=4, optimizer=8, text="all in fp32"),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What a device adds to what is computed on it."""

    context: float
    """Bytes before the first tensor."""
    foreach: bool
    """Whether torch's Adam updates all parameters at once by default, with a further copy of one moment meanwhile."""


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
    """Sequences that one GPU takes at once."""
    recompute: bool = False
    """Activation checkpointing of every layer."""
    outside: int | None = None
    """Parameters outside the layers. None: an embedding and a head of `vocab` × `hidden`."""
    largest: int | None = None
    """Parameters of the largest tensor. None: as usual."""

    @property
    def rest(self) -> int:
        """Parameters outside the layers."""
        usual = min(2 * self.vocab * self.hidden, self.parameters // 2)
        return usual if self.outside is None else self.outside

    @property
    def layer(self) -> float:
        """Parameters of one layer."""
        return (self.parameters - self.rest) / self.layers

    @property
    def tensor(self) -> float:
        """Parameters of the largest tensor, which nothing divides that hands out whole tensors."""
        usual = max(self.rest / 2, min(4 * self.hidden**2, self.layer))
        return usual if self.largest is None else self.largest


def parse_parameters(text: str) -> int:
    """ "7B", "350M", "1.3b", "124_000_000" → a number. Raises PlanError."""
    cleaned = text.strip().replace("_", "").replace(",", "").upper()
    unit = cleaned[-1:] if cleaned[-1:] in "KMBT" else ""
    try:
        number = float(cleaned.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1e15:  # also false for nan
        raise PlanError(f"--params {text}: write a number of parameters, as in 7B or 350M.")
    return round(number)


def shape(
    parameters: int, layers: int | None = None, hidden: int | None = None, vocab: int = VOCABULARY
) -> Shape:
    """A transformer of so many parameters; what is not given as usual models of its size have it.

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
