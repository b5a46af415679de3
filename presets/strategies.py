"""The strategies that advice compares, from the simplest on, each with the part of a shipped preset that it stands for.

Pure: a test compares them with the presets' files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .model import Mesh, Precision, Preset
from .model import Strategy as How


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStrategy:
    """One way to spread a model over the ranks, and how distui does it."""

    key: str
    title: str
    words: str
    """Of `distui launch`: a shipped preset and its options."""
    why: str
    preset: Preset
    """What of that preset memory depends on."""


def _preset(mesh: Mesh | None = None, precision: Precision | None = None, **how: Any) -> Preset:
    return Preset(name="", strategy=How(**how), mesh=mesh or Mesh(), precision=precision or Precision())


_HALF = Precision(param="bf16")

STRATEGIES: Sequence[MemoryStrategy] = (
    MemoryStrategy(key="single", title="one GPU", words="single", preset=_preset(kind="single"),
                   why="nothing is exchanged, nothing can go wrong"),
    MemoryStrategy(key="ddp", title="DDP", words="ddp", preset=_preset(kind="ddp", gradient_as_bucket_view=True),
                   why="a replica a rank and one all-reduce a step, the fastest"),
    MemoryStrategy(key="zero1", title="ZeRO-1", words="zero1",
                   preset=_preset(kind="zero1", gradient_as_bucket_view=True),
                   why="DDP with the optimizer's states in shards, the same traffic and much less memory"),
    MemoryStrategy(key="zero2", title="ZeRO-2", words="fsdp2-zero2",
                   preset=_preset(kind="fsdp2", reshard_after_forward=False),
                   why="gradients in shards, too; the weights are gathered once a step and kept until backward"),
    MemoryStrategy(key="zero3", title="ZeRO-3", words="fsdp2", preset=_preset(kind="fsdp2"),
                   why="everything in shards, the least memory and half as much traffic again")
)  # fmt: skip
"""What needs no more than data parallelism, from the simplest on."""

_OFFLOAD: Sequence[MemoryStrategy] = (
    MemoryStrategy(key="offload", title="ZeRO-3, host", words="fsdp2-offload",
                   preset=_preset(kind="fsdp2", cpu_offload=True),
                   why="all states rest in host memory and travel each step: several times slower"),
    MemoryStrategy(key="ds-cpu", title="DeepSpeed, host", words="ds-zero3-cpu",
                   preset=_preset(kind="deepspeed", stage=3, offload_optimizer="cpu", offload_param="cpu",
                                  precision=_HALF),
                   why="as fsdp2-offload, for scripts on DeepSpeed, Accelerate or the HF Trainer"),
    MemoryStrategy(key="ds-nvme", title="DeepSpeed, NVMe", words="ds-zero3-nvme",
                   preset=_preset(kind="deepspeed", stage=3, offload_optimizer="nvme", offload_param="nvme",
                                  precision=_HALF),
                   why="all states rest on a local disk of each node: very slow, for what has no room elsewhere")
)  # fmt: skip


def simple(ranks: int) -> list[MemoryStrategy]:
    """Those of STRATEGIES that make sense with so many ranks."""
    return [strategy for strategy in STRATEGIES if (strategy.key == "single") == (ranks == 1)]


def hybrid(nodes: int) -> MemoryStrategy:
    """Shards inside a node, a replica of them a node."""
    return MemoryStrategy(
        key="hsdp",
        title="HSDP",
        words="hsdp" + _set("dp_replicate", nodes, 2),
        preset=_preset(Mesh(dp_replicate=nodes), kind="fsdp2"),
        why="shards inside a node, and between nodes no more traffic than DDP has",
    )


def tensor(ranks: int) -> MemoryStrategy:
    """Each matrix divided over `ranks` of a node, the rest of it as ZeRO-3."""
    return MemoryStrategy(
        key="tp",
        title=f"ZeRO-3 + TP {ranks}",
        words="fsdp2-tp" + _set("tp", ranks, 2),
        preset=_preset(Mesh(tp=ranks), kind="fsdp2"),
        why="matrices and activations are divided inside a node, too; wants NVLink and a tp_plan",
    )


def pipeline(stages: int) -> MemoryStrategy:
    """The layers cut into stages; two pieces of a batch for each."""
    return MemoryStrategy(
        key="pp",
        title=f"PP {stages}",
        words="pp-1f1b" + _set("pp", stages, 2) + _set("microbatches", 2 * stages, 4),
        preset=_preset(Mesh(pp=stages, microbatches=2 * stages), kind="ddp"),
        why=f"stages exchange activations alone, for slow links; wants batches of {2 * stages} and a pp_plan",
    )


def offloaded() -> Iterator[MemoryStrategy]:
    """What rests outside the GPUs, the fastest first."""
    yield from _OFFLOAD


def of_preset(preset: Preset) -> MemoryStrategy:
    """A preset of any kind as a strategy."""
    title = preset.title or preset.name
    return MemoryStrategy(
        key=preset.name, title=title, words=preset.name, why=preset.summary, preset=preset
    )


def _set(name: str, value: int, shipped: int) -> str:
    return "" if value == shipped else f" --set mesh.{name}={value}"
