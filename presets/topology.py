"""How many ranks a plan starts, and on which backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import PlanError
from .model import Preset

CPU_RANKS_PER_CORE = 8
"""More ranks a core than this is taken for a typing error."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a topology comes to on one node."""

    nproc: int
    """On one node."""
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


def parse_nnodes(text: int | str) -> tuple[int | None, int]:
    """Fewest and most nodes of "N" (fewest None) or "MIN:MAX", an elastic run. Raises PlanError."""
    low, colon, high = str(text).partition(":")
    try:
        fewest, most = int(low), int(high) if colon else int(low)
    except ValueError:
        raise PlanError(f"nnodes {text!r} is neither a number nor MIN:MAX: write 4, or 2:4.") from None
    if colon and not 1 <= fewest <= most:
        raise PlanError(f"nnodes {text} is no range of nodes: write MIN:MAX with 1 ≤ MIN ≤ MAX.")
    return (fewest if fewest < most else None), most


def check_nodes(preset: Preset, nodes: int | None) -> None:
    """Raises PlanError unless `nodes` machines (None: as many as asked for) can hold the preset."""
    nnodes, fewest = preset.topology.nnodes, preset.topology.nnodes_min
    if nnodes < 1:
        raise PlanError(f"nnodes {nnodes} starts nothing: give 1.")
    if fewest is not None and not 1 <= fewest <= nnodes:
        raise PlanError(f"nnodes_min {fewest} is not between 1 and nnodes {nnodes}: give one that is.")
    if nodes is None or nnodes <= nodes:
        return
    if nodes == 1:
        raise PlanError(
            f"nnodes {nnodes} needs more than this machine, where distui starts its runs: give 1."
        )
    raise PlanError(f"nnodes {nnodes} > {nodes} nodes that there are: give at most {nodes}.")


def ranks(preset: Preset, gpus: int, cores: int, nodes: int | None = 1) -> Ranks:
    """Ranks and backend of `preset` on each node, with that many visible GPUs and cores there.

    `nodes` there are, None: as many as asked for. Raises PlanError.
    """
    check_nodes(preset, nodes)
    where = "this machine" if nodes == 1 else "a node"
    asked = parse_nproc(preset.topology.nproc_per_node)
    nproc = _number(asked, gpus, cores, where)
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
    if preset.strategy.kind == "single" and preset.topology.nnodes > 1:
        raise PlanError(
            f"strategy single is one rank, not nnodes {preset.topology.nnodes}: take the preset ddp."
        )
    return Ranks(nproc, "nccl" if on_gpu else "gloo", _notes(gpus, asked, nproc, where))


def _number(asked: int | str, gpus: int, cores: int, where: str) -> int:
    if asked == "gpu" and not gpus:
        raise PlanError(
            f"nproc_per_node gpu, but no GPU is visible on {where}: give a number, cpu or auto."
        )
    if asked == "gpu" or (asked == "auto" and gpus):
        return gpus
    return cores if isinstance(asked, str) else asked


def _notes(gpus: int, asked: int | str, nproc: int, where: str) -> tuple[str, ...]:
    if not gpus:
        ranks_of = f", {nproc} ranks (one a core)" if asked == "auto" and nproc > 1 else ""
        return (f"No GPU is visible on {where}: backend gloo{ranks_of}.",)
    if asked == "cpu":
        return (f"The ranks run on CPU as asked: backend gloo; the {_gpus(gpus)} of {where} stay idle.",)
    if nproc < gpus:
        return (f"Uses {nproc} of {gpus} GPUs.",)
    return ()


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"
