"""Whole state dicts of a sharded model: any rank can take one, and a sharded model can load one."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from .meeting import Meeting
from .optimizers import parameters_of
from .peers import Peers
from .sharding import as_shard

MOST_BYTES = 256 << 20
"""Approximate size in bytes of one request for tensors."""
Key = Any
"""Name of a parameter, or of a state: (number of the optimizer, number of the parameter, name)."""


class WholeStates:
    """State dicts of one sharded model and of the optimizers of its parameters."""

    def __init__(self, topic: str, module: nn.Module, peers: Peers, meeting: Meeting) -> None:
        self._topic, self._version = topic, 0
        self._module, self._peers, self._meeting = module, peers, meeting
        self._optimizers: list[Optimizer] = []
        self._shards = dict(module.named_parameters(remove_duplicate=False))
        module.register_state_dict_post_hook(
            functools.partial(self._make_whole)
        )  # torch sets an attribute of it
        module.register_load_state_dict_pre_hook(self._take_parts)
        module.register_load_state_dict_post_hook(lambda *_: self.changed())
        self.changed()

    def changed(self) -> None:
        """Serve the shards as they are now."""
        self._version += 1
        self._peers.serve(self._topic, self._version, self._answer)

    def take(self, optimizer: Optimizer) -> None:
        """Add an optimizer that steps on parameters of this model."""
        if not self.has(optimizer):
            self._optimizers.append(optimizer)
            self._shard_states(optimizer)  # the script may have loaded a checkpoint before its first step
            optimizer.register_state_dict_post_hook(self._make_states_whole)
            optimizer.register_load_state_dict_pre_hook(lambda *_: self._loads())
            optimizer.register_load_state_dict_post_hook(self._shard_states)

    def has(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer was added."""
        return any(each is optimizer for each in self._optimizers)

    def _tensor(self, key: Key) -> Any:
        if isinstance(key, str):
            return self._shards[key]
        at, number, name = key
        return self._optimizers[at].state[parameters_of(self._optimizers[at])[number]][name]

    def _answer(self, keys: Sequence[Key]) -> list[torch.Tensor]:
        """Return this rank's shards on the CPU."""
        return [self._tensor(key).to_local().detach().cpu() for key in keys]

    def _whole(self, keys: Sequence[Key]) -> Iterator[torch.Tensor]:
        """Yield whole tensors, gathered in batches. Raises AdoptionError."""
        batch: list[Key] = []
        size = 0
        for key in keys:
            tensor = self._tensor(key)
            batch.append(key)
            size += tensor.numel() * tensor.element_size()
            if size > MOST_BYTES:
                yield from self._gathered(batch)
                batch, size = [], 0
        if batch:
            yield from self._gathered(batch)

    def _gathered(self, keys: Sequence[Key]) -> Iterator[torch.Tensor]:
        mesh = self._tensor(keys[0]).device_mesh
        ranks = dist.get_process_group_ranks(mesh.get_group(mesh.ndim - 1))
        theirs = iter(self._peers.ask(self._topic, self._version, keys, ranks))
        parts = [self._answer(keys) if rank == self._peers.rank else next(theirs) for rank in ranks]
        for at in range(len(keys)):
            yield torch.cat([part[at] for part in parts])

    def _make_whole(self, module: nn.Module, state: Any, prefix: str, _: Any) -> None:
        """Replace shards by whole tensors, after the model's state_dict()."""
        keys = [name for name in self._shards if isinstance(state.get(prefix + name), DTensor)]
        names = {id(self._shards[name]): name for name in keys}  # one of each tied parameter
        whole = dict(zip(names, self._whole(list(names.values()))))
        for name in keys:
            state[prefix + name] = whole[id(self._shards[name])]

    def _loads(self) -> None:
        """Check that all ranks are about to load a checkpoint. Raises AdoptionError."""
        self._meeting.meet("load_state_dict()")

    def _take_parts(self, module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
        """Replace whole tensors by this rank's shards, before load_state_dict()."""
        self._loads()
        for name, shard in self._shards.items():
            value = state.get(prefix + name)
            if isinstance(value, torch.Tensor):
                state[prefix + name] = as_shard(value.detach().to(shard.dtype), shard)

    def _make_states_whole(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        at = next(at for at, each in enumerate(self._optimizers) if each is optimizer)
        copied = {number: dict(values) for number, values in state["state"].items()}
        keys = []
        for number, values in copied.items():
            own = isinstance(number, int) and self._has_parameter(parameters_of(optimizer)[number])
            keys += [
                (at, number, name) for name, value in values.items() if own and isinstance(value, DTensor)
            ]
        for (_, number, name), whole in zip(keys, self._whole(keys)):
            copied[number][name] = whole
        return {**state, "state": copied}

    def _has_parameter(self, parameter: Any) -> bool:
        return any(parameter is each for each in self._shards.values())

    def _shard_states(self, optimizer: Optimizer) -> None:
        for parameter, values in optimizer.state.items():
            if isinstance(parameter, DTensor):
                optimizer.state[parameter] = {
                    name: as_shard(value, parameter) for name, value in values.items()
                }
        self.changed()
