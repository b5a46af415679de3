"""Pipeline parallelism: cut a model along its blocks, and run a whole batch through the stages in one call.

    pp_plan = {"first": ("tokens",), "blocks": "layers", "last": ("norm", "head")}
    def embed(self, x): ...          returns the input of the first block
    def logits(self, h): ...         of the last block's output
    def loss(self, logits, y): ...   of one microbatch, a mean: the losses of all are averaged; uses no parameters

Each member of `blocks` is called as `block(h)`. Parts of `first` and `last` cannot share parameters (a tied embedding
and head): they are on different stages, and each stage would train its own copy.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .settings import ParallelizeError, Settings, device

CUT_NEEDS = ("pp_plan", "embed", "logits", "loss")
SCHEDULES: Dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Blocks(nn.ModuleDict):  # type: ignore[misc]
    """The blocks of this stage, named by their numbers in the whole model."""


def cut(model: nn.Module, stage: int, stages: int) -> Callable[[Any, Any], Any]:
    """Remove the parts of other stages from `model`; parameters keep their names. Return the model's loss function.

    Raises ParallelizeError.
    """
    missing = [name for name in CUT_NEEDS if not hasattr(model, name)]
    if missing:
        raise ParallelizeError(
            f"pp cuts the model, and {type(model).__name__} has no {', '.join(missing)}:"
            " docs/scripts.md shows what such a model defines"
        )
    plan, loss = cast(Dict[str, Any], model.pp_plan), cast(Callable[[Any, Any], Any], model.loss)
    blocks = list(cast(nn.ModuleList, getattr(model, plan["blocks"])))
    if len(blocks) < stages:
        raise ParallelizeError(
            f"pp is {stages}, and the model has only {len(blocks)} blocks to cut:"
            " give it more, or change mesh.pp"
        )
    _check_untied(model, plan)
    mine = range(len(blocks) * stage // stages, len(blocks) * (stage + 1) // stages)
    setattr(model, plan["blocks"], Blocks({str(number): blocks[number] for number in mine}))
    of_other_stages = []
    if stage > 0:
        of_other_stages += plan["first"]
    if stage < stages - 1:
        of_other_stages += plan["last"]
    for name in of_other_stages:
        setattr(model, name, None)
    model.forward = _StageForward(model, plan["blocks"], stage == 0, stage == stages - 1)
    return loss


def _check_untied(model: nn.Module, plan: Dict[str, Any]) -> None:
    """Raise ParallelizeError if the first and the last stage would each train a copy of one parameter."""
    first: Dict[int, str] = {}
    last: Dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = name.partition(".")[0]
        if part in plan["first"]:
            first[id(parameter)] = name
        elif part in plan["last"]:
            last[id(parameter)] = name
    for shared in first.keys() & last.keys():
        raise ParallelizeError(
            f"{first[shared]} and {last[shared]} are one parameter, and pp puts them on different stages:"
            " untie them, or use a preset without pp"
        )


class _StageForward:
    """The `forward` of a stage."""

    def __init__(self, model: nn.Module, blocks: str, first: bool, last: bool) -> None:
        self.model, self.blocks, self.first, self.last = model, blocks, first, last

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        model: Any = self.model
        h = model.embed(x) if self.first else x
        for block in getattr(model, self.blocks).values():
            h = block(h)
        return cast(torch.Tensor, model.logits(h) if self.last else h)


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
