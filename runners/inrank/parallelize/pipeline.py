"""Pipeline parallelism: run a whole batch through the stages of a model in one call."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .settings import ParallelizeError, Settings, device

SCHEDULES: Dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Pipeline(nn.Module):  # type: ignore[misc]
    """A stage and its schedule. Scripts train it with `forward_backward`, which calls `train_step`; it has no output."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Any], Any],
        config: Settings,
        group: dist.ProcessGroup,
        replicas: Optional[dist.ProcessGroup] = None,
    ) -> None:
        """`group`: the stages. `replicas`: ranks of this stage, to average their gradients; None if FSDP does that."""
        super().__init__()
        self.module, self._group, self._replicas = module, group, replicas
        self._stage, self._stages = dist.get_rank(group), dist.get_world_size(group)
        self._microbatches = int(config.mesh.get("microbatches", 2 * self._stages))
        name = config.mesh.get("schedule", "1f1b")
        if name not in SCHEDULES:
            raise ParallelizeError(f"schedule is {name!r}; parallelize() knows {', '.join(SCHEDULES)}")
        if name == "1f1b" and self._microbatches < self._stages:
            raise ParallelizeError(
                f"microbatches is {self._microbatches}: 1f1b needs one per stage, {self._stages} at least"
            )
        stage = PipelineStage(module, self._stage, self._stages, device(), group=group)
        self._schedule = SCHEDULES[name](stage, self._microbatches, loss_fn=loss)

    def forward(self, *_: Any) -> torch.Tensor:
        """Raise ParallelizeError: a single stage has no output."""
        raise ParallelizeError(
            "a pipeline runs forward and backward together: write loss = forward_backward(model, x, y)"
        )

    def train_step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Run forward and backward of one batch over all stages; return the mean loss on every stage."""
        count = self._microbatches
        if len(x) % count:
            raise ParallelizeError(
                f"a batch of {len(x)} cannot be cut into {count} microbatches: {len(x)} / {count} is"
                f" {len(x) / count:.4g}; take a multiple of {count}, or change mesh.microbatches"
            )
        losses: List[torch.Tensor] = []
        given = (x,) if self._stage == 0 else ()
        if self._stage == self._stages - 1:
            self._schedule.step(*given, target=y, losses=losses)
        else:
            self._schedule.step(*given)
        self._average()
        mean = torch.stack(losses).mean().detach().float() if losses else torch.zeros((), device=x.device)
        last = dist.get_global_rank(self._group, self._stages - 1)
        dist.broadcast(mean, src=last, group=self._group)
        return mean

    def _average(self) -> None:
        """Average gradients once per batch. DDP cannot: it needs a backward pass after each forward pass."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        if self._replicas is None or not gradients:
            return
        # torch's helpers take any tensors: here they copy the gradients into one buffer and back, for one all-reduce.
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat, group=self._replicas)
        vector_to_parameters(flat / dist.get_world_size(self._replicas), gradients)
