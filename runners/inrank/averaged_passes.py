"""Whether DistributedDataParallel averages what a script's backward passes add to the gradients of a model.

Its reducer averages one backward pass behind forward passes through the wrapper, outside of no_sync(). What others add
(through `model.module`, in no_sync(), a second backward()) is of this rank alone until the next pass that is averaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import Variable


class AveragedPasses:
    def __init__(self, ddp: Any, parameters: Iterable[torch.Tensor]) -> None:
        self.is_local = False
        """Whether gradients hold what no rank has averaged."""
        self._is_awaited = self._is_ending = False
        self._numbers = set()
        for parameter in parameters:
            self._numbers.add(id(parameter))
            parameter.register_post_accumulate_grad_hook(self._added)
        ddp.register_forward_hook(self._called)

    def trains(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of these is the model's."""
        return not self._numbers.isdisjoint(map(id, parameters))

    def _called(self, ddp: Any, args: Any, output: Any) -> None:
        if torch.is_grad_enabled() and ddp.require_backward_grad_sync:
            self._is_awaited = True

    def _added(self, parameter: torch.Tensor) -> None:
        if not self._is_awaited:
            self.is_local = True
        elif not self._is_ending:
            self._is_ending = True
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._averaged)  # at the end of this backward pass

    def _averaged(self) -> None:
        self._is_awaited = self._is_ending = self.is_local = False

    _called._torchdynamo_disable = True  # type: ignore[attr-defined]
