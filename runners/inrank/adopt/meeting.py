"""Check that all ranks are at the same operation before each collective.

If ranks enter a collective for different operations, it hangs or computes with the wrong tensors. So before each
collective the ranks compare their operations in one small all_reduce over gloo. If they differ, all ranks stop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .refusals import refusal
from .report import AdoptionError, where

END = "end"


def digest(value: Any) -> int:
    """Return 63 bits of a hash of a value's repr()."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big") >> 1


class Meeting:
    """All ranks of the job. Every rank has to create it at the same place of its script."""

    def __init__(self, why: str) -> None:
        """`why`: why all ranks have to do the same, and the remedy, as the end of a sentence."""
        self._why = why
        self._group = dist.new_group(backend="gloo")

    def meet(self, what: str, facts: Sequence[Any] = ()) -> list[bool]:
        """Wait until every rank is about to do `what`. Return for each fact whether all ranks have it.

        Every rank gives the same number of facts for the same `what`, two at most. Raises AdoptionError.
        """
        own = [digest(what), *map(digest, facts), 0, 0][:3]
        extremes = torch.tensor([own, [~each for each in own]])  # the greatest of ~x is ~ of the least
        try:
            dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:  # the other process has gone, or has not come within gloo's timeout
            raise refusal("other rank ended", rank=dist.get_rank(), what=what, why=self._why) from error
        greatest, least = extremes[0].tolist(), (~extremes[1]).tolist()
        if greatest[0] != least[0]:
            raise self._difference(what)
        return [most == fewest for most, fewest in zip(greatest[1:], least[1:])][: len(facts)]

    def _difference(self, what: str) -> AdoptionError:
        """Return the refusal with the operations of this rank and of one that differs."""
        doing: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
        dist.all_gather_object(doing, (what, where()), group=self._group)
        other = next((rank for rank, (theirs, _) in enumerate(doing) if theirs != what), 0)
        theirs, place = doing[other]
        if theirs != END:
            theirs = f"{theirs} at {place}"
        here = dist.get_rank()
        return refusal("other operation", other=other, theirs=theirs, rank=here, what=what, why=self._why)
