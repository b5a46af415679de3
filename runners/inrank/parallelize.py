"""The one call by which a training script obeys a distui preset.

    model = parallelize(model)
    model, optimizer = parallelize(model, torch.optim.AdamW, lr=3e-4)

What it does is read from the environment that distui gives each rank:

    DISTUI_STRATEGY          single | ddp | fsdp2 | zero1
    DISTUI_STRATEGY_OPTIONS  JSON object; ddp and zero1: bucket_cap_mb, find_unused_parameters,
                             gradient_as_bucket_view, static_graph; fsdp2: reshard_after_forward
    DISTUI_PRECISION         JSON object {"param": P, "reduce": P}, P one of fp32, bf16, fp16
    DISTUI_BACKEND           nccl (CUDA) | gloo (CPU)

Without these: ddp under torchrun, single elsewhere. It needs only the standard library and torch (2.7 or
newer), so it may be copied beside a script.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import time
import warnings
from contextlib import suppress
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type, Union, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

_Types = Dict[str, Tuple[type, ...]]
_YES_NO = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
_DDP: _Types = {"bucket_cap_mb": (int, float), **dict.fromkeys(_YES_NO, (bool,))}
_FSDP2: _Types = {"reshard_after_forward": (bool, int)}
OPTIONS: Dict[str, _Types] = {"single": {}, "ddp": _DDP, "fsdp2": _FSDP2, "zero1": _DDP}
"""Every strategy with the options it takes and their types."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ParallelizeError(Exception):
    """What keeps the preset from being obeyed, as one sentence for the user."""


@overload
def parallelize(model: nn.Module) -> nn.Module: ...


@overload
def parallelize(
    model: nn.Module, optimizer: Type[torch.optim.Optimizer], **settings: Any
) -> Tuple[nn.Module, torch.optim.Optimizer]: ...


def parallelize(
    model: nn.Module, optimizer: Optional[Type[torch.optim.Optimizer]] = None, **settings: Any
) -> Union[nn.Module, Tuple[nn.Module, torch.optim.Optimizer]]:
    """The model made parallel as the preset says; with an optimizer class, that optimizer built for it too.

    Joins the process group if the script did not, and moves the model to `device()`. `settings` go to
    the optimizer. Raises ParallelizeError.
    """
    name = strategy()
    options, precision = _options(name), _precision()
    usage = "write model, optimizer = parallelize(model, torch.optim.AdamW, lr=3e-4)"
    if optimizer is not None and not isinstance(optimizer, type):
        raise ParallelizeError(f"parallelize() takes an optimizer's class, not one already built: {usage}")
    if name == "zero1" and optimizer is None:
        raise ParallelizeError(f"strategy zero1 divides the optimizer, so it has to build it: {usage}")
    _join(name)
    model = _wrap(name, model.to(device()), options, precision)
    if optimizer is None:
        return model
    if name == "zero1":
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=optimizer, **settings)
    return model, optimizer(model.parameters(), **settings)


def strategy() -> str:
    """The strategy in force. Raises ParallelizeError for one that is not known."""
    name = os.environ.get("DISTUI_STRATEGY", "") or ("ddp" if _world_size() > 1 else "single")
    if name not in OPTIONS:
        raise ParallelizeError(f"DISTUI_STRATEGY is {name!r}; parallelize() knows {', '.join(OPTIONS)}")
    return name


def device() -> torch.device:
    """Where this rank computes: its own GPU where the ranks talk over NCCL, else the CPU."""
    if "nccl" not in _backend():
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        raise ParallelizeError(
            f"local rank {local_rank} has no GPU: torch sees {count} here;"
            " start at most one rank a GPU, or use the gloo backend"
        )
    return torch.device("cuda", local_rank)


