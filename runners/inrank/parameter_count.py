"""Count a model's parameters on the meta device, without memory for them.

The training environment's interpreter executes this program: standard library and torch only. The first line of stdin is
JSON, {"path", "name", "args"}. The answer is one line of JSON on stdout, with "error" if the model cannot be built. The
output of the user's file goes to stderr.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from collections import Counter
from types import ModuleType, TracebackType
from typing import Any, Dict, Iterator, List, Optional, Type

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

FACTORIES = ("build_model", "make_model", "create_model", "get_model")
"""Names of functions that may build the model, if the request has no name."""
MOST = 3
"""Most classes whose arguments the message lists."""
MODULE = "distui_counted"
"""Module name of the user's file. It is not __main__, so the file does not train."""


def main() -> None:
    """Answer the request on stdin."""
    asked = json.loads(sys.stdin.readline())
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: Dict[str, Any]) -> None:
        answer.write(json.dumps(value) + "\n")
        answer.flush()

    def failed(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        lines = str(error).strip().splitlines()
        if kind is NoModel:
            say({"error": str(error)})
        else:
            say({"error": f"{kind.__name__}: {lines[0]}" if lines else kind.__name__, "doing": doing})

    sys.excepthook = failed
    doing = "reading"
    torch.set_default_device("meta")
    try:
        module = load(asked["path"])
        doing = "building"
        say(sizes(*chosen(module, asked["name"], asked["args"])))
    except SystemExit as error:
        say({"error": f"it exits with {error.code}", "doing": doing})


class NoModel(Exception):
    """No model can be built. The text has the reason and the remedy."""


def load(path: str) -> ModuleType:
    sys.argv = [path]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise NoModel("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def chosen(module: ModuleType, name: Optional[str], args: Dict[str, Any]) -> Any:
    """Return name and model: the requested one, else a factory's, else the outermost class. Raises NoModel."""
    if name is not None:
        return name, built(name, _named(module, name), args)
    for factory in factories(module):
        return factory.__name__, built(factory.__name__, factory, args)
    return _of_a_class(module, args)


def _of_a_class(module: ModuleType, args: Dict[str, Any]) -> Any:
    """Return name and model of the outermost class that takes these arguments. Raises NoModel."""
    refusals = {each: refusal(each.__name__, each, args) for each in classes(module)}
    if not refusals:
        raise NoModel("it defines no nn.Module: name a function in it that returns the model, as PATH:NAME")
    fitting = [each for each, why in refusals.items() if why is None]
    if fitting:
        return outermost({each.__name__: built(each.__name__, each, args) for each in fitting})
    if len(refusals) > MOST:
        names = ", ".join(each.__name__ for each in refusals)
        raise NoModel(f"it defines several models: name one as PATH:NAME, of {names}")
    raise NoModel("; ".join(map(str, refusals.values())))


def _named(module: ModuleType, name: str) -> Any:
    """Return the module's class or function of that name. Raises NoModel."""
    if hasattr(module, name):
        return getattr(module, name)
    there = ", ".join(each.__name__ for each in [*classes(module), *factories(module)])
    raise NoModel(f"it has no {name}" + (f": it has {there}" if there else ""))


def factories(module: ModuleType) -> List[Any]:
    """Return the functions of the module that are in FACTORIES."""
    return [getattr(module, name) for name in FACTORIES if inspect.isfunction(getattr(module, name, None))]


def classes(module: ModuleType) -> List[Any]:
    """Return the nn.Module classes that the file defines."""
    candidates = (each for each in vars(module).values() if inspect.isclass(each))
    return [each for each in candidates if issubclass(each, nn.Module) and each.__module__ == MODULE]


def outermost(models: Dict[str, nn.Module]) -> Any:
    """Return name and model of the only one that is not part of another. Raises NoModel."""
    parts = {type(part) for model in models.values() for part in model.modules() if part is not model}
    whole = [(name, model) for name, model in models.items() if type(model) not in parts]
    if len(whole) != 1:
        raise NoModel(f"it defines several models: name one as PATH:NAME, of {', '.join(models)}")
    return whole[0]


def refusal(name: str, make: Any, args: Dict[str, Any]) -> Optional[str]:
    """Return why `make` cannot be called with these arguments; None if it can."""
    try:
        signature = inspect.signature(make)
        signature.bind(**args)
    except TypeError as error:
        needed = [
            each.name
            for each in signature.parameters.values()
            if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
        how = f": give --model-args {','.join(f'{each}=…' for each in needed)}" if needed else ""
        return f"{name} cannot be called so ({error}){how}"
    except ValueError:
        return None  # no readable signature: the call may fail
    return None


def built(name: str, make: Any, args: Dict[str, Any]) -> nn.Module:
    """Build the model. Raises NoModel."""
    if isinstance(make, nn.Module):
        return make
    if not callable(make):
        raise NoModel(f"{name} is neither a class nor a function")
    why = refusal(name, make, args)
    if why is not None:
        raise NoModel(why)
    model = make(**args)
    if not isinstance(model, nn.Module):
        raise NoModel(f"{name} returns {type(model).__name__}, not an nn.Module")
    return model


def sizes(name: str, model: nn.Module) -> Dict[str, Any]:
    """Return the sizes that `distui advise` needs. Raises NoModel."""
    total = count([model])
    if not total:
        raise NoModel(f"{name} has no parameters")
    layers = list(blocks(model))
    tables = embeddings(model, layers)
    experts = [part for part in model.modules() if getattr(part, "expert_parallel", False)]
    hidden, vocab = width(layers), None
    if tables:
        words = word_table(model, tables)
        hidden, vocab = words.embedding_dim, words.num_embeddings
    return {
        "name": name,
        "parameters": total,
        "trainable": sum(value.numel() for value in model.parameters() if value.requires_grad),
        "layers": len(layers),
        "hidden": hidden,
        "vocab": vocab,
        "largest": max(value.numel() for value in model.parameters()),
        "largest_layer": max((count([layer]) for layer in layers), default=0),
        "embedding": count(tables),
        "blocks": count(layers),
        "head": total - count(layers) - count(tables),
        "experts": count(experts),
        "expert_count": max((len(value) for part in experts for value in part.parameters()), default=0),
        "layer_kept": kept_by_layer(model, layers) / hidden if hidden else 0.0,
    }


def word_table(model: nn.Module, tables: List[nn.Embedding]) -> nn.Embedding:
    """Return the embedding of the words: the largest with as many rows as a linear layer has outputs, if any."""
    outputs = {part.out_features for part in model.modules() if isinstance(part, nn.Linear)}
    heads = [table for table in tables if table.num_embeddings in outputs]
    return max(heads or tables, key=lambda table: table.num_embeddings)


def embeddings(model: nn.Module, layers: List[nn.Module]) -> List[nn.Embedding]:
    """Return the embeddings outside the layers."""
    within = {id(part) for layer in layers for part in layer.modules()}
    return [part for part in model.modules() if isinstance(part, nn.Embedding) and id(part) not in within]


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers as parallelize() does: the outermost members of module lists that have parameters."""
    for child in model.children():
        if isinstance(model, nn.ModuleList) and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            if count([child]):
                yield child
        else:
            yield from blocks(child)


def count(modules: List[nn.Module]) -> int:
    """Return the number of elements of the parameters of some modules. A shared parameter counts once."""
    parameters = {id(value): value for module in modules for value in module.parameters()}
    return sum(value.numel() for value in parameters.values())


def width(layers: List[nn.Module]) -> Optional[int]:
    """Return the most common size of the layers' vectors (norms, biases), which is the hidden size; None without any."""
    counts = Counter(value.numel() for layer in layers for value in layer.parameters() if value.ndim == 1)
    return counts.most_common(1)[0][0] if counts else None


POSITIONS = 16
"""Tokens or rows of the pass that counts activations."""
SIDE = 64
"""Pixels of a side of its image, each of which is a position."""


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Keeps what fused attention keeps."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        *batch, heads, length, _ = query.shape
        output = query.new_empty(*batch, length, heads, value.shape[-1]).transpose(-2, -3)
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


class _Fused(TorchFunctionMode):  # type: ignore[misc]
    """Attention without its scores, which the meta device would keep."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args), **(kwargs or {}))
        return _Attention.apply(named["query"], named["key"], named["value"])


def sample(model: nn.Module) -> Any:
    """Return an input of the model's first layer, targets, and the positions: tokens, rows of numbers, or pixels."""
    kinds = (nn.Embedding, nn.Linear, nn.Conv2d)
    first = next((part for part in model.modules() if isinstance(part, kinds)), None)
    if isinstance(first, nn.Conv2d):
        image = torch.zeros(1, first.in_channels, SIDE, SIDE)
        return image, torch.zeros(1, dtype=torch.long), SIDE * SIDE
    if isinstance(first, nn.Linear):
        return (
            torch.zeros(POSITIONS, first.in_features),
            torch.zeros(POSITIONS, dtype=torch.long),
            POSITIONS,
        )
    tokens = torch.zeros(1, POSITIONS, dtype=torch.long)
    return tokens, tokens, POSITIONS


def kept_by_layer(model: nn.Module, layers: List[nn.Module]) -> float:
    """Return the numbers per position that the average layer keeps for backward; 0 if the model cannot run."""
    kept: Dict[int, Any] = {}
    weights = {value.untyped_storage()._cdata for value in model.parameters()}
    inside: List[nn.Module] = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if inside and storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: inside.append(model))
        layer.register_forward_hook(lambda *_: inside.clear())
    x, y, positions = sample(model)
    for inputs in ((x,), (x, y)):
        kept.clear()
        try:
            with _Fused(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                model(*inputs)
        except Exception:  # noqa: BLE001 - any model: its forward may need anything
            continue
        numbers: float = sum(each.nbytes() for each in kept.values()) / 4
        mean: float = numbers / positions / max(1, len(layers))
        return mean
    return 0.0


if __name__ == "__main__":
    main()
