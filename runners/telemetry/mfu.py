"""Model FLOPs utilization, computed if a script does not report its own. Pure.

A dense transformer needs 6 × parameters × tokens FLOPs for the forward and backward pass (Kaplan et al. 2020,
arXiv:2001.08361, section 2.1). PaLM (arXiv:2204.02311, appendix B) adds the FLOPs of attention. They are left out here,
so the result is a little low for long sequences. The result is a percentage of all GPUs' peak in dense bf16. It is None
if the model's size, the tokens per second of the whole job, or a GPU is unknown.
"""

from __future__ import annotations

import re

from ..run.samples import Gpu, TrainingSample
from ..run.state import Rank, RunState

PEAKS = (
    ("GB200", 2500e12),
    ("B200", 2250e12),
    ("GB300", 2500e12),
    ("B300", 2250e12),
    ("H200", 989e12),
    ("GH200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A40", 149.7e12),
    ("A30", 165e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("L40S", 362.05e12),
    ("L40", 181.05e12),
    ("L4", 121e12),
    ("RTX A6000", 154.8e12),
    ("RTX 6000 Ada", 364.25e12),
    ("RTX 4090", 165.2e12),
    ("RTX 3090", 71e12),
)
"""Part of NVML's name → dense bf16 FLOP/s of the tensor cores, from NVIDIA's datasheets (values with sparsity halved).
The first match of whole words counts."""
SLOWER = re.compile(r"MIG|Laptop|Max-Q")
"""Names of GPU partitions, and of GPUs with lower power limits."""
CAP = 100.0
JOB_RATES = frozenset(("output: torchtitan", "output: nanochat", "output: llm.c", "output: --signal"))
"""Sources with tokens per second of the whole job, reported as such or converted (`per_gpu`)."""


def peak(name: str) -> float | None:
    """Peak FLOP/s of a GPU by NVML's name; None if it is not in the table."""
    words = f" {name.replace('-', ' ')} "
    if SLOWER.search(name):
        return None
    return next((flops for part, flops in PEAKS if f" {part.replace('-', ' ')} " in words), None)


def computed(state: RunState, sample: TrainingSample) -> tuple[float, str] | None:
    """Return (percent, source) for a sample with tokens per second; None if anything is unknown."""
    tokens = sample.tokens_s
    if tokens is None or not _is_of_job(state, sample):
        return None
    size, flops = _parameters(state), _peak_of_all(state)
    if size is None or flops is None:
        return None
    percent = 100 * 6 * size * tokens / flops
    if percent > CAP:
        return None  # one of the numbers has another meaning
    return (
        percent,
        f"computed: 6 × {size / 1e9:.3g}B parameters × tokens/s of {flops / 1e12:,.0f} TFLOP/s in bf16",
    )


def _is_of_job(state: RunState, sample: TrainingSample) -> bool:
    """Whether a rate is that of the job, and all its ranks are known."""
    world = state.world_size
    of_job = world == 1 or sample.sources.get("tokens_s") in JOB_RATES
    return of_job and world > 0 and len(state.ranks) == world


def _parameters(state: RunState) -> int | None:
    """Return the number of the model's parameters if all ranks agree on it."""
    sizes = {None if rank.made is None else rank.made.params for rank in state.ranks.values()}
    return sizes.pop() if len(sizes) == 1 else None


def _peak_of_all(state: RunState) -> float | None:
    """Peak FLOP/s of all ranks' GPUs together, if each rank has a separate GPU; else None."""
    total, used = 0.0, set()
    for rank in state.ranks.values():
        gpu = _gpu_of(state, rank)
        flops = None if gpu is None or gpu.mig else peak(gpu.name)
        if gpu is None or flops is None or gpu.uuid in used:
            return None
        used.add(gpu.uuid)
        total += flops
    return total or None


def _gpu_of(state: RunState, rank: Rank) -> Gpu | None:
    node = state.nodes.get(rank.place.node)
    if node is None or rank.sample is None:
        return None
    return next((gpu for gpu in node.gpus if gpu.index == rank.sample.gpu), None)
