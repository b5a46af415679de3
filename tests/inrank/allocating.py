"""Runs inside the ranks: trains a model for some steps under the preset in the environment and writes what was allocated
for what into the working directory.

The variable CASE is JSON, see `Case` in measuring.py.

Bytes come from the C library, which maps every tensor of more than MALLOC_MMAP_THRESHOLD_ bytes by itself and knows the
most that was ever mapped: torch's profiler does not see what other threads free.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parent))
from calibration_models import MODELS

from distui.runners.inrank import parallelize as preset

STEPS = 3
"""From the second on, the optimizer's state is there."""


class Mallinfo(ctypes.Structure):
    """What mallinfo2() returns."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


C = ctypes.CDLL(None)
C.mallinfo2.restype = Mallinfo


def mapped() -> int:
    """Bytes in blocks that are mapped by themselves."""
    return int(C.mallinfo2().hblkhd)


def most_mapped() -> int:
    """The most that it ever was: malloc_stats() writes it to stderr."""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        C.malloc_stats()
        C.fflush(None)
        os.dup2(stderr, 2)
        os.close(stderr)
        file.seek(0)
        found = re.search(rb"max mmap bytes\s*=\s*(\d+)", file.read())
    assert found is not None
    return int(found[1])


def here(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def storages(tensors: Iterable[torch.Tensor | None]) -> dict[int, int]:
    """Address → bytes of what this rank holds of them, each storage once."""
    found = (here(tensor).untyped_storage() for tensor in tensors if tensor is not None)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


class Saved:
    """Counts what autograd keeps for the backward pass, weights left out."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.net, self.weights = net, set[int]()
        self.users: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.most = 0
        for module in net.modules():  # a block's weights may have been gathered just now
            module.register_forward_pre_hook(self._gathered)

    def _gathered(self, *_: Any) -> None:
        self.weights = set(storages(self.net.parameters()))

    def hooks(self) -> Any:
        """Count within this context."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: Kept(self, tensor), lambda kept: kept.tensor
        )

    def add(self, tensor: torch.Tensor) -> int | None:
        """Count one; its address, None for a weight."""
        storage = here(tensor).untyped_storage()
        address = int(storage.data_ptr())
        if address in self.weights:
            return None
        self.users[address] += 1
        self.sizes[address] = storage.nbytes()
        self.most = max(self.most, sum(self.sizes.values()))
        return address

    def drop(self, address: int) -> None:
        """Autograd needs one user less of it."""
        self.users[address] -= 1
        if not self.users[address]:
            self.sizes.pop(address)


class Kept:
    """One saved tensor; counted as long as autograd holds it."""

    def __init__(self, saved: Saved, tensor: torch.Tensor) -> None:
        self.saved, self.tensor, self.address = saved, tensor, saved.add(tensor)

    def __del__(self) -> None:
        if self.address is not None:
            self.saved.drop(self.address)


def optimizer_state(optimizer: Any) -> list[torch.Tensor]:
    """All tensors of this rank's optimizer."""
    states = getattr(optimizer, "optim", optimizer).state.values()
    return [value for state in states for value in state.values() if torch.is_tensor(value)]


def main(case: dict[str, Any]) -> None:
    """Train, and write rank-<r>.json."""
    before = mapped()
    net = MODELS[case["model"]]()
    if case["half"]:
        net = net.to(torch.bfloat16)
    batch = net.batch
    model, optimizer = preset.parallelize(net, torch.optim.AdamW, lr=1e-4, foreach=case["foreach"])
    saved = Saved(net)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(case["batch"])
        with saved.hooks():
            preset.forward_backward(model, x, y)
        gradients = sum(storages(value.grad for value in net.parameters()).values())
        optimizer.step()
    found = {
        "weights": sum(storages(net.parameters()).values()),
        "gradients": gradients,
        "optimizer": sum(storages(optimizer_state(optimizer)).values()),
        "activations": saved.most,
        "total": most_mapped() - before,
    }
    Path(f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
    del model, optimizer
    gc.collect()
    preset.finish()


if __name__ == "__main__":
    main(json.loads(os.environ["CASE"]))
