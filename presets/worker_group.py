"""The ranks of a plan: their number on each node, and their backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .finding import PlanError
from .plurals import noun_form, plural

if TYPE_CHECKING:
    from .model import Preset

CPU_RANKS_PER_CORE = 8
"""Most ranks per core. A larger number is considered a typing error."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks and backend of a topology."""

    nproc: int
    """Ranks per node."""
    backend: Literal["nccl", "gloo"]
    notes: tuple[str, ...] = ()


def parse_nproc(text: int | str) -> int | Literal["gpu", "cpu", "auto"]:
    """Parse a number of ranks, or "gpu", "cpu", "auto". Raises PlanError."""
    match text:
        case "gpu" | "cpu" | "auto":
            return text
    try:
        number = int(text)
    except ValueError:
        raise PlanError(f"nproc_per_node {text!r} is not valid: write a number, gpu, cpu or auto") from None
    if number < 1:
        raise PlanError(f"nproc_per_node {number} starts no rank: give 1 or more")
    return number


def parse_nnodes(text: int | str) -> tuple[int | None, int]:
    """Return fewest and most nodes of "N" (fewest is None) or of an elastic "MIN:MAX". Raises PlanError."""
    low, colon, high = str(text).partition(":")
    try:
        fewest, most = int(low), int(high) if colon else int(low)
    except ValueError:
        raise PlanError(f"nnodes {text!r} is not a number of nodes: write 4, or 2:4") from None
    if colon and not 1 <= fewest <= most:
        raise PlanError(f"nnodes {text} is not a range of nodes: write MIN:MAX with 1 ≤ MIN ≤ MAX")
    return (fewest if fewest < most else None), most


def check_nodes(preset: Preset, nodes: int | None) -> None:
    """Raise PlanError unless the preset fits on `nodes` machines. None means as many as requested."""
    nnodes, fewest = preset.topology.nnodes, preset.topology.nnodes_min
    if nnodes < 1:
        raise PlanError(f"nnodes {nnodes} is too few: give 1 or more")
    if fewest is not None and not 1 <= fewest <= nnodes:
        raise PlanError(f"nnodes_min {fewest} is not between 1 and nnodes {nnodes}: give one that is")
    if nodes is None or nnodes <= nodes:
        return
    if nodes == 1:
        raise PlanError(
            f"nnodes {nnodes} needs more machines than this one: add --hosts A,B or --on sky, or give 1"
        )
    raise PlanError(f"nnodes {nnodes} > {nodes} available nodes: give at most {nodes}")


SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
"""1 lets NCCL (2.30 and newer) run several ranks on one GPU."""


def ranks(preset: Preset, gpus: int, cores: int, nodes: int | None, env: Mapping[str, str]) -> Ranks:
    """Return ranks and backend of `preset` on a node with these GPUs and cores. Raises PlanError.

    `nodes`: available nodes, or None for as many as requested. `env` says which GPUs are visible, and if ranks share
    one.
    """
    check_nodes(preset, nodes)
    gpus = visible_gpus(gpus, env)
    where = "this machine" if nodes == 1 else "a node"
    asked = parse_nproc(preset.topology.nproc_per_node)
    nproc = _nproc(asked, gpus, cores, where)
    if preset.strategy.kind == "single" and nproc > 1:
        raise PlanError(f"strategy single is one rank, not nproc_per_node {nproc}: take the preset ddp")
    on_gpu = gpus > 0 and asked != "cpu"
    if on_gpu:
        _check_gpus(nproc, gpus, env)
    else:
        _check_cores(nproc, cores)
    if preset.strategy.kind == "single" and preset.topology.nnodes > 1:
        raise PlanError(
            f"strategy single is one rank, not nnodes {preset.topology.nnodes}: take the preset ddp"
        )
    return Ranks(nproc, "nccl" if on_gpu else "gloo", _backend_notes(gpus, asked, nproc, where))


def _check_gpus(nproc: int, gpus: int, env: Mapping[str, str]) -> None:
    if nproc > gpus and env.get(SHARED_GPU) != "1":
        raise PlanError(
            f"nproc_per_node {nproc} > {plural(gpus, 'GPU')}: give at most {gpus}, "
            f"or --env CUDA_VISIBLE_DEVICES= to run on CPU, or --env {SHARED_GPU}=1 to have ranks share a GPU"
        )


def _check_cores(nproc: int, cores: int) -> None:
    most = cores * CPU_RANKS_PER_CORE
    if nproc > most:
        raise PlanError(
            f"nproc_per_node {nproc} > {cores} cores × {CPU_RANKS_PER_CORE} = {most}: give at most {most}"
        )


def _nproc(asked: int | str, gpus: int, cores: int, where: str) -> int:
    if asked == "gpu" and not gpus:
        raise PlanError(f"nproc_per_node gpu, but no GPU is visible on {where}: give a number, cpu or auto")
    if asked == "gpu" or (asked == "auto" and gpus):
        return gpus
    return cores if isinstance(asked, str) else asked


def _backend_notes(gpus: int, asked: int | str, nproc: int, where: str) -> tuple[str, ...]:
    if not gpus:
        ranks_of = f", {nproc} ranks (one per core)" if asked == "auto" and nproc > 1 else ""
        return (f"No GPU is visible on {where}: backend gloo{ranks_of}.",)
    if asked == "cpu":
        return (
            f"The ranks run on CPU as requested: backend gloo; they do not use the {noun_form(gpus, 'GPU')} of {where}.",
        )
    if nproc < gpus:
        return (f"Uses {nproc} of {gpus} GPUs.",)
    return ()


def visible_gpus(gpus: int, env: Mapping[str, str]) -> int:
    """Return how many of `gpus` CUDA_VISIBLE_DEVICES leaves visible. CUDA stops at its first invalid entry."""
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return gpus
    count = 0
    for entry in (part.strip() for part in listed.split(",")):
        if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < gpus):
            break
        count += 1
    return min(count, gpus) if gpus else 0
