"""fsdp2 at a script's own DistributedDataParallel call: what it gets is one by its class, and sharded by fully_shard.

`module`, `no_sync()`, `require_backward_grad_sync` and buffers are as DDP has them; state dicts are whole on any rank
alone (sharded_states). Parameters are other objects than before the call: optimizers are pointed to them, and whatever
else still has the old ones raises where it uses them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from .adopted import AdoptionError, where
from .agreement import EVALUATION, Agreement
from .parallelize import data, layers
from .parallelize.settings import LAYERS, ParallelizeError, Settings, mesh_of
from .replaced_parameters import repoint
from .sharded_backward import Backwards, tensors
from .sharded_steps import parameters_of

CHECKED = 2
"""Passes for training that are compared between ranks; the others are not, as that takes some milliseconds."""
LEAST_SHARE = 0.5
"""Of the parameters: classes of modules that repeat are blocks if they have at least so much together."""
OBJECTS_DEPTH = 4
"""Levels of objects, lists and dicts in which an output is searched for tensors."""


def layers_of(model: nn.Module, config: Settings) -> list[nn.Module]:
    """Those the preset names, else members of module lists, else what repeats. Raises ParallelizeError."""
    return list(layers.units(model, config)) or repeated(model)


def blocks(model: nn.Module, config: Settings) -> list[nn.Module]:
    """The layers that are gathered as one: they share no parameter with anything outside. Raises ParallelizeError."""
    chosen = layers_of(model, config)
    uses = _uses(model)

    def alone(block: nn.Module) -> bool:
        return all(uses[key] == count for key, count in _uses(block).items())

    return [block for block in chosen if block is not model and alone(block)]


def prepared(model: nn.Module, config: Settings) -> list[str]:
    """Have its layers checkpointed and compiled as the preset says; what was done, in words. Raises AdoptionError."""
    asked = [name for name in LAYERS if config.options.get(name)]
    if not asked:
        return []
    lead = f"strategy.{asked[0]} cannot be applied at {where()}"
    otherwise = f"add --set strategy.{asked[0]}=false"
    if type(model).__name__ == "OptimizedModule" or isinstance(model, torch.jit.ScriptModule):
        raise AdoptionError(f"{lead}: the model is compiled already; {otherwise}")
    chosen = layers_of(model, config)
    if not chosen and "activation_checkpointing" in asked:
        raise AdoptionError(f"{lead}: the model has no layers that repeat; {otherwise}")
    return layers.prepare(chosen or [model], config)


def _uses(model: nn.Module) -> Counter[int]:
    """Id of each parameter → in how many places it stands."""
    return Counter(
        id(p)
        for module in model.modules()
        for _, p in module.named_parameters(recurse=False, remove_duplicate=False)
    )


def repeated(model: nn.Module) -> list[nn.Module]:
    """The outermost modules of the class that repeats and has most of the parameters; [] where none has much."""
    whole = sum(p.numel() for p in model.parameters())
    classes: dict[type, list[nn.Module]] = {}
    for module in model.modules():
        if module is not model and next(module.children(), None) is not None:
            classes.setdefault(type(module), []).append(module)
    best: list[nn.Module] = []
    for kind, modules in classes.items():
        if kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict):
            continue
        inner = {id(child) for each in modules for child in each.modules() if child is not each}
        outer = [each for each in modules if id(each) not in inner]
        if (
            len(outer) > 1
            and _elements(outer) >= LEAST_SHARE * whole
            and _elements(outer) > _elements(best)
        ):
            best = outer
    return best


def _elements(modules: list[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


class Stale(nn.Parameter):  # type: ignore[misc]
    """What a parameter becomes that fully_shard has replaced: nothing can be computed with it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AdoptionError(
            f"{where()} uses a parameter of the model from before DistributedDataParallel was called, which fsdp2 has "
            "replaced: have the script take it from the model again"
        )


