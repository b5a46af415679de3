"""Refuse every use of a sharded parameter, or of its gradient, that is not on a list.

With fully_shard each is a DTensor, and a rank has a part of it. Passes, optimizer steps, clip_grad_norm_() and state
dicts compute the same result with parts. Other uses may not, so they stop the run at that line.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .refusals import refusal

METADATA = frozenset(
    (
        *("__get__", "__hash__", "__len__", "__repr__"),
        *("numel", "nelement", "size", "dim", "ndimension", "stride", "element_size"),
        *("is_contiguous", "is_floating_point"),
    )
)
"""Functions of a tensor that the script may call: they read no values, and describe the whole tensor."""
CALLERS = (
    "torch.optim.",
    "torch.nn.utils.clip_grad",
    "torch.amp.",
    "torch.autograd.graph",
    "torch.distributed.fsdp.",
    "torch.distributed.tensor.",
    "torch._dynamo.",
    "torch._subclasses.",
    "torch._functorch.",
    "torch.fx.",
    __name__.rpartition(".")[0] + ".",
)
"""Modules that compute the same result with parts, or gather the parts."""
NOT_CALLERS = ("torch.optim.swa_utils",)
MODULE_FUNCTIONS = frozenset(
    (
        *("state_dict", "_save_to_state_dict", "load", "load_state_dict", "_load_from_state_dict"),
        *("zero_grad", "__setattr__", "register_parameter"),
    )
)
"""Functions of torch.nn.modules.module that may call functions of a sharded tensor."""
WRAPPERS = frozenset(
    [
        "torch.overrides",
        "torch.nn.parameter",
        "torch._tensor",
        "torch.functional",
        "torch.utils._foreach_utils",
    ]
)
"""Modules through which other code calls functions of tensors."""


def guard() -> None:
    """Refuse unlisted uses in this process from now on."""
    theirs = DTensor.__torch_function__

    def checked(kind: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in METADATA and not _clears(func, args) and not _is_listed():
            raise refusal("use of a shard", name=getattr(func, "__name__", str(func)))
        return theirs(func, types, args, kwargs or {})

    DTensor.__torch_function__ = classmethod(checked)


def _clears(func: Any, args: Any) -> bool:
    """Whether this is `parameter.grad = None`."""
    return bool(func == torch.Tensor.grad.__set__) and args[1] is None


def _is_listed() -> bool:
    """Whether the caller of a tensor's function is listed."""
    frame: FrameType | None = sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__") in WRAPPERS:
        frame = frame.f_back
    if frame is None:
        return True
    module = str(frame.f_globals.get("__name__"))
    if module == "torch.nn.modules.module":
        return frame.f_code.co_name in MODULE_FUNCTIONS
    return module.startswith(CALLERS) and module not in NOT_CALLERS
