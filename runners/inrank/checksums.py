"""Checksums of tensors, by which ranks see whether they have the same numbers without sending them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

CHUNK = 1 << 22
"""Numbers of a tensor that are summed at a time."""
FACTOR = 1_000_003
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes: what a number's bits are read as."""


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Of the bits of a tensor, and of their order: an int64 on its device."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = plain.detach().contiguous().flatten().view(INTEGERS[plain.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in bits.split(CHUNK):
        order = torch.arange(1, 2 * len(part), 2, dtype=torch.int64, device=tensor.device)
        total = total * FACTOR + (part * order).sum()
    return total


def values_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Their checksums, with one wait for each device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for each in tensors:
        by_device.setdefault(each.device, []).append(checksum(each))
    return [number for sums in by_device.values() for number in torch.stack(sums).tolist()]


def short(value: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big") >> 1
