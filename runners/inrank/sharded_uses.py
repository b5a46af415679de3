"""What a script does with parameters in shards outside of passes and steps: by itself, by all ranks, or refused.

Each is a DTensor; most of what scripts do with one gives what a whole one would. Where that needs the other ranks, all
have to do it; random numbers, hooks and a replaced `.data` would go wrong without a sign, and stop the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from .adopted import AdoptionError, where
from .adopted_fsdp import as_shard
from .agreement import VALUES, Agreement
from .sharded_states import ShardedStates

READS = frozenset(
    [
        "item",
        "tolist",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "__complex__",
        "__format__",
        "__contains__",
        "numpy",
        "__array__",
        "equal",
        "allclose",
    ]
)
"""What needs a value itself: of a part, or of a sum that is still in parts, torch gives this rank's alone."""
SUMMARIES = frozenset(
    [
        "max",
        "min",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "median",
        "std",
        "var",
        "topk",
        "sort",
        "quantile",
        "any",
        "all",
        "histc",
        "count_nonzero",
    ]
)
"""What is computed of whole values, where no gradient is asked for: parts may be empty."""
LINEAR = frozenset(
    [
        "__get__",
        "__set__",
        "__hash__",
        "__repr__",
        "numel",
        "size",
        "dim",
        "stride",
        "storage_offset",
        "element_size",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_same_size",
        "data_ptr",
        "type",
        "requires_grad_",
        "retain_grad",
        "detach",
        "detach_",
        "clone",
        "float",
        "half",
        "bfloat16",
        "double",
        "mul",
        "mul_",
        "div",
        "div_",
        "true_divide",
        "neg",
        "neg_",
        "zero_",
        "zeros_like",
        "ones_like",
        "empty_like",
        "sum",
        "mean",
    ]
)
"""What needs no other rank, also of sums that are still in parts."""
LOCAL = LINEAR | frozenset(
    [
        "add",
        "add_",
        "sub",
        "sub_",
        "rsub",
        "abs",
        "abs_",
        "sqrt",
        "pow",
        "square",
        "sign",
        "exp",
        "log",
        "clamp",
        "clamp_",
        "clamp_min",
        "clamp_max",
        "copy_",
        "fill_",
        "lerp_",
        "addcmul_",
        "addcdiv_",
        "norm",
        "vector_norm",
        "isnan",
        "isinf",
        "isfinite",
        "ne",
        "eq",
        "gt",
        "lt",
        "ge",
        "le",
        "where",
    ]
)
"""The same, of parts of a whole."""
RANDOM = frozenset(
    [
        "normal",
        "normal_",
        "uniform_",
        "random_",
        "bernoulli",
        "bernoulli_",
        "exponential_",
        "log_normal_",
        "cauchy_",
        "geometric_",
        "rand_like",
        "randn_like",
        "randint_like",
        "multinomial",
        "dropout",
        "dropout_",
        "kaiming_uniform_",
    ]
)
"""What draws numbers: each rank would draw those of its part, and all of them others than DDP."""
HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
CHANGES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
"""What changes a tensor beside methods that end in _."""
CHANGE = "change of a parameter"


def communicates(func: Any, args: Any) -> bool:
    """Whether a function of sharded tensors may need the other ranks."""
    name = getattr(func, "__name__", "")
    if name.startswith(("_foreach_", "_amp_")):
        return False
    partial = any(any(p.is_partial() for p in each.placements) for each in _sharded(args))
    return name not in (LINEAR if partial else LOCAL)


def changes(func: Any) -> bool:
    """Whether a function changes its first argument."""
    name = getattr(func, "__name__", "")
    if name in ("requires_grad_", "detach_"):
        return False
    return (name.endswith("_") and not name.endswith("__")) or name in CHANGES


def _flat(args: Any) -> Iterator[Any]:
    return (each for arg in args for each in (arg if isinstance(arg, (list, tuple)) else (arg,)))


def _sharded(args: Any) -> list[DTensor]:
    return [each for each in _flat(args) if isinstance(each, DTensor)]


def _whole_beside(args: Any) -> bool:
    """Whether a tensor that is no DTensor, and no mere number, stands among the arguments."""
    return any(
        isinstance(each, torch.Tensor)
        and not isinstance(each, DTensor)
        and (each.ndim or each.requires_grad)
        for each in _flat(args)
    )


def refusal(func: Any, args: Any) -> str:
    """Why a script's call of a function of a sharded tensor stops the run; "" where it does not."""
    name = getattr(func, "__name__", "")
    if name in RANDOM:
        return "draws random numbers for a parameter, each rank having a part: do so before DistributedDataParallel"
    if name in HOOKS and isinstance(args[0], nn.Parameter):
        return "registers a hook on a parameter, of which fsdp2 has replaced the gradient's way: take zero1"
    if name == "__set__" and func == torch.Tensor.data.__set__ and not _same_storage(args[0], args[1]):
        return "replaces the data of a parameter of which fsdp2 keeps a part: use copy_() under torch.no_grad()"
    return ""


def _same_storage(kept: Any, other: Any) -> bool:
    if not isinstance(kept, DTensor) or not isinstance(other, DTensor) or kept.dtype != other.dtype:
        return False
    return bool(kept.to_local().data_ptr() == other.to_local().data_ptr())