class AdoptedFSDP(DistributedDataParallel):  # type: ignore[misc]
    """A model that the script wraps in DistributedDataParallel, and that is sharded instead."""

    def __init__(
        self,
        module: nn.Module,
        given: Mapping[str, Any],
        config: Settings,
        agreement: Agreement,
        backwards: Backwards,
    ) -> None:
        """Shard it; every rank does. `given`: DDP's further arguments. Raises AdoptionError and ParallelizeError."""
        nn.Module.__init__(self)
        _check(module, given)
        self.module = module
        self.device = next(p.device for p in module.parameters())
        self.device_type = self.device.type
        self.dim = int(given.get("dim", 0))
        self._moves = bool(given.get("device_ids"))
        self._sent_names = dict(module.named_buffers()).keys() - _ignored(module)
        self._agreement, self._backwards, self._number = agreement, backwards, id(self)
        self._copies_buffers = given.get("broadcast_buffers") is not False
        self._copies_next = self._gradients_travel = True
        if given.get("init_sync", True):
            for value in [*module.parameters(), *self._sent_buffers()]:
                dist.broadcast(value.detach(), src=0)
        self.whole_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
        self.process_group = dist.group.WORLD
        before = dict(module.named_parameters())
        attributes = {name: dict(vars(parameter)) for name, parameter in before.items()}
        self.prepared = prepared(module, config)
        """What was done to its layers, in words."""
        self.units = _shard(module, config, self.device_type)
        for name, parameter in module.named_parameters():
            vars(parameter).update(attributes[name])
        self.shards = dict(module.named_parameters())
        """Name → the part on this rank, also while the whole stands in its place."""
        _point(before, self.shards)
        repoint(before, self.shards)
        for parameter in before.values():
            parameter.__class__ = Stale
        self._trained = {name: p.requires_grad for name, p in self.shards.items()}
        self._passes, self.alone = 0, False
        """The second: whether this pass is one of this rank alone, for which the others send their parts unawares."""
        self.is_local = False
        """Whether the gradients of the last training pass stay on this rank, as those in no_sync() do."""
        self.static = bool(given.get("static_graph"))
        self._casts, self._begun = config.param != torch.float32, False
        """Whether outputs are converted; whether the whole has made a pass."""
        self._follow_units()

    def _follow_units(self) -> None:
        self._entered: nn.Module | None = None
        """The part of the model that the script has called itself, while it computes."""
        self._places = [(each, name, {id(p)}) for each, name, p in _places(self.module)]
        """Of each parameter: the module, its name there, and the ids of what may stand there."""
        for unit in self.units:
            unit.named_parameters = self._resting(unit.named_parameters)
            unit.register_forward_pre_hook(self._enter, prepend=True)
            unit.register_forward_hook(self._pass, always_call=True)
            kind: Any = type(unit)
            kind.__deepcopy__, kind.__reduce_ex__ = AdoptedFSDP.__deepcopy__, AdoptedFSDP.__reduce_ex__

    def learn(self) -> None:
        """While parameters are gathered: what stands in their places then."""
        for (_, _, allowed), (_, _, parameter) in zip(self._places, _places(self.module)):
            allowed.add(id(parameter))

    def _check_places(self, whole: bool) -> None:
        """Raises AdoptionError where the script has put something else into the place of a parameter."""
        for module, name, allowed in self._places:
            if id(getattr(module, name, None)) not in allowed:
                raise AdoptionError(
                    f"another parameter, or none, stands in the place of {name} of {_kind(module)} in the pass "
                    f"at {where()}, as of functional_call(), pruning or tying behind DistributedDataParallel: take zero1"
                )
        if whole and sum(1 for _ in _places(self.module)) != len(self._places):
            raise AdoptionError(
                "the model has more parameters, or fewer, than when DistributedDataParallel was called, in the pass at "
                f"{where()}, and fsdp2 does not follow that: change them before, or take zero1"
            )

    _check_places._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _sent_buffers(self) -> list[torch.Tensor]:
        """Those that come from rank 0."""
        return [value for name, value in self.module.named_buffers() if name in self._sent_names]

    def _resting(self, theirs: Any) -> Any:
        """Have the script see shards, also between a forward and a backward pass."""

        @functools.wraps(theirs)
        def named_parameters(*args: Any, **named: Any) -> Any:
            self.rest()
            return theirs(*args, **named)

        return named_parameters

    def rest(self) -> None:
        """The shards stand in the place of what was gathered, unless the model computes."""
        if not self._agreement.inside:
            for unit in self.units:
                unit.reshard()

    def _enter(self, module: nn.Module, args: Any) -> None:
        """Before a unit's forward pass."""
        if not self._agreement.inside or module is self.module:
            self._check_places(module is self.module)
        if not self._agreement.inside:
            if not self._begun and module is not self.module:
                raise AdoptionError(
                    f"{where()} calls a part of the model before the whole, and fsdp2 needs a pass of the whole first: "
                    "take zero1"
                )
            self._agree(trains=False)
            self._entered, self._agreement.inside = module, 1

    def _pass(self, module: nn.Module, args: Any, output: Any) -> None:
        """After it: what an evaluation has gathered goes, as no backward pass comes for it."""
        if self._entered is not None or not self._trains():
            module.reshard()
        elif not torch.compiler.is_compiling():
            _check_seen(module, output, self._casts)
        if self._entered is module:
            self._entered, self._agreement.inside = None, 0
            self._backwards.refuse(
                output,
                "makes a backward pass through a part of the model that was not called as what DistributedDataParallel "
                "returns, which averages no gradients then: call that",
            )

    def _trains(self) -> bool:
        return torch.is_grad_enabled() and bool(self.module.training)

    def _agree(self, trains: bool) -> None:
        """Whether every rank makes this pass. Raises AdoptionError."""
        changed = [name for name, p in self.shards.items() if p.requires_grad != self._trained[name]]
        if changed:
            raise AdoptionError(
                f"requires_grad of {changed[0]} has changed before {where()}, which fsdp2 does not follow: take zero1,"
                " or freeze it before DistributedDataParallel is called"
            )
        self.alone = False
        if not trains:
            self.alone = self._agreement.others(EVALUATION) is not None
        elif self._passes < CHECKED:
            self._agreement.need("training pass")
        else:
            self._agreement.note("training pass")
        self._passes += trains

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """As DDP's: buffers come from rank 0 first."""
        self._begun = True
        if not self._agreement.inside:
            self._agree(self._trains())
        if self._moves:
            inputs, named = _moved(inputs, self.device), _moved(named, self.device)
        with self._agreement.zone():
            if self._copies_buffers and self._copies_next and not self.alone:
                for value in self._sent_buffers():
                    dist.broadcast(value, src=0)
            output = self.module(*inputs, **named)
        if self.alone:
            self._backwards.refuse(
                output, "makes a backward pass on one rank alone, and fsdp2 needs all: take zero1"
            )
        else:
            self._backwards.expect(self._number, output)
            self._copies_next = torch.is_grad_enabled() and self._gradients_travel
            if self._trains():
                self.is_local = not self._gradients_travel
        return output

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the next backward pass sums gradients over the ranks."""
        return self._gradients_travel

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._gradients_travel = bool(value)
        self.module.set_requires_gradient_sync(bool(value))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients add up on this rank."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Raises AdoptionError."""
        raise AdoptionError(
            f"fsdp2 takes no communication hook, which the script registers at {where()}: take ddp"
        )

    def named_parameters(self, *args: Any, **named: Any) -> Any:
        """As every module's."""
        self.rest()
        return nn.Module.named_parameters(self, *args, **named)

    def __deepcopy__(self, memo: Any) -> Any:
        """Raises AdoptionError."""
        raise AdoptionError(
            f"{where()} copies a model that fsdp2 has sharded: copy it before DistributedDataParallel is called, or"
            " take zero1"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises AdoptionError."""
        raise AdoptionError(
            f"{where()} saves, or sends, a model that fsdp2 has sharded: have it save the state_dict(), or take zero1"
        )

    def train(self, mode: bool = True) -> AdoptedFSDP:
        """As every module's."""
        nn.Module.train(self, mode)
        return self

    def local_bytes(self) -> int:
        """Of the parameters on this rank, as they are."""
        return sum(p.to_local().numel() * p.element_size() for p in self.shards.values())


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Where parameters stand now, also those that stand in several places."""
    for module in model.modules():
        for name, parameter in nn.Module.named_parameters(module, recurse=False, remove_duplicate=False):
            yield module, name, parameter


def _kind(module: nn.Module) -> str:
    """Name of a module's class, without what fully_shard puts before it."""
    return type(module).__name__.removeprefix("FSDP")


def _check_seen(module: nn.Module, output: Any, casts: bool) -> None:
    """Raises AdoptionError for an output in which fully_shard has not found the tensors that it waits for."""
    cast = set(map(id, tensors(output))) if casts else ()  # copies of what was seen
    if any(
        each.requires_grad and not each._backward_hooks and id(each) not in cast
        for each in tensors(output, objects=True, depth=OBJECTS_DEPTH)
    ):
        raise AdoptionError(
            f"{_kind(module)} returns a {type(output).__name__} at {where()}, in which fully_shard does not see "
            "the tensors: return a tensor, tuple or dict, or take zero1"
        )


def _check(module: nn.Module, given: Mapping[str, Any]) -> None:
    """Raises AdoptionError for what fully_shard would not do as DDP does."""
    refused = ""
    if given.get("find_unused_parameters"):
        refused = "the script has DistributedDataParallel look for unused parameters, which may differ between ranks"
    elif given.get("process_group") is not None or given.get("device_mesh") is not None:
        refused = "the script gives DistributedDataParallel ranks of its own"
    elif given.get("mixed_precision") is not None or given.get("delay_all_reduce_named_params"):
        refused = "the script has DistributedDataParallel do more than average gradients"
    elif _ignored(module) & dict(module.named_parameters(remove_duplicate=False)).keys():
        refused = "the script has DistributedDataParallel ignore parameters"
    elif type(module).__name__ == "OptimizedModule":
        refused = "the model is compiled already; torch.compile() behind the call is well"
    elif any(p.grad is not None for p in module.parameters()):
        refused = "parameters have gradients already"
    elif any(
        getattr(p, "_backward_hooks", None) or getattr(p, "_post_accumulate_grad_hooks", None)
        for p in module.parameters()
    ):
        refused = "parameters have hooks"
    elif any(not p.ndim or not p.is_contiguous() for p in module.parameters()):
        refused = "a parameter is a single number, or not contiguous"
    elif len({p.device for p in module.parameters()}) != 1:
        refused = "the model's parameters are on several devices"
    elif any(
        isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse for each in module.modules()
    ):
        refused = "the gradient of an embedding is sparse"
    if refused:
        raise AdoptionError(f"fsdp2 cannot be applied at {where()}: {refused}; take zero1 or ddp")


def _ignored(module: nn.Module) -> set[str]:
    """Names of parameters and buffers that the script has DistributedDataParallel leave alone."""
    return set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))


