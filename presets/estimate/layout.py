"""One rank's part of a training: the divided tensors, and the ranks that share them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..model import Offload

BUCKET = 500_000_000
"""Elements that DeepSpeed reduces or gathers at a time by default."""
LIVE = 1_000_000_000
"""Elements of gathered parameters that DeepSpeed's stage 3 keeps by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One rank's part of a training."""

    engine: Literal["torch", "fsdp", "deepspeed", "megatron"]
    """Library that shards the model. "torch" and "megatron" keep a full model on each data-parallel rank."""
    data: int = 1
    """Ranks that share one sharded copy."""
    weights: bool = False
    gradients: bool = False
    optimizer: bool = False
    by_tensor: bool = False
    """True if the optimizer is divided by whole tensors, as in `ZeroRedundancyOptimizer`."""
    kept: int | None = None
    """fsdp: ranks that divide the gathered weights between forward and backward. None means all of `data`."""
    buckets: bool = False
    """True if the gradients have a second copy, for the reduction."""
    lasting: bool = False
    """True if gradients keep their memory between steps or passes, as in buckets."""
    accumulates: bool = False
    """fsdp: several backward passes accumulate full gradients before their reduction."""
    compute: int | None = None
    """Bytes per number in forward and backward. None means the size of the weights."""
    tp: int = 1
    sequence_parallel: bool = False
    divides_vocabulary: bool = False
    """True if tensor parallelism divides the embedding, the head and the logits, too."""
    ep: int = 1
    cp: int = 1
    pp: int = 1
    pieces: int = 1
    """Microbatches of a batch, in a pipeline."""
    flying: int = 1
    """Most microbatches that the first stage holds."""
    flying_last: int = 1
    """Most microbatches that the last stage holds."""
    foreach: bool = True
    """True if the optimizer may update all parameters at once."""
    optimizer_at: Offload = "none"
    weights_at: Offload = "none"
    bucket: int = BUCKET
    live: int = LIVE

    def ranks_of(self, is_divided: bool) -> int:
        """Return the number of ranks that share something: `data` if it is divided, else 1."""
        return self.data if is_divided else 1
