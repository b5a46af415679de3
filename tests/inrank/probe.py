"""Runs inside the ranks: tries every strategy on one tiny network and writes what it sees to a file.

probe.py FOLDER       writes FOLDER/rank-<r>.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from distui.runners.inrank import parallelize as preset

STRATEGIES = ("ddp", "fsdp2", "zero1")
HALF = 10
"""Steps before the checkpoint, and as many after it."""


class Layer(nn.Module):  # type: ignore[misc]
    """A block such as fsdp2 looks for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):  # type: ignore[misc]
    """Two blocks in a ModuleList, and a head outside it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(16, 2)
        self.saw: set[str] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output, and a note of the type in which it was computed."""
        for layer in self.layers:
            x = layer(x)
            self.saw.add(str(x.dtype))
        out: torch.Tensor = self.head(x)
        self.saw.add(str(out.dtype))
        return out


def obey(strategy: str, options: dict[str, object] | None = None, **precision: str) -> None:
    """Set what distui would set."""
    os.environ["DISTUI_STRATEGY"] = strategy
    os.environ["DISTUI_STRATEGY_OPTIONS"] = json.dumps(options or {})
    os.environ["DISTUI_PRECISION"] = json.dumps(precision)


def built(seed: int) -> tuple[Any, Any, Net]:
    """Model, optimizer and the network inside. Ranks begin with different weights on purpose."""
    torch.manual_seed(seed + int(os.environ["RANK"]))
    net = Net()
    model, optimizer = preset.parallelize(net, torch.optim.AdamW, lr=0.01)
    return model, optimizer, net


def train(model: Any, optimizer: Any, first: int) -> list[float]:
    """HALF steps from step `first` on, on data that depends on step and rank; the losses."""
    losses = []
    for step in range(first, first + HALF):
        dice = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(8, 16, generator=dice)
        loss = ((model(x) - x[:, :2] * 2).float() ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def here(tensor: torch.Tensor) -> int:
    """How many elements of it this rank holds."""
    return int((tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel())


def weights(net: Net) -> list[float]:
    """Every parameter whole, as one list."""
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in net.parameters()]
    return [round(v, 5) for v in torch.cat([w.detach().flatten() for w in whole]).tolist()]


def look(strategy: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a strategy did to the network after HALF steps, and the checkpoint of that moment."""
    obey(strategy)
    model, optimizer, net = built(seed=1)
    losses = train(model, optimizer, 0)
    state = getattr(optimizer, "optim", optimizer).state
    seen = {
        "model": type(model).__name__,
        "sharded": [type(m).__name__ for m in net.modules() if type(m).__name__.startswith("FSDP")],
        "optimizer": type(optimizer).__name__,
        "losses": losses,
        "parameters": sum(p.numel() for p in net.parameters()),
        "parameters_here": sum(here(p) for p in net.parameters()),
        "moments_here": sum(here(s["exp_avg"]) for s in state.values() if s),
    }
    saved = preset.state_for_saving(model, optimizer, step=HALF)
    train(model, optimizer, HALF)
    return {**seen, "unbroken": weights(net)}, saved


def resumed(strategy: str, saved: dict[str, Any]) -> dict[str, Any]:
    """Load a checkpoint under `strategy` into other weights, and train on."""
    obey(strategy)
    model, optimizer, net = built(seed=50)
    step = preset.load_saved(model, optimizer, saved)["step"]
    train(model, optimizer, step)
    return {"step": step, "weights": weights(net)}


def precise(strategy: str, param: str, reduce: str) -> dict[str, Any]:
    """Types inside and outside under a precision, and whether gradients came through bf16."""
    obey(strategy, param=param, reduce=reduce)
    model, optimizer, net = built(seed=1)
    train(model, optimizer, 0)
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
    return {
        "inside": sorted(net.saw),
        "kept": sorted({str(p.dtype) for p in net.parameters()}),
        "rounded": all(bool((g == g.bfloat16().float()).all()) for g in local),
    }


def optioned() -> dict[str, Any]:
    """What options change."""
    chosen: dict[str, object] = {"bucket_cap_mb": 3, "static_graph": True, "gradient_as_bucket_view": True}
    obey("ddp", chosen)
    ddp = built(seed=1)[0]
    assert isinstance(ddp, DistributedDataParallel)
    gathered = {}
    for keep in (True, False):
        obey("fsdp2", {"reshard_after_forward": keep})
        model, _, net = built(seed=1)
        model(torch.randn(2, 16))
        gathered[str(keep)] = isinstance(net.layers[0].inner.weight, DTensor)
    return {
        "bucket_bytes": ddp.bucket_bytes_cap,
        "static_graph": ddp.static_graph,
        "bucket_view": ddp.gradient_as_bucket_view,
        "unused": ddp.find_unused_parameters,
        "sharded_after_forward": gathered,
    }


def main(folder: Path) -> None:
    """Try everything, and write it down."""
    seen: dict[str, Any] = {"looked": {}, "resumed": {}, "precise": {}}
    for strategy in STRATEGIES:
        seen["looked"][strategy], saved = look(strategy)
        for other in STRATEGIES:
            seen["resumed"][f"{strategy} to {other}"] = resumed(other, saved)
        seen["precise"][strategy] = precise(strategy, "bf16", "fp32")
        seen["precise"][f"{strategy} reduce"] = precise(strategy, "fp32", "bf16")
    seen["unbroken"] = seen["looked"]["ddp"]["unbroken"]
    obey("ddp")
    model, optimizer, _ = built(seed=1)
    seen["nothing"] = preset.load_saved(model, optimizer, None)
    seen["optioned"] = optioned()
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    del model, optimizer
    preset.finish()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