def _shard(module: nn.Module, config: Settings, device: str) -> list[nn.Module]:
    """Raises ParallelizeError."""
    world, replicas = dist.get_world_size(), config.size("dp_replicate")
    if world % replicas:
        raise ParallelizeError(f"dp_replicate {replicas} does not divide the world size {world}")
    shape: dict[str, int] = {"dp_replicate": replicas, "dp_shard": world // replicas}
    if replicas == 1:
        del shape["dp_replicate"]
    mesh = mesh_of(device, shape, bool(config.options.get("cpu_offload")))
    half = config.param != torch.float32
    settings: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": data.reshard(config, int(mesh.size(-1))),
        "offload_policy": CPUOffloadPolicy(pin_memory=device == "cuda")
        if config.options.get("cpu_offload")
        else OffloadPolicy(),
    }
    policy = {
        "param_dtype": config.param if half else None,
        "reduce_dtype": None if config.reduce == config.param else config.reduce,
    }
    units = [*blocks(module, config), module]
    _check_formats(units)
    for unit in units[:-1]:
        fully_shard(unit, mp_policy=MixedPrecisionPolicy(**policy), **settings)
    root = MixedPrecisionPolicy(**policy, output_dtype=torch.float32 if half else None)
    fully_shard(module, mp_policy=root, **settings)
    return units


