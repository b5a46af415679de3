"""How many ranks a plan starts, and on which backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .model import PlanError, Preset

CPU_RANKS_PER_CORE = 8
"""More ranks a core than this is taken for a typing error."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a topology comes to on one node."""

    nproc: int
    backend: Literal["nccl", "gloo"]
    notes: tuple[str, ...] = ()


def parse_nproc(text: int | str) -> int | Literal["gpu", "cpu", "auto"]:
    """A number of ranks or "gpu", "cpu", "auto". Raises PlanError."""
    match text:
        case "gpu" | "cpu" | "auto":
            return text
    try:
        number = int(text)
    except ValueError:
        raise PlanError(f"nproc_per_node {text!r} is neither a number nor gpu, cpu or auto.") from None
    if number < 1:
        raise PlanError(f"nproc_per_node {number} starts no rank: give 1 or more.")
    return number


def ranks(preset: Preset, gpus: int, cores: int) -> Ranks:
    """Ranks and backend of `preset` on a node with that many visible GPUs and cores. Raises PlanError."""
    nnodes, asked = preset.topology.nnodes, parse_nproc(preset.topology.nproc_per_node)
    if nnodes < 1:
        raise PlanError(f"nnodes {nnodes} starts nothing: give 1.")
    if nnodes > 1:
        raise PlanError(
            f"nnodes {nnodes} needs more than this machine, where distui starts its runs: give 1."
        )
    nproc = _number(asked, gpus, cores)
    if preset.strategy.kind == "single" and nproc > 1:
        raise PlanError(f"strategy single is one rank, not nproc_per_node {nproc}: take the preset ddp.")
    on_gpu = gpus > 0 and asked != "cpu"
    if on_gpu and nproc > gpus:
        raise PlanError(
            f"nproc_per_node {nproc} > {gpus} {_gpus(gpus)}: give at most {gpus}, "
            "or --env CUDA_VISIBLE_DEVICES= to run on CPU."
        )
    if not on_gpu and nproc > cores * CPU_RANKS_PER_CORE:
        most = cores * CPU_RANKS_PER_CORE
        raise PlanError(
            f"nproc_per_node {nproc} > {cores} cores × {CPU_RANKS_PER_CORE} = {most}: give at most {most}."
        )
    return Ranks(nproc, "nccl" if on_gpu else "gloo", _notes(gpus, asked, nproc))


def _number(asked: int | str, gpus: int, cores: int) -> int:
    if asked == "gpu" and not gpus:
        raise PlanError(
            "nproc_per_node gpu, but no GPU is visible on this machine: give a number, cpu or auto."
        )
    if asked == "gpu" or (asked == "auto" and gpus):
        return gpus
    return cores if isinstance(asked, str) else asked


def _notes(gpus: int, asked: int | str, nproc: int) -> tuple[str, ...]:
    if not gpus:
        ranks_of = f", {nproc} ranks (one a core)" if asked == "auto" and nproc > 1 else ""
        return (f"No GPU is visible on this machine: backend gloo{ranks_of}.",)
    if asked == "cpu":
        return (
            f"The ranks run on CPU as asked: backend gloo; the {_gpus(gpus)} of this machine stay idle.",
        )
    if nproc < gpus:
        return (f"Uses {nproc} of {gpus} GPUs.",)
    return ()


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"