def state_for_saving(model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> Dict[str, Any]:
    """A full checkpoint on rank 0 and {} elsewhere, the same under every strategy. Every rank must call it.

    Parameters are named, not numbered, so that a checkpoint of one strategy can be loaded under
    another; `more` (a step count, say) is kept beside them. It is a copy: training may go on.
    """
    whole = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = dcp.get_model_state_dict(model, options=whole)
    if not isinstance(optimizer, ZeroRedundancyOptimizer):
        moments = dcp.get_optimizer_state_dict(model, optimizer, options=whole)
    else:
        optimizer.consolidate_state_dict(to=0)
        moments = _renamed(optimizer.state_dict(), dict(enumerate(_names(model)))) if _rank() == 0 else {}
    state = {"model": weights, "optimizer": moments, "more": more} if _rank() == 0 else {}
    return copy.deepcopy(state) if device().type == "cpu" else state  # on the CPU they are the live tensors


def load_saved(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Optional[Dict[str, Any]]
) -> Dict[str, Any]:
    """Load what `state_for_saving` returned and give `more` back; {} if there is nothing to load.

    Every rank must call it, but only rank 0 needs to have `saved`: it is sent to the others, each of
    which holds the whole of it in host memory meanwhile.
    """
    saved = copy.deepcopy(saved)  # loading renames its keys, and the optimizer would go on in its tensors
    if dist.is_initialized():
        box = [saved]
        dist.broadcast_object_list(box, src=0)
        saved = box[0]
    if not saved:
        return {}
    whole = dcp.StateDictOptions(full_state_dict=True)
    dcp.set_model_state_dict(model, saved["model"], options=whole)
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        numbers = {name: number for number, name in enumerate(_names(model))}
        optimizer.load_state_dict(_renamed(saved["optimizer"], numbers))
    else:
        dcp.set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=whole)
    return dict(saved["more"])


def finish(together: bool = True) -> None:
    """Leave the process group so that the interpreter can end safely; `del model, optimizer` before.

    `together=False` does not wait for the other ranks: for an end where some may be gone already.
    """
    gc.collect()
    if not dist.is_initialized():
        return
    backend = dist.get_backend()
    if together:
        with suppress(RuntimeError):  # a peer that is gone has nothing left to wait for
            dist.barrier()
    dist.destroy_process_group()
    if "gloo" in backend:
        # Gloo's threads outlive destroy for a moment; an interpreter that ends meanwhile aborts with
        # "terminate called without an active exception" (about one exit in four without this wait).
        time.sleep(0.5)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE") or 1)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _backend() -> str:
    """The backend in force: the script's own group first, then the preset's, then what fits here."""
    if dist.is_initialized():
        return str(dist.get_backend())
    name = os.environ.get("DISTUI_BACKEND", "")
    if name not in ("", "nccl", "gloo"):
        raise ParallelizeError(f"DISTUI_BACKEND is {name!r}; parallelize() knows nccl, gloo")
    if name == "nccl" and not torch.cuda.is_available():
        raise ParallelizeError("DISTUI_BACKEND is nccl, but torch sees no GPU here; use gloo")
    return name or ("nccl" if torch.cuda.is_available() else "gloo")


def _object(variable: str) -> Dict[str, Any]:
    text = os.environ.get(variable) or "{}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ParallelizeError(f"{variable} is not JSON ({error}): {text}") from None
    if isinstance(value, dict):
        return value
    raise ParallelizeError(f"{variable} must be a JSON object, and is {text}")


def _options(name: str) -> Dict[str, Any]:
    options, known = _object("DISTUI_STRATEGY_OPTIONS"), OPTIONS[name]
    for key, value in options.items():
        if key not in known:
            takes = ", ".join(known) or "none"
            raise ParallelizeError(f"{name} has no option {key} (DISTUI_STRATEGY_OPTIONS); known: {takes}")
        if type(value) not in known[key]:
            kinds = " or ".join(kind.__name__ for kind in known[key])
            raise ParallelizeError(f"{key} (DISTUI_STRATEGY_OPTIONS) is {value!r}, and must be {kinds}")
    return options