def _check_formats(units: list[nn.Module]) -> None:
    """Raises AdoptionError for a unit in several formats."""
    seen: set[int] = set()
    for unit in units:
        own = [p for p in unit.parameters() if id(p) not in seen]
        seen.update(map(id, own))
        formats = sorted({str(p.dtype).removeprefix("torch.") for p in own if p.requires_grad})
        if len(formats) > 1:
            raise AdoptionError(
                f"fsdp2 cannot be applied at {where()}: parameters that are gathered as one are {' and '.join(formats)};"
                " take zero1"
            )


def _point(before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
    """Have the optimizers that were made before hold the parameters that are there now, and a part of their states."""
    new = {id(parameter): after[name] for name, parameter in before.items()}
    for optimizer in [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]:
        if not any(id(p) in new for p in parameters_of(optimizer)):
            continue
        for group in optimizer.param_groups:
            group["params"] = [new.get(id(p), p) for p in group["params"]]
        for old in [key for key in optimizer.state if id(key) in new]:
            parameter = new[id(old)]
            optimizer.state[parameter] = {
                name: as_shard(value, parameter) for name, value in optimizer.state.pop(old).items()
            }


def as_shard(value: Any, parameter: Any) -> Any:
    """A whole tensor of a parameter's size as this rank's part of it; anything else as it is."""
    if (
        not isinstance(value, torch.Tensor)
        or isinstance(value, DTensor)
        or value.shape != parameter.shape
        or not value.ndim
    ):
        return value
    mesh = parameter.device_mesh
    there = value.to(parameter.to_local().device)
    if there.device.type == mesh.device_type:
        return distribute_tensor(there, mesh, parameter.placements, src_data_rank=None)
    part = there.chunk(mesh.size(-1))  # shards that rest in host memory
    at = mesh.get_local_rank(mesh.ndim - 1)
    local = part[at] if at < len(part) else there[:0]
    return DTensor.from_local(
        local.clone(), mesh, parameter.placements, run_check=False, shape=value.shape, stride=value.stride()
    )


def _moved(value: Any, device: torch.device) -> Any:
    """Inputs on the device of the model, as DDP moves them."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) in (tuple, list):
        return type(value)(_moved(each, device) for each in value)
    return {key: _moved(each, device) for key, each in value.items()} if type(value) is dict else value
