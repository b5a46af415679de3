"""Divide a model over ranks: tensor, expert and pipeline parallelism, as attributes of its class describe.

Tensor parallelism divides matrix products:

    tp_plan = {"layers.*.qkv": "colwise", "layers.*.out": "rowwise", "layers.*.norm": "sequence_parallel",
               "norm": "sequence_parallel", "head": "colwise_rep"}

Keys are names of layers with * for a number. The styles are those of transformers' plans: "colwise" divides a layer's
outputs, "rowwise" divides its inputs and sums, "colwise_rep" gathers the outputs again; "sequence_parallel" is a norm
that sees a piece of the sequence (dimension 1) with sequence parallelism.

Expert parallelism divides the experts of each mixture-of-experts layer over ranks, and sends tokens to them. A module of
experts has `expert_parallel = True` and parameters with the experts in dimension 0. It is called as
`experts(tokens, counts)`: tokens (n, width) are sorted by expert, counts (experts) are the tokens per expert.

A pipeline cuts the model along its blocks, and one call runs a whole batch through the stages:

    pp_plan = {"first": ("tokens",), "blocks": "layers", "last": ("norm", "head")}
    def embed(self, x): ...          returns the input of the first block
    def logits(self, h): ...         of the last block's output
    def loss(self, logits, y): ...   of one batch; uses no layers

Each member of `blocks` is called as `block(h)`.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .settings import ParallelizeError, Settings, device

STYLES = ("colwise", "rowwise", "colwise_rep", "sequence_parallel")
HEADS = (
    "heads",
    "num_heads",
    "n_heads",
    "n_head",
    "nhead",
    "num_attention_heads",
    "kv_heads",
    "num_kv_heads",
    "n_kv_heads",
    "num_key_value_heads",
)
"""Attributes with the number of heads of an attention layer."""
ATTENTION = re.compile(r"(?:.*\.)?(?:w?[qkv]|qkv|wqkv|query|key|value|c_attn|in_proj)(?:_proj)?")
"""Names of layers whose outputs are split into heads."""
SHAPE = re.compile(
    r"shape '.*' is invalid for input|mat1 and mat2 shapes|must match the size|size mismatch"
)
"""Texts of torch's errors about sizes that do not match."""


def divide_layers(model: nn.Module, mesh: DeviceMesh, sequence: bool, first_stage: bool) -> None:
    """Divide the layers of `model` over the 1-dimensional `mesh`. Raises ParallelizeError."""
    plan = getattr(model, "tp_plan", None)
    if not plan:
        raise ParallelizeError(
            f"tp divides layers by the model's plan, and {type(model).__name__} has no tp_plan:"
            " docs/scripts.md shows one"
        )
    named = _layers(model, plan)
    for name, style in named.items():
        _check(name, model.get_submodule(name), style, mesh.size())
    _check_heads(model, named, mesh.size())
    styles = {name: _style(style, sequence) for name, style in named.items()}
    parallelize_module(model, mesh, {name: style for name, style in styles.items() if style is not None})
    if sequence and first_stage:
        _split_before_blocks(model, named, mesh)
    _explain(model, mesh.size())


def _layers(model: nn.Module, plan: Dict[str, str]) -> Dict[str, str]:
    """Return name → style of the layers in the plan. Raises ParallelizeError."""
    styles = {}
    names = [name for name, _ in model.named_modules() if name]
    for pattern, style in plan.items():
        if style not in STYLES:
            raise ParallelizeError(
                f"tp_plan gives {pattern} the style {style!r}; known: {', '.join(STYLES)}"
            )
        shape = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        styles.update({name: style for name in names if shape.fullmatch(name)})
    if not styles:
        raise ParallelizeError(f"tp_plan names {', '.join(plan)}, but the model has no such layers")
    return styles


def _check(name: str, layer: nn.Module, style: str, ranks: int) -> None:
    weight = getattr(layer, "weight", None)
    if style == "sequence_parallel" or weight is None or weight.ndim != 2:
        return
    size = int(weight.shape[1 if style == "rowwise" else 0])
    if size % ranks:
        raise ParallelizeError(f"tp is {ranks}, which does not divide the {size} of {name}")


def _check_heads(model: nn.Module, named: Dict[str, str], ranks: int) -> None:
    """Check that the ranks divide the number of heads: one rank computes a whole head. Raises ParallelizeError."""
    for where, count in _heads(model, named):
        if count % ranks:
            raise ParallelizeError(
                f"{count} heads cannot be divided by tp {ranks} ({where}):"
                f" {count} / {ranks} is {count / ranks:.4g}; give the model a multiple of {ranks} heads,"
                " or change mesh.tp"
            )


