"""State dicts of a model in shards: whole on any rank alone, as DDP gives them, and loaded from the whole by each."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from .adopted import AdoptionError
from .adopted_fsdp import AdoptedFSDP, as_shard
from .agreement import Agreement
from .peer_service import PeerService
from .sharded_steps import parameters_of

MOST_BYTES = 256 << 20
"""Of what is asked for at a time."""
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The newer name of the same."""


class ShardedStates:
    """Of one wrapped model and the optimizers of its parameters."""

    def __init__(self, model: AdoptedFSDP, number: int, service: PeerService, agreement: Agreement) -> None:
        self._model, self._service, self._agreement = model, service, agreement
        self._name, self.version = f"model {number}", 0
        self._optimizers: list[Optimizer] = []
        self._units: list[_FromPeers] = []
        service.serve(self._name, lambda: self.version, self._answer)
        self._gathered_units()
        for module in [model, *model.module.modules()]:
            module.register_state_dict_pre_hook(lambda *_: model.rest())
            module.register_state_dict_post_hook(functools.partial(self._given))  # torch marks it
            module.register_load_state_dict_pre_hook(self._taken)
        model.register_load_state_dict_post_hook(lambda *_: self.changed())
        model.module.register_load_state_dict_post_hook(lambda *_: self.changed())

    def _gathered_units(self) -> None:
        """Have each unit gathered by this class, and check that it does so as torch does. Raises AdoptionError."""
        for number, unit in enumerate(self._model.units):
            gather = _FromPeers(self, number, _flat_order(unit, self._model.units))
            unit.set_custom_all_gather(gather)
            self._units.append(gather)
            unit.unshard()
            self._model.learn()
            unit.reshard()

    def changed(self) -> None:
        """Before, and after, anything changes what is served; in between nothing is."""
        self._service.changed(self._name)
        self.version += 1

    def take(self, optimizer: Optimizer) -> None:
        """An optimizer that steps on parameters of this model."""
        if not self.has(optimizer):
            self._optimizers.append(optimizer)
            self._taken_by_optimizer(optimizer)  # a checkpoint may have been loaded before its first step
            optimizer.register_state_dict_post_hook(self._given_of_optimizer)
            optimizer.register_load_state_dict_pre_hook(lambda *_: self._loads())
            optimizer.register_load_state_dict_post_hook(self._taken_by_optimizer)

    def has(self, optimizer: Optimizer) -> bool:
        """Whether it is one of them."""
        return any(each is optimizer for each in self._optimizers)

    def whole(self, tensor: DTensor) -> torch.Tensor | None:
        """By asking the other ranks, of a parameter or what shares its memory; None for anything else."""
        local = tensor.to_local()
        for name, shard in self._model.shards.items():
            own = shard.to_local()
            same = own.numel() and own.data_ptr() == local.data_ptr() and own.dtype == local.dtype
            if shard is tensor or (
                same and (shard.shape, shard.stride()) == (tensor.shape, tensor.stride())
            ):
                (whole,) = self._whole([name])
                return whole.to(local.device)
        return None

    def _answer(self, question: Any) -> list[torch.Tensor]:
        """The shards on this rank: of parameters by name, of states by optimizer, parameter and name."""
        if isinstance(question, int):
            return [self._units[question].own().cpu()]
        return [self._tensor(key).to_local().detach().cpu() for key in question]

    def unit(self, number: int, group: Any) -> list[torch.Tensor]:
        """What each other rank of a group has of a unit, in their order."""
        ranks = dist.get_process_group_ranks(group)
        return [part for (part,) in self._service.ask(self._name, self.version, number, ranks)]

    @property
    def alone(self) -> bool:
        """Whether this rank makes a pass alone."""
        return self._model.alone

    def _tensor(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._model.shards[key]
        at, number, name = key
        return self._optimizers[at].state[parameters_of(self._optimizers[at])[number]][name]

    def _whole(self, keys: list[Any]) -> Iterator[torch.Tensor]:
        """Put together, some at a time."""
        batch: list[Any] = []
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

    def _gathered(self, keys: list[Any]) -> Iterator[torch.Tensor]:
        mesh = self._tensor(keys[0]).device_mesh
        ranks = dist.get_process_group_ranks(mesh.get_group(mesh.ndim - 1))
        theirs = iter(self._service.ask(self._name, self.version, keys, ranks))
        parts = [self._answer(keys) if rank == self._service.rank else next(theirs) for rank in ranks]
        for at in range(len(keys)):
            yield torch.cat([part[at] for part in parts])

    def _given(self, module: nn.Module, state: Any, prefix: str, _: Any) -> None:
        """What state_dict() returns: whole tensors in place of shards."""
        if prefix and module is not self._model.module:
            return
        names = {id(p): name for name, p in self._model.module.named_parameters()}
        own = {prefix + name: names[id(p)] for name, p in _named(module) if isinstance(p, DTensor)}
        keys = [key for key in state if key in own and isinstance(state[key], DTensor)]
        unique = list(dict.fromkeys(own[key] for key in keys))
        whole = dict(zip(unique, self._whole(unique)))
        for key in keys:
            state[key] = whole[own[key]]

    def _loads(self) -> None:
        """Before anything is loaded, which all ranks do: what another one still saves is what was there."""
        if self._agreement.outside():
            self._agreement.need("load_state_dict()")
        self.changed()

    def _taken(self, module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
        """Before load_state_dict(): this rank's shards in place of whole tensors."""
        if module is self._model or module is self._model.module:
            self._loads()
        for name, parameter in module.named_parameters(recurse=False):
            value = state.get(prefix + name)
            if isinstance(parameter, DTensor) and isinstance(value, torch.Tensor):
                state[prefix + name] = as_shard(value.detach().to(parameter.dtype), parameter)

    def _given_of_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        at = next(at for at, each in enumerate(self._optimizers) if each is optimizer)
        keys = [
            (at, number, name)
            for number, values in state["state"].items()
            for name, value in values.items()
            if isinstance(value, DTensor)
        ]
        copied = {number: dict(values) for number, values in state["state"].items()}
        for (_, number, name), whole in zip(keys, self._whole(keys)):
            copied[number][name] = whole
        return {**state, "state": copied}

    def _taken_by_optimizer(self, optimizer: Optimizer) -> None:
        for parameter, values in optimizer.state.items():
            if isinstance(parameter, DTensor):
                optimizer.state[parameter] = {
                    name: as_shard(value, parameter) for name, value in values.items()
                }
        self.changed()


class _FromPeers:
    """How a unit comes by the parts of all ranks: by torch's collective, or from their threads for a rank alone."""

    def __init__(self, states: ShardedStates, number: int, parameters: list[Any]) -> None:
        self._states, self._number, self._parameters = states, number, parameters
        self._dtype: torch.dtype | None = None
        """That in which the parts travel; None before the first time."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """See torch's AllGather."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """See torch's AllGather. Raises AdoptionError where torch has laid the parts out in another way."""
        if self._dtype is None:
            self._dtype = input_tensor.dtype
            if not torch.equal(
                self.own().to(input_tensor.device), input_tensor
            ):  # shards may rest in host memory
                raise AdoptionError(
                    "torch lays out shards in a way that --adopt does not know: leave it out, or take zero1"
                )
        if not self._states.alone:
            return GATHER(output_tensor, input_tensor, group, async_op)
        rows = output_tensor.view(dist.get_world_size(group), -1)
        theirs, here = iter(self._states.unit(self._number, group)), dist.get_rank(group)
        for at, row in enumerate(rows):
            row.copy_(input_tensor if at == here else next(theirs))
        return None

    def own(self) -> torch.Tensor:
        """The parts on this rank, one behind the other, each as long as the longest."""
        parts = []
        for parameter in self._parameters:
            mesh, local = parameter.device_mesh, parameter.to_local().detach()
            longest = -(-parameter.shape[0] // mesh.size(mesh.ndim - 1))
            whole = local.new_zeros((longest, *parameter.shape[1:]))
            whole[: local.shape[0]] = local
            parts.append(whole.flatten().to(self._dtype))
        return torch.cat(parts) if parts else torch.empty(0)


def _flat_order(unit: nn.Module, units: list[nn.Module]) -> list[Any]:
    """The parameters of a unit in torch's order: those of children first."""
    seen: dict[int, Any] = {}

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if not any(child is each for each in units):
                walk(child)
        for parameter in module.parameters(recurse=False):
            seen.setdefault(id(parameter), parameter)

    walk(unit)
    return list(seen.values())


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return iter(module.named_parameters(remove_duplicate=False))
