"""Outputs of a forward pass: their tensors, and the backward pass that begins there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook

PLAIN = (type(None), bool, int, float, str, bytes)
"""Types that an output may contain in addition to tensors."""


def leaves(output: Any) -> Iterator[Any]:
    """Yield the objects in an output's nested lists, tuples and dicts."""
    if isinstance(output, dict):
        output = tuple(output.values())
    if not isinstance(output, (list, tuple)):
        yield output
        return
    for each in output:
        yield from leaves(each)


def unseen(output: Any) -> Iterator[Any]:
    """Yield objects in an output that may hold tensors out of reach of fully_shard."""
    return (each for each in leaves(output) if not isinstance(each, (torch.Tensor, *PLAIN)))


def when_backward_begins(output: Any, act: Callable[[], object]) -> None:
    """Call `act` at the beginning of each backward pass through an output. backward() raises its exceptions."""
    found = [each for each in leaves(output) if isinstance(each, torch.Tensor) and each.requires_grad]
    if found:
        register_multi_grad_hook(found, lambda _: act(), mode="any")


def in_full(output: Any) -> Any:
    """Return an output with its half-precision tensors in fp32, as the script expects."""
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
    if type(output) is dict:
        return {key: in_full(part) for key, part in output.items()}
    if isinstance(output, dict):  # a subclass, as in transformers
        for key, part in list(output.items()):
            output[key] = in_full(part)
        return output
    if type(output) in (tuple, list):
        return type(output)(map(in_full, output))
    return type(output)(*map(in_full, output)) if hasattr(output, "_fields") else output