def _heads(model: nn.Module, named: Dict[str, str]) -> Iterator[Tuple[str, int]]:
    """Yield the place and the value of each number of heads: of the parents of divided layers, and in `config`."""
    outputs = [name for name, style in named.items() if style == "colwise"]
    for name in outputs:
        parent = name.rpartition(".")[0]
        if parent:  # the root is seldom attention itself
            yield from _numbers(parent, model.get_submodule(parent))
    if any(ATTENTION.fullmatch(name) for name in outputs) and hasattr(model, "config"):
        yield from _numbers("config", model.config)


def _numbers(where: str, holder: Any) -> Iterator[Tuple[str, int]]:
    for attribute in HEADS:
        count = getattr(holder, attribute, None)
        if type(count) is int and count > 0:
            yield f"{where}.{attribute}", count


def _explain(model: nn.Module, ranks: int) -> None:
    """Explain errors about sizes in the divided model: each rank has only a part of them."""
    inner = model.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        try:
            return inner(*inputs, **named)
        except RuntimeError as error:
            if not SHAPE.search(str(error)):
                raise
            raise ParallelizeError(
                f"sizes do not fit in {type(model).__name__}, of which tp {ranks} gives each rank a part:"
                f" {str(error).splitlines()[0]}; divide by tp every number of heads or features"
                " that forward() writes out"
            ) from error

    model.forward = forward


def _style(style: str, sequence: bool) -> Any:
    """Return torch's object for a style; None for a norm that sees the whole sequence."""
    inputs: Tuple[Any, ...] = (Shard(1),) if sequence else (Replicate(),)
    if style == "rowwise":
        return RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    if style == "sequence_parallel":
        return SequenceParallel(use_local_output=True) if sequence else None
    outputs = Replicate() if style == "colwise_rep" else Shard(-1)
    return ColwiseParallel(input_layouts=inputs[0], output_layouts=outputs)


