"""zero1 in a script that wraps nothing in DistributedDataParallel, and averages gradients over the ranks itself.

That all ranks make the same step shows at the step alone: before each, checksums of the parameters and of their
gradients are compared over all ranks. Where they differ, as in ranks that train for themselves, the run stops there.
"""

from __future__ import annotations

import functools
import json
import os
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from .adopted import AdoptionError, where
from .checksums import short, values_of
from .peer_service import PeerService, job_store
from .sharded_steps import parameters_of

ARRIVE_S = 60.0
"""The longest that the ranks may be apart at the first step of an optimizer."""
POLL_S = 0.01
ASPECTS = ("its parameters or the optimizer", "its gradients", "the values of its parameters")
"""What a step's checksums are of."""


class EqualSteps:
    """The steps of this process, which every rank makes alike."""

    def __init__(self) -> None:
        """Raises AdoptionError where the ranks have no store that can be reached."""
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"distui/steps/{restart}", job_store())
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._count = 0
        self._group: Any = None
        self._service: PeerService | None = None

    def has(self, optimizer: Optimizer) -> bool:
        """Whether it has made a step."""
        return optimizer in self._numbers

    def meet(self, optimizer: Optimizer) -> None:
        """Before an optimizer's first step: whether every rank comes to it. Raises AdoptionError."""
        self._count += 1
        self._numbers[optimizer] = self._count
        ranks, own = range(dist.get_world_size()), dist.get_rank()
        key, began = f"{self._count}/", time.monotonic()
        sums = self._sums(optimizer)
        self._store.set(f"{key}{own}", json.dumps(sums))
        for rank in ranks:
            while not self._store.check([f"{key}{rank}"]):
                if time.monotonic() - began > ARRIVE_S:
                    raise AdoptionError(
                        f"rank {own} makes an optimizer step at {where()}, and rank {rank} has not come to it in "
                        f"{ARRIVE_S:.0f} s: {WITHOUT}; leave --adopt out"
                    )
                time.sleep(POLL_S)
            theirs = json.loads(self._store.get(f"{key}{rank}"))
            for aspect, here, there in zip(ASPECTS, sums, theirs):
                if here != there:
                    raise AdoptionError(self._sentence(aspect, "first optimizer step"))
        if self._group is None:
            self._group = dist.new_group(backend="gloo")

    def count_passes(self, service: PeerService) -> None:
        """Have a rank that has ended know by backward passes and steps of this one whether it is waited for."""
        self._service, theirs = service, torch.autograd.backward

        @functools.wraps(theirs)
        def backward(*args: Any, **named: Any) -> Any:
            service.passes += 1
            return theirs(*args, **named)

        torch.autograd.backward = backward

    def check(self, optimizer: Optimizer) -> None:
        """Before each further step. Raises AdoptionError where the ranks differ."""
        own = self._sums(optimizer)
        if self._service is not None:
            self._service.passes += 1
        sums = torch.tensor([*own, *(~each for each in own)])
        try:
            dist.all_reduce(sums, dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:  # a rank has gone
            raise AdoptionError(
                f"rank {dist.get_rank()} makes an optimizer step at {where()}, and another rank has ended: "
                f"{WITHOUT}; leave --adopt out"
            ) from error
        most, least = sums[: len(own)], ~sums[len(own) :]
        for aspect, highest, lowest in zip(ASPECTS, most.tolist(), least.tolist()):
            if highest != lowest:
                raise AdoptionError(self._sentence(aspect, "optimizer step"))

    def _sentence(self, aspect: str, step: str) -> str:
        return (
            f"the script's {step} at {where()} has no DistributedDataParallel before it, and {aspect} differ between "
            "the ranks, which zero1 needs equal; leave --adopt out"
        )

    def _sums(self, optimizer: Optimizer) -> list[int]:
        """Of each of ASPECTS, 63 bits. Raises AdoptionError for tensors that have no plain values."""
        parameters = parameters_of(optimizer)
        gradients = [each.grad for each in parameters if each.grad is not None]
        if any(
            isinstance(each, DTensor) or each.layout != torch.strided for each in [*parameters, *gradients]
        ):
            raise AdoptionError(
                f"zero1 cannot be applied at {where()}: a parameter, or its gradient, is in shards or sparse; "
                "leave --adopt out"
            )
        form = [
            (tuple(each.shape), str(each.dtype), each.requires_grad, each.grad is not None)
            for each in parameters
        ]
        kind = type(optimizer)
        return [
            short((self._numbers[optimizer], kind.__module__, kind.__name__, form)),
            short(values_of(gradients)),
            short(values_of(parameters)),
        ]


WITHOUT = "without DistributedDataParallel in the script, zero1 needs every rank at each step"
