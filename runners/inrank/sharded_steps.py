"""zero1 for optimizers that a script makes itself: each rank updates its share of the parameters and sends it on.

The optimizer stays the script's object. Around each of its steps the gradients of the other ranks' parameters are
hidden, so that torch's optimizers skip those and keep no state for them; what each rank has updated is then broadcast.
The numbers are DDP's to the last bit. Its state_dict() is whole on any rank, whoever calls it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer

from .adopted import AdoptionError, gives_closure, where
from .agreement import Agreement
from .averaged_passes import AveragedPasses
from .checksums import short, values_of
from .peer_service import PeerService
from .sharded_backward import BACKWARD, tensors

BY_PARAMETER = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
"""Optimizers of torch's that update each parameter by itself, and none without a gradient."""
KEPT_STEPS = 100
"""An optimizer that has not stepped during so many steps of others is the script's alone."""
BY_ELEMENT = ("Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
"""Those of them that update each element by itself."""
BUCKET_BYTES = 32 << 20
"""Smaller parameters are sent together, up to so much."""


def shares(sizes: Sequence[int], ranks: int) -> list[int]:
    """Which rank has each of some sizes, so that all ranks have about as much; the same wherever it is computed."""
    held, owners = [0] * ranks, [0] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        rank = min(range(ranks), key=lambda rank: (held[rank], rank))
        owners[at] = rank
        held[rank] += sizes[at]
    return owners


def by_parameter(kind: type) -> bool:
    """Whether optimizers of this class are torch's own, and update each parameter by itself."""
    return kind.__name__ in BY_PARAMETER and getattr(torch.optim, kind.__name__, None) is kind


def check_kind(optimizer: Optimizer, otherwise: str, what: str = "zero1") -> None:
    """Raises AdoptionError for one that may not be divided, or whose steps may not be left out."""
    kind = type(optimizer)
    if not by_parameter(kind):
        does = "divides" if what == "zero1" else "takes"
        raise AdoptionError(
            f"{what} cannot be applied to {kind.__module__}.{kind.__name__}, which steps at {where()}: it {does} "
            f"optimizers of torch's that update each parameter by itself, as AdamW; {otherwise}"
        )


UPDATES = (
    "zero1 needs every rank at each optimizer step, as each updates a part of the parameters; take ddp"
)


class _Elsewhere(dict[str, Any]):
    """The state of a parameter that another rank updates."""

    def __missing__(self, name: str) -> Any:
        raise AdoptionError(
            f"{where()} reads {name!r} of an optimizer's state for a parameter that zero1 has another rank update: "
            "take it from state_dict(), or take ddp"
        )

    def __setitem__(self, name: str, value: Any) -> None:
        self.__missing__(name)


class _States(defaultdict[Any, Any]):
    """An optimizer's, with those of other ranks' parameters out of reach."""

    def __init__(self, states: Any, elsewhere: Callable[[Any], bool]) -> None:
        super().__init__(dict, states)
        self._elsewhere = elsewhere

    def __missing__(self, parameter: Any) -> Any:
        if isinstance(parameter, torch.Tensor) and self._elsewhere(parameter):
            return _Elsewhere()
        return super().__missing__(parameter)

    def __reduce__(self) -> Any:
        """Copies and pickles are torch's own."""
        return defaultdict, (dict,), None, None, iter(self.items())


class _Optimizer:
    """What is divided of one optimizer."""

    def __init__(self, number: int) -> None:
        self.name = f"optimizer {number}"
        self.steps = 0
        self.whole = True
        """Whether the state here is that of all parameters: before the first step, and after a checkpoint was loaded."""
        self.hidden: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Parameters with their gradients, during a step."""
        self.stepping = False


class ShardedSteps:
    """The optimizers of this process that have parameters of wrapped models."""

    def __init__(
        self, service: PeerService, agreement: Agreement | None = None, otherwise: str = "take ddp"
    ) -> None:
        """`agreement`: None where whoever calls compares the ranks. `otherwise`: what to do instead of dividing."""
        self._service, self._agreement, self._otherwise = service, agreement, otherwise
        self.watched = False
        """Whether gradients are compared at each step, and not at a few."""
        self._owners: dict[int, tuple[Any, int]] = {}
        """Id of a parameter → a weak reference to it, and its rank."""
        self._passes: list[AveragedPasses] = []
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Optimizer] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._steps = 0
        self._kept: dict[Optimizer, int] = {}
        """Optimizers that stay although the script may drop them, as another rank still saves → the newest step."""

    def _owner(self, parameter: torch.Tensor) -> int | None:
        """The rank that updates a parameter; None where every rank does."""
        reference, owner = self._owners.get(id(parameter), (lambda: None, -1))
        return owner if reference() is parameter else None

    def take(self, ddp: Any) -> None:
        """Divide the parameters that this model trains."""
        ignored = set(getattr(ddp, "parameters_to_ignore", ()))
        parameters = [each for name, each in ddp.module.named_parameters() if name not in ignored]
        self.divide(parameters)
        self._passes.append(AveragedPasses(ddp, [each for each in parameters if each.requires_grad]))
        ddp.register_forward_pre_hook(self._count)
        ddp.register_forward_hook(self._expect)

    def divide(self, parameters: Iterable[torch.Tensor]) -> None:
        """Have each of those that train updated by one rank; every rank names the same."""
        trained = [each for each in parameters if each.requires_grad and self._owner(each) is None]
        for parameter, owner in zip(
            trained, shares([each.numel() for each in trained], self._service.world)
        ):
            self._owners[id(parameter)] = weakref.ref(parameter), owner

    def _count(self, module: Any, args: Any) -> None:
        self._service.passes += torch.is_grad_enabled()

    def _expect(self, module: Any, args: Any, output: Any) -> None:
        """The backward pass behind this forward pass waits for the other ranks."""
        if self._agreement is None or not (torch.is_grad_enabled() and module.require_backward_grad_sync):
            return
        begun = functools.partial(self._passed, [where()])
        for each in tensors(output):
            if each.requires_grad:
                each.register_hook(begun)

    def _passed(self, places: list[str], _: Any) -> None:
        if places and self._agreement is not None:
            self._agreement.note(BACKWARD, places.pop())

    _count._torchdynamo_disable = True  # type: ignore[attr-defined]
    _expect._torchdynamo_disable = True  # type: ignore[attr-defined]

    def begin(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Before a step: hide what the other ranks update. Raises AdoptionError."""
        parameters = list(self._divided(optimizer))
        if not parameters:
            return
        mine = self._optimizers.get(optimizer)
        if mine is None:
            mine = self._optimizers[optimizer] = self._begun(optimizer)
        if gives_closure(args, kwargs):
            raise AdoptionError(
                f"zero1 cannot be applied at {where()}: the script gives step() a closure, which computes gradients "
                f"during the step; {self._otherwise}"
            )
        trained = [each for each, _ in parameters]
        if any(passes.is_local and passes.trains(trained) for passes in self._passes):
            raise AdoptionError(
                f"zero1 cannot be applied at {where()}: gradients differ between the ranks, as the last backward pass "
                "was in no_sync(), through model.module, or a second one behind a forward pass, which "
                f"DistributedDataParallel does not average; {self._otherwise}"
            )
        self._agree(mine, trained)
        self._service.settle()  # a rank that still saves what was there before this step asks for it
        if mine.whole:
            self._drop(optimizer)
            mine.whole = False
        mine.stepping = True
        self._hide(mine, parameters)

    def _hide(self, mine: _Optimizer, parameters: Iterable[tuple[torch.Tensor, int]]) -> None:
        mine.hidden = [
            (parameter, parameter.grad)
            for parameter, owner in parameters
            if owner != self._service.rank and parameter.grad is not None
        ]
        for parameter, _ in mine.hidden:
            parameter.grad = None

    def _agree(self, mine: _Optimizer, parameters: Sequence[torch.Tensor]) -> None:
        """Whether every rank makes this step, with the same gradients. Raises AdoptionError."""
        if self._agreement is None:
            return
        self._agreement.same(f"step of {mine.name}")
        if mine.steps & (mine.steps - 1) and not self.watched:
            return
        gradients = [each.grad for each in parameters if each.grad is not None]
        plain = [each for each in gradients if each.layout == torch.strided]
        there = [each.grad is not None for each in parameters]
        if not self._agreement.equal([short(there), short(values_of(plain))]):
            raise AdoptionError(
                f"zero1 cannot be applied at {where()}: gradients differ between the ranks, as "
                "DistributedDataParallel averages none of passes through model.module, in no_sync() or behind some "
                f"hooks; {self._otherwise}"
            )

    @contextlib.contextmanager
    def shown(self, optimizer: Optimizer) -> Iterator[None]:
        """In a hook of the script's before the step: all gradients are there."""
        mine = self._optimizers.get(optimizer)
        if mine is None or not mine.stepping:
            yield
            return
        self._show(mine)
        yield
        self._hide(mine, self._divided(optimizer))

    def _show(self, mine: _Optimizer) -> None:
        for parameter, gradient in mine.hidden:
            parameter.grad = gradient
        mine.hidden = []

    def finish(self, optimizer: Optimizer) -> None:
        """After it, at the first call: the gradients are there again, and every rank has all that was updated."""
        mine = self._optimizers.get(optimizer)
        if mine is None or not mine.stepping:
            return
        mine.stepping = False
        self._show(mine)
        self._exchange(list(self._divided(optimizer)))
        self._service.changed(mine.name)
        mine.steps += 1
        self._keep(optimizer)

    def _keep(self, optimizer: Optimizer) -> None:
        """Hold it until others have made some steps without it."""
        self._steps += 1
        self._kept[optimizer] = self._steps
        for each in [each for each, newest in self._kept.items() if newest < self._steps - KEPT_STEPS]:
            del self._kept[each]

    def _divided(self, optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, int]]:
        """The parameters of an optimizer that are divided, with their ranks."""
        for parameter in parameters_of(optimizer):
            owner = self._owner(parameter)
            if owner is not None:
                yield parameter, owner

    def _begun(self, optimizer: Optimizer) -> _Optimizer:
        """Raises AdoptionError for an optimizer that may not be divided."""
        check_kind(optimizer, self._otherwise)
        mine = _Optimizer(next(self._numbers))
        weak = weakref.ref(optimizer)
        self._service.serve(mine.name, lambda: mine.steps, lambda _: self._own_states(weak()))
        optimizer.register_state_dict_post_hook(self._whole_state)
        optimizer.register_load_state_dict_post_hook(self._loaded)
        return mine

    def _drop(self, optimizer: Optimizer) -> None:
        """The states of parameters that other ranks update."""
        for parameter, owner in list(self._divided(optimizer)):
            if owner != self._service.rank:
                optimizer.state.pop(parameter, None)
        if type(optimizer.state) is defaultdict:
            optimizer.state = _States(optimizer.state, self._elsewhere)

    def _elsewhere(self, parameter: torch.Tensor) -> bool:
        return self._owner(parameter) not in (None, self._service.rank)

    def _loaded(self, optimizer: Optimizer) -> None:
        mine = self._optimizers[optimizer]
        mine.whole = True
        self._service.changed(mine.name)

    def _own_states(self, optimizer: Optimizer | None) -> dict[int, Any]:
        """Number of each parameter that this rank updates → its state. Raises AdoptionError where it is gone."""
        if optimizer is None:
            raise AdoptionError("its optimizer is gone")
        states = optimizer.state
        return {
            number: states[parameter]
            for number, parameter in enumerate(parameters_of(optimizer))
            if self._owner(parameter) == self._service.rank and parameter in states
        }

    def _whole_state(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
        """What state_dict() returns, with the states from the other ranks. Raises AdoptionError."""
        mine = self._optimizers[optimizer]
        if mine.whole:
            return None
        states = dict(state["state"])
        for theirs in self._service.ask(mine.name, mine.steps):
            states.update(theirs)
        numbers = [number for number in states if isinstance(number, int)]
        state["state"] = {**{number: states.pop(number) for number in sorted(numbers)}, **states}
        return state

    def _exchange(self, parameters: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Send each parameter from the rank that has updated it; from every rank one bucket is under way at a time."""
        buckets: dict[int, list[list[torch.Tensor]]] = {}
        for parameter, owner in parameters:
            _into_buckets(buckets.setdefault(owner, []), parameter.detach())
        for row in itertools.zip_longest(*(buckets[owner] for owner in sorted(buckets))):
            sent = []
            for owner, bucket in zip(sorted(buckets), row):
                if bucket is not None:
                    flat = torch.cat([each.reshape(-1) for each in bucket])
                    sent.append((owner, bucket, flat, dist.broadcast(flat, src=owner, async_op=True)))
            for owner, bucket, flat, work in sent:
                work.wait()
                if owner != self._service.rank:
                    for each, part in zip(bucket, flat.split([each.numel() for each in bucket])):
                        each.copy_(part.view(each.shape))

    def described(self) -> tuple[str, str] | None:
        """What this rank shows after its first step; None where a state is here that belongs to another rank."""
        count = mine = numbers = own = here = 0
        for optimizer, divided in list(self._optimizers.items()):
            for parameter, owner in () if divided.whole else self._divided(optimizer):
                state = optimizer.state.get(parameter, {})
                if state and owner != self._service.rank:
                    return None
                count, numbers, here = count + 1, numbers + parameter.numel(), here + _bytes(state)
                if owner == self._service.rank:
                    mine, own = mine + 1, own + parameter.numel()
        if not count:
            return None
        sizes = f", {size_text(here * numbers / own)} of states → {size_text(here)}" if here else ""
        return "zero1", f"{mine} of {count} parameters are updated on this rank{sizes}"


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """In the order in which state_dict() numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _into_buckets(buckets: list[list[torch.Tensor]], tensor: torch.Tensor) -> None:
    """Put a tensor into the last bucket, or a new one where that is full or of another kind."""
    last = buckets[-1] if buckets else []
    size = sum(each.numel() * each.element_size() for each in last)
    fits = size + tensor.numel() * tensor.element_size() <= BUCKET_BYTES
    if last and fits and (last[0].dtype, last[0].device) == (tensor.dtype, tensor.device):
        last.append(tensor)
    else:
        buckets.append([tensor])


def _bytes(state: dict[str, Any]) -> int:
    return sum(
        each.numel() * each.element_size() for each in state.values() if isinstance(each, torch.Tensor)
    )


def size_text(size: float) -> str:
    """ "8.1 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