class Uses:
    """Each use of a sharded tensor by the script in this process."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._shards: list[Any] = []
        self._states: list[ShardedStates] = []

    def take(self, shards: Any, states: ShardedStates) -> None:
        """Parameters, and what answers for them."""
        self._shards += shards
        self._states.append(states)

    def guard(self) -> None:
        """Have every function of a sharded tensor come by here."""
        uses = self

        def used(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                if uses._agreement.outside():
                    with _explained(func):
                        return uses._use(func, args, kwargs or {})
                with _explained(func):
                    return func(
                        *(whole(args) if getattr(func, "__name__", "") in READS else args), **(kwargs or {})
                    )

        kind: Any = DTensor
        kind.__torch_function__ = classmethod(used)
        theirs = kind.full_tensor

        def full_tensor(tensor: Any, **named: Any) -> Any:
            if uses._agreement.outside():
                other = uses._agreement.apart(VALUES)
                if other is not None:
                    return uses._asked(tensor, other)
            with uses._agreement.zone():
                return theirs(tensor, **named)

        kind.full_tensor = full_tensor

    def _use(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Raises AdoptionError."""
        why = refusal(func, args)
        if why:
            raise AdoptionError(f"{where()} {why}")
        if _whole_beside(args) and getattr(func, "__name__", "") != "__set__":
            args = self._alike(func, args)
        if changes(func) and not self._of_gradients(args[:1]):
            self._agreement.need(CHANGE)
            return self._change(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name in READS or name == "__reduce_ex__" or (name in SUMMARIES and not _graph(args)):
            with torch.no_grad():
                values = whole(args)
            if name == "__reduce_ex__" and isinstance(args[0], nn.Parameter):
                values = (nn.Parameter(values[0], args[0].requires_grad), *values[1:])
            return func(*values, **kwargs)
        other = self._agreement.apart(VALUES) if communicates(func, args) else None
        if other is not None:
            return func(*_mapped(args, lambda each: self._asked(each, other)), **kwargs)
        with self._agreement.zone():
            return func(*args, **kwargs)

    def _asked(self, tensor: Any, other: tuple[int, str]) -> Any:
        """What this rank reads alone, from the others' threads. Raises AdoptionError where those cannot know it."""
        if not isinstance(tensor, DTensor):
            return tensor
        graph = torch.is_grad_enabled() and tensor.requires_grad
        for states in () if graph else self._states:
            whole_tensor = states.whole(tensor)
            if whole_tensor is not None:
                return whole_tensor
        raise self._agreement.refusal(other, VALUES)

    def _change(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        for states in self._states:
            states.changed()
        try:
            with self._agreement.zone():
                return func(*args, **kwargs)
        finally:
            for states in self._states:
                states.changed()

    def _of_gradients(self, args: Any) -> bool:
        """Whether only those are among the arguments. Not by their memory: a rank may have an empty part."""
        gradients = {id(each.grad) for each in self._shards}
        return all(id(each) in gradients for each in _sharded(args))

    def _alike(self, func: Any, args: Any) -> Any:
        """All tensors whole, or all in shards where it is one of those that is changed. Raises AdoptionError."""
        if _graph(args):
            raise AdoptionError(
                f"{where()} computes a part of the loss with a parameter itself, which fsdp2 has in shards: take zero1"
            )
        target = _sharded(args[:1]) if changes(func) else []
        if not target:
            return whole(args)
        mesh = target[0].device_mesh

        def distributed(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, DTensor) or not tensor.ndim:
                return tensor
            if tensor.shape == target[0].shape:
                return as_shard(tensor.detach(), target[0])
            return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)

        return _mapped(args, distributed)


def _graph(args: Any) -> bool:
    """Whether gradients would come to what is sharded."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in _sharded(args))


@contextlib.contextmanager
def _explained(func: Any) -> Iterator[None]:
    """Raises AdoptionError for what torch cannot do with parts."""
    try:
        yield
    except (RuntimeError, NotImplementedError, AssertionError, IndexError) as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "onnect" in text or "gloo" in text or "Timed out" in text:  # another rank has gone
            raise
        if "mixed torch.Tensor and DTensor" in text:
            raise AdoptionError(
                f"{where()} computes with a parameter outside of the forward pass with which fsdp2 gathers it (of its "
                "layer, or of the whole model): take zero1"
            ) from error
        raise AdoptionError(
            f"{where()} calls {getattr(func, '__name__', 'a function')}() with a parameter, or a gradient, of which "
            f"fsdp2 has parts, and torch does not do that with parts ({text[:120]}): take zero1"
        ) from error


def whole(args: Any) -> Any:
    """Put together from all ranks, each of which does this."""
    return _mapped(args, lambda each: each.full_tensor() if isinstance(each, DTensor) else each)


def _mapped(args: Any, change: Callable[[Any], Any]) -> Any:
    """The arguments with their tensors changed, also in lists."""

    def changed(arg: Any) -> Any:
        return change(arg) if isinstance(arg, torch.Tensor) else arg

    return tuple(
        type(arg)(map(changed, arg)) if type(arg) in (list, tuple) else changed(arg) for arg in args
    )