def _precision() -> Tuple[torch.dtype, torch.dtype]:
    """(type to compute in, type to reduce gradients in)."""
    given = {"param": "fp32", "reduce": "fp32", **_object("DISTUI_PRECISION")}
    for key, value in given.items():
        if key not in ("param", "reduce") or value not in tuple(DTYPES):
            known = ", ".join(DTYPES)
            raise ParallelizeError(
                f"DISTUI_PRECISION has {key} {value!r}; known: param, reduce, each {known}"
            )
    if given["param"] == "fp16":
        warnings.warn("fp16 loses small gradients without torch.amp.GradScaler in the script", stacklevel=3)
    return DTYPES[given["param"]], DTYPES[given["reduce"]]


def _join(name: str) -> None:
    """Take the device, and join the process group where the strategy needs one and the script has not."""
    here, world = device(), _world_size()
    if here.type == "cuda":
        torch.cuda.set_device(here)
    if name == "single" and world > 1:
        raise ParallelizeError(
            f"strategy single is one process and the world size is {world}: start one, or choose ddp"
        )
    if name == "single" or dist.is_initialized():
        return
    if "RANK" not in os.environ:
        raise ParallelizeError(f"strategy {name} needs ranks and this is a plain process: use torchrun")
    dist.init_process_group(_backend(), device_id=here if here.type == "cuda" else None)


def _wrap(
    name: str, model: nn.Module, options: Dict[str, Any], precision: Tuple[torch.dtype, torch.dtype]
) -> nn.Module:
    param, reduce = precision
    if name == "fsdp2":
        return _shard(model, options, param, reduce)
    if param != torch.float32:
        model.forward = torch.autocast(device().type, dtype=param)(model.forward)
    if name == "single":
        return model
    model = DistributedDataParallel(model, **options)
    if reduce != torch.float32:
        # torch's own bf16 hook refuses gloo; a lambda, as DDP refuses postponed annotations.
        model.register_comm_hook(None, lambda _, bucket: _averaged(bucket, reduce))
    return model


def _averaged(bucket: dist.GradBucket, dtype: torch.dtype) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks, sent as `dtype`."""
    sent = bucket.buffer().to(dtype).div_(dist.get_world_size())
    summed = dist.all_reduce(sent, async_op=True).get_future()
    return summed.then(lambda future: bucket.buffer().copy_(future.value()[0]))


def _shard(model: nn.Module, options: Dict[str, Any], param: torch.dtype, reduce: torch.dtype) -> nn.Module:
    """FSDP2: each block a group of its own, the rest with the root."""
    world, parts = dist.get_world_size(), options.get("reshard_after_forward", True)
    if type(parts) is int and (parts < 1 or world % parts):
        raise ParallelizeError(f"reshard_after_forward is {parts}, which does not divide {world} ranks")
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)  # fully_shard, unlike DDP, trusts the ranks to start equal
    policy = MixedPrecisionPolicy(
        param_dtype=None if param == torch.float32 else param,
        reduce_dtype=None if reduce == param else reduce,
    )
    mesh = init_device_mesh(device().type, (world,))
    for block in list(_blocks(model)):
        fully_shard(block, mesh=mesh, mp_policy=policy, **options)
    return fully_shard(model, mesh=mesh, mp_policy=policy, **options)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The transformer blocks: outermost members of module lists that hold parameters."""
    for child in model.children():
        if isinstance(model, nn.ModuleList) and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from _blocks(child)


def _names(model: nn.Module) -> List[str]:
    """Parameters' names in the order in which the optimizer numbers them."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return [name for name, _ in inner.named_parameters()]


def _renamed(state: Dict[str, Any], new: Dict[Any, Any]) -> Dict[str, Any]:
    """An optimizer's state with `new` keys: by name as in a checkpoint, or by number as in torch.optim."""
    groups = [{**group, "params": [new[old] for old in group["params"]]} for group in state["param_groups"]]
    return {"state": {new[old]: value for old, value in state["state"].items()}, "param_groups": groups}
