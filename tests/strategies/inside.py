"""Runs inside the ranks: trains the shipped example under the preset it is launched with, and writes down what it is.

inside.py FOLDER gpt|moe       writes FOLDER/rank-<r>.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

EXAMPLES = Path(__file__).parents[2] / "presets" / "examples"
STEPS = 6
AFTER = 2
"""Steps after the checkpoint, unbroken and resumed."""
ARGS = argparse.Namespace(layers=4, width=64, heads=2, block=32, batch=4, lr=3e-3, seed=0)

sys.path.insert(0, str(EXAMPLES))
chargpt: Any = importlib.import_module("chargpt")
preset: Any = chargpt.preset


def network(kind: str) -> Any:
    """The example's model, or the one with experts."""
    made = chargpt.CharGPT if kind == "gpt" else importlib.import_module("chargpt_moe").CharMoE
    return made(ARGS.layers, ARGS.width, ARGS.block, ARGS.heads)


def built(kind: str, seed: int) -> Any:
    """Model and optimizer; ranks begin with different weights on purpose."""
    torch.manual_seed(seed + chargpt.rank())
    net = network(kind)
    return preset.parallelize(net, torch.optim.AdamW, lr=ARGS.lr)


def train(model: Any, optimizer: Any, first: int, steps: int) -> list[float]:
    """The mean loss of each step over all ranks."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = preset.forward_backward(model, *chargpt.batch_of(step, DATA, ARGS))
        optimizer.step()
        losses.append(chargpt.agree(loss, False)[0])
    return losses


def here(tensor: torch.Tensor) -> int:
    """How many of its elements this rank holds."""
    return int((tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel())


def held(model: Any, optimizer: Any, kind: str) -> dict[str, Any]:
    """What this rank holds of the model, the gradients and the optimizer's first moments, as shares of the whole."""
    whole = sum(p.numel() for p in network(kind).parameters())
    states = getattr(optimizer, "optim", optimizer).state.values()
    parameters = list(model.parameters())
    return {
        "parameters": sum(map(here, parameters)) / whole,
        "gradients": sum(here(p.grad) for p in parameters if p.grad is not None) / whole,
        "moments": sum(here(state["exp_avg"]) for state in states if "exp_avg" in state) / whole,
        "classes": sorted({type(module).__name__ for module in model.modules()} | {type(model).__name__}),
        "optimizer": type(optimizer).__name__,
    }


def main(folder: Path, kind: str) -> None:
    """Train, look, save, train on; load what was saved into other weights, and train those on."""
    model, optimizer = built(kind, seed=0)
    seen: dict[str, Any] = {"losses": train(model, optimizer, 0, STEPS), **held(model, optimizer, kind)}
    saved = preset.state_for_saving(model, optimizer, step=STEPS)
    seen["unbroken"] = train(model, optimizer, STEPS, AFTER)
    model, optimizer = built(kind, seed=100)
    step = preset.load_saved(model, optimizer, saved)["step"]
    seen["resumed"] = train(model, optimizer, step, AFTER)
    seen |= {"coordinates": preset.coordinates(), "world": chargpt.world_size()}
    number = dist.get_rank() if dist.is_initialized() else 0
    (folder / f"rank-{number}.json").write_text(json.dumps(seen))
    del model, optimizer
    preset.finish()


if __name__ == "__main__":
    DATA = chargpt.corpus()
    main(Path(sys.argv[1]), sys.argv[2])