def _split_before_blocks(model: nn.Module, named: Dict[str, str], mesh: DeviceMesh) -> None:
    """Give the first block this rank's piece of the sequence; backward gathers the pieces' gradients."""
    inside = next(match for match in (re.match(r"(.*?\.\d+)\.", name) for name in named) if match)
    block = model.get_submodule(inside[1])

    def split(_: nn.Module, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
        h: torch.Tensor = inputs[0]
        if h.shape[1] % mesh.size():
            raise ParallelizeError(
                f"sequence_parallel divides {h.shape[1]} positions, which are no multiple of tp {mesh.size()}"
            )
        whole = DTensor.from_local(h, mesh, [Replicate()], run_check=False)
        return (whole.redistribute(placements=[Shard(1)]).to_local(), *inputs[1:])

    block.register_forward_pre_hook(split)


def divide_experts(model: nn.Module, mesh: DeviceMesh) -> List[str]:
    """Divide all experts of `model` over the dimension ep of `mesh` (dp, ep); return the names of their parameters.

    Raises ParallelizeError.
    """
    names = []
    for path, module in model.named_modules():
        if getattr(module, "expert_parallel", False):
            _divide_module(path, module, mesh)
            names += [f"{path}.{name}" for name, _ in module.named_parameters()]
    if not names:
        raise ParallelizeError(
            f"ep divides experts, and {type(model).__name__} has none with expert_parallel = True:"
            " docs/scripts.md shows a layer that has"
        )
    return names


def _divide_module(path: str, module: nn.Module, mesh: DeviceMesh) -> None:
    ranks, group = mesh["ep"].size(), mesh["ep"].get_group()
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.shape[0] % ranks:
            raise ParallelizeError(
                f"ep is {ranks}, which does not divide the {parameter.shape[0]} experts of {path}"
            )
        part = nn.Parameter(distribute_tensor(parameter.detach(), mesh["ep"], [Shard(0)]))
        part.register_hook(lambda gradient: _averaged_gradient(gradient, mesh))
        module.register_parameter(name, part)
    inner = module.forward
    module.forward = lambda tokens, counts: _there_and_back(module, inner, tokens, counts, group)


def _averaged_gradient(gradient: Any, mesh: DeviceMesh) -> Any:
    """Average an expert's gradient over all ranks. It already is the sum over the ep ranks, whose tokens it got."""
    local = gradient.to_local() / mesh["ep"].size()
    dist.all_reduce(local, group=mesh["dp"].get_group())
    local /= mesh["dp"].size()
    return DTensor.from_local(local, mesh["ep"], [Shard(0)], run_check=False)


def _there_and_back(
    module: nn.Module, inner: Any, tokens: torch.Tensor, counts: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Send tokens to the ranks of their experts, compute, and send them back. Both sides sort them by expert."""
    ranks = dist.get_world_size(group)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts, group=group)
    sent = counts.view(ranks, -1).sum(1).tolist()
    received = theirs.view(ranks, -1)
    arrived = _Exchange.apply(tokens, received.sum(1).tolist(), sent, group)
    order = _by_expert(received)
    done = _local_forward(module, inner, arrived[order], received.sum(0))
    return _Exchange.apply(done[torch.argsort(order)], sent, received.sum(1).tolist(), group)


def _by_expert(received: torch.Tensor) -> torch.Tensor:
    """Return the order by expert of tokens that arrived by rank. `received`: counts (ranks, experts of this rank)."""
    ranks, experts = received.shape
    owner = torch.arange(experts, device=received.device).repeat(ranks)
    return torch.argsort(owner.repeat_interleave(received.flatten()), stable=True)


def _local_forward(
    module: nn.Module, inner: Any, tokens: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Call `inner` with this rank's experts as plain tensors."""
    whole = dict(module.named_parameters(recurse=False))
    for name, parameter in whole.items():
        del module._parameters[name]
        object.__setattr__(module, name, parameter.to_local())
    try:
        out: torch.Tensor = inner(tokens, counts)
    finally:
        for name, parameter in whole.items():
            object.__delattr__(module, name)
            module._parameters[name] = parameter
    return out


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """all_to_all of rows: sends `sent[i]` rows to rank i and receives `received[i]` from it; backward is the reverse."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, received: Any, sent: Any, group: Any) -> torch.Tensor:
        ctx.lists = (sent, received, group)
        out = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        sent, received, group = ctx.lists
        out = gradient.new_empty((sum(sent), *gradient.shape[1:]))
        dist.all_to_all_single(out, gradient.contiguous(), sent, received, group=group)
        return out, None, None, None


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
    whole = list(cast(nn.ModuleList, getattr(model, plan["blocks"])))
    if len(whole) < stages:
        raise ParallelizeError(
            f"pp is {stages}, and the model has only {len(whole)} blocks to cut:"
            " give it more, or change mesh.pp"
        )
    mine = range(len(whole) * stage // stages, len(whole) * (stage + 1) // stages)
    setattr(model, plan["blocks"], Blocks({str(number): whole[number] for number in mine}))
    of_other_stages = []
    if stage > 0:
        of_other_stages += plan["first"]
    if stage < stages - 1:
        of_other_stages += plan["last"]
    for name in of_other_stages:
        setattr(model, name, None)
    model.forward = _Part(model, plan["blocks"], stage == 0, stage == stages - 1)
    return loss


class _Part:
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
    """A stage and its schedule. `forward_backward` trains it; it cannot be called."""

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
        self._pieces = int(config.mesh.get("microbatches", 2 * self._stages))
        name = config.mesh.get("schedule", "1f1b")
        if name not in SCHEDULES:
            raise ParallelizeError(f"schedule is {name!r}; parallelize() knows {', '.join(SCHEDULES)}")
        if name == "1f1b" and self._pieces < self._stages:
            raise ParallelizeError(
                f"microbatches is {self._pieces}: 1f1b needs one per stage, {self._stages} at least"
            )
        stage = PipelineStage(module, self._stage, self._stages, device(), group=group)
        self._schedule = SCHEDULES[name](stage, self._pieces, loss_fn=loss)

    def forward(self, *_: Any) -> torch.Tensor:
        """Raise ParallelizeError: a single stage has no output."""
        raise ParallelizeError(
            "a pipeline runs forward and backward together: write loss = forward_backward(model, x, y)"
        )

    def train_step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Run forward and backward of one batch over all stages; return the mean loss on every stage."""
        if len(x) % self._pieces:
            raise ParallelizeError(
                f"a batch of {len(x)} cannot be cut into {self._pieces} microbatches: {len(x)} / {self._pieces} is"
                f" {len(x) / self._pieces:.4g}; take a multiple of {self._pieces}, or change mesh.microbatches"
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
        whole = parameters_to_vector(gradients)
        dist.all_reduce(whole, group=self._replicas)
        vector_to_parameters(whole / dist.get_world_size(self._replicas), gradients)
