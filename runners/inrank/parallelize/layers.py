"""Find the layers of a model that are sharded, checkpointed or compiled one by one; checkpoint and compile them.

Checkpointing is `torch.utils.checkpoint` around each layer's forward pass: its activations are dropped and recomputed in
backward, as in "Training Deep Nets with Sublinear Memory Cost" (Chen and others, 2016). The names in a state dict stay.
A copied or pickled layer is not wrapped.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Tuple, Type

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .pipeline_stages import Blocks
from .settings import ParallelizeError, Settings

WATCHED = 2
"""Training passes of each layer that check whether its forward pass may run twice."""
OFF = "add --set strategy.activation_checkpointing=false"
Around = Callable[[], ContextManager[Any]]


def units(model: nn.Module, config: Settings) -> Iterator[nn.Module]:
    """Yield the modules of the classes that the preset names in `wrap`, else the blocks. Raises ParallelizeError."""
    names = config.options.get("wrap") or []
    if not names:
        yield from blocks(model)
        return
    classes = tuple(_named(model, names))
    yield from (module for module in model.modules() if isinstance(module, classes))


def _named(model: nn.Module, names: List[str]) -> List[Type[nn.Module]]:
    """Find the classes of these names in the model. Raises ParallelizeError for an unknown one."""
    by_name = {type(module).__name__: type(module) for module in model.modules()}
    for name in names:
        if name not in by_name:
            raise ParallelizeError(f"wrap names {name}, and the model has {', '.join(sorted(by_name))}")
    return [by_name[name] for name in names]


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the transformer blocks: the outermost members of module lists that have parameters."""
    for child in model.children():
        if isinstance(model, (nn.ModuleList, Blocks)) and not isinstance(
            child, (nn.ModuleList, nn.ModuleDict)
        ):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from blocks(child)


def prepare(layers: Iterable[nn.Module], config: Settings, around: Around = nullcontext) -> List[str]:
    """Checkpoint and compile layers according to the preset. Return a description, or [].

    `around`: makes the context for the second forward pass. Raises ParallelizeError.
    """
    recomputed = bool(config.options.get("activation_checkpointing"))
    compiled = bool(config.options.get("compile"))
    chosen = list(layers) if recomputed or compiled else []
    for layer in chosen:
        layer.forward = Forward(layer, recomputed, compiled, around)
    done = []
    if recomputed:
        done.append("recomputed in backward")
    if compiled:
        done.append("compiled")
    if not done:
        return []
    count = "1 layer" if len(chosen) == 1 else f"{len(chosen)} layers"
    return [f"{count} {' and '.join(done)}"]


class Forward:
    def __init__(self, layer: nn.Module, recomputed: bool, compiled: bool, around: Around) -> None:
        self._layer, self._recomputed, self._around = layer, recomputed, around
        self._plain = vars(layer).get("forward") or types.MethodType(type(layer).forward, layer)
        self._run = torch.compile(self._plain) if compiled else self._plain
        self._passes = 0

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if not (self._recomputed and self._layer.training and torch.is_grad_enabled()):
            return self._run(*inputs, **named)
        before = self._state() if self._passes < WATCHED else None
        if torch.compiler.is_compiling():  # torch.compile traces once: no context_fn
            output = checkpoint(self._run, *inputs, use_reentrant=False, **named)
        else:
            output = checkpoint(self._run, *inputs, use_reentrant=False, context_fn=self._contexts, **named)
        if before is not None:
            self._passes += 1
            self._check(before, self._state())
        return output

    def _contexts(self) -> Tuple[ContextManager[Any], ContextManager[Any]]:
        return nullcontext(), self._around()

    def _state(self) -> Dict[str, Any]:
        """Return the state that a second forward pass would change. torch restores the state of its random numbers."""
        state: Dict[str, Any] = {
            f"buffer {name}": (id(value), value._version) for name, value in self._layer.named_buffers()
        }
        state["random numbers of random"] = random.getstate()
        numpy = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            _, keys, *rest = numpy.random.get_state()
            state["random numbers of numpy"] = keys.tobytes(), rest
        return state

    def _check(self, before: Dict[str, Any], after: Dict[str, Any]) -> None:
        """Raise ParallelizeError if the forward pass has changed the state."""
        for name, value in after.items():
            if before.get(name) != value:
                raise ParallelizeError(
                    f"strategy.activation_checkpointing computes the forward pass of {type(self._layer).__name__} twice,"
                    f" and its {name} would change twice: {OFF}"
                )

    def __reduce__(self) -> Any:
        """Copy or pickle only the plain forward pass of the layer, without distui."""
        plain = self._plain
        if isinstance(plain, types.MethodType):
            return functools.partial, (plain.__func__, self._layer)
        return functools.partial, (plain,)
