"""fsdp2 at a script's own DistributedDataParallel call, seen from inside four ranks: updates are those of bare DDP."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from starts import RANKS, environment, finished, torchrun
from test_adopted import HERE, Cases, adopting, same, stop_with_a_sentence
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
    from distui.runners.inrank.adopt.layers import blocks
    from distui.runners.inrank.parallelize.settings import Settings

pytestmark = pytest.mark.torch
CASES = 8
LOSSES: dict[str, Any] = {"rel": 1e-4, "abs": 1e-5}
WEIGHTS = 2e-4
"""How far numbers may be from bare DDP's: the sums are made in another order."""
PRESETS: dict[str, dict[str, str]] = {
    "fsdp2": adopting("fsdp2"),
    "hsdp": adopting("fsdp2", DISTUI_MESH='{"dp_replicate": 2}'),
    "fsdp2-offload": adopting("fsdp2", {"cpu_offload": True}),
}


def results(folder: Path, env: dict[str, str], *start: str) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    finished(torchrun(HERE / "adopting.py", str(folder), str(CASES), *start, ranks=RANKS), env, folder)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("bare")
    return folder, results(folder, environment())


def near(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and bool(
            torch.allclose(one.float(), other.float(), rtol=1e-3, atol=WEIGHTS)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    return bool(one == pytest.approx(other, **LOSSES) if isinstance(one, float) else one == other)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fsdp2", marks=pytest.mark.real),
        *(pytest.param(name, marks=pytest.mark.long) for name in PRESETS if name != "fsdp2"),
    ],
)
def test_losses_updates_and_checkpoints_are_those_of_bare_ddp(bare: Any, tmp_path: Path, name: str) -> None:
    seen = results(tmp_path / name, PRESETS[name])
    for wanted, adopted in zip(bare[1], seen, strict=True):
        for case, (plain, sharded) in enumerate(zip(wanted["cases"], adopted["cases"], strict=True)):
            assert sharded["losses"] == pytest.approx(plain["losses"], **LOSSES), case
            assert near(plain["weights"], sharded["weights"]), case
    for case in range(CASES):
        one, other = (torch.load(folder / f"saved-{case}.pt") for folder in (bare[0], tmp_path / name))
        assert near(one, other), case
    if name == "fsdp2":
        whole = sum(case["held"] for case in bare[1][0]["cases"])
        assert all(sum(case["held"] for case in rank["cases"]) < 0.5 * whole for rank in seen)
        assert "fsdp2 applied at adopting.py:" in seen[0]["described"][1]


@pytest.mark.long
def test_a_checkpoint_of_bare_ddp_goes_on(bare: Any, tmp_path: Path) -> None:
    """Those of the presets are the same as that of bare DDP, see above."""
    for name, env in (("bare", environment()), ("zero1", adopting("zero1")), ("fsdp2", PRESETS["fsdp2"])):
        results(tmp_path / name, env, str(bare[0]))
    for case in range(CASES):
        plain, zero1, fsdp2 = (
            torch.load(tmp_path / name / f"saved-{case}.pt") for name in ("bare", "zero1", "fsdp2")
        )
        assert same(plain, zero1), case
        assert near(plain, fsdp2), case


@pytest.mark.long
def test_a_training_script_that_saves_on_rank_0_only_computes_and_saves_the_same(
    tmp_path: Path,
) -> None:
    seen = {}
    for name, env in (
        ("bare", environment()),
        ("zero1", adopting("zero1", {"gradient_as_bucket_view": True})),
        ("fsdp2", PRESETS["fsdp2"]),
        ("bf16", adopting("fsdp2", DISTUI_PRECISION='{"param": "bf16"}')),
    ):
        out, log = tmp_path / f"{name}.pt", tmp_path / f"{name}.json"
        words = (str(HERE / "plain_gpt.py"), "--out", str(out), "--losses", str(log))
        finished(torchrun(HERE / "armed.py", *words, ranks=RANKS), env, tmp_path)
        seen[name] = json.loads(log.read_text()), torch.load(out)
    assert seen["zero1"][0] == seen["bare"][0]
    assert same(seen["bare"][1], seen["zero1"][1])
    for key in ("losses", "norms", "evaluated"):
        numbers = seen["bare"][0][key]
        assert seen["fsdp2"][0][key] == pytest.approx(numbers, **LOSSES), key
        assert numbers != seen["bf16"][0][key] == pytest.approx(numbers, rel=0.05), key
    assert {value.dtype for value in seen["bf16"][1]["model"].values()} == {torch.float32}
    assert near(seen["bare"][1], seen["fsdp2"][1])


STEP = """
def step(model, optimizer):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MADE = f"{STEP}model = DDP(net)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
TRAINED = f"{MADE}for _ in range(3):\n    step(model, optimizer)\n"
FIRST = "if dist.get_rank() == 0:\n    "
OLD = f"{STEP}held = list(net.parameters())\nmodel = DDP(net)\n"
GRADIENTS = f"{MADE}model(torch.ones(2, 8)).sum().backward()\n"
PENALTY = "x = torch.ones(2, 8, requires_grad=True)\n(g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)\n"
BESIDE = "other = torch.optim.SGD(net[0].parameters(), lr=0.1)\n"
CALLED = (
    "step(model, optimizer)\ngiven = {name: torch.ones(p.shape) for name, p in net.named_parameters()}\n"
)
LISTED = f"""{STEP}
class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        return self.blocks[0](x) @ self.blocks[1].weight
"""
CODEBOOK = f"""{STEP}
class Codebook(nn.Linear):
    def forward(self, x):
        self.weight.data[0] += 0.1
        return super().forward(x)
"""
HIDING = f"""{STEP}
class Out:
    def __init__(self, value): self.value = value
class Hider(nn.Linear):
    def forward(self, out): return Out([super().forward(out.value)])
class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Hider(8, 8)])
    def forward(self, x):
        return self.blocks[0](Out(x)).value[0]
"""
ONLY = "on a parameter or gradient that is sharded: under fsdp2 a script may use the model's parameters in passes"
USES = {
    "norm": f"{TRAINED}{FIRST}print(next(model.parameters()).norm().item())",
    "mul": f"{TRAINED}[p * 2 for p in model.parameters()]",
    "requires_grad_": f"{TRAINED}net[0].weight.requires_grad_(False)",
    "uniform_": f"{MADE}nn.init.xavier_uniform_(net[0].weight)",
    "register_hook": f"{MADE}net[0].weight.register_hook(lambda g: 2 * g)",
    "__set__": f"{MADE}net[0].weight.data = torch.ones(8, 8)",
    "pow": f"{MADE}(model(torch.ones(2, 8)).sum() + net[0].weight.pow(2).sum()).backward()",
    "grad": f"{MADE}torch.autograd.grad(model(torch.ones(2, 8)).sum(), list(model.parameters()))",
    "matmul": f"{LISTED}step(DDP(Other()), None)",
    "all_reduce": f"{MADE}dist.all_reduce(net[0].weight.data)",
    "detach": f"{MADE}dist.broadcast(net[0].weight.detach(), 0)",
    "flatten": f"{GRADIENTS}net[0].weight.grad.flatten()",
    "mul_": f"{GRADIENTS}net[0].weight.grad.mul_(0.5)",
    "lerp_": f"mean = net[0].weight.detach().clone()\n{MADE}mean.lerp_(net[0].weight, 0.5)",
    "view": f"{MADE}torch.nn.utils.parameters_to_vector(net.parameters())",
    "double": f"{MADE}model.double()",
    "__getitem__": f"{MADE}net[0].bias[0].item()",
}
"""Function of a parameter or gradient → a script that calls it."""
STOPPED: dict[str, tuple[str, str]] = {
    **{f"use: {name}": (text, f"calls {name} {ONLY}") for name, text in USES.items()},
    "a list of old parameters": (
        f"{OLD}nn.utils.clip_grad_norm_(held, 1.0)",
        "uses a parameter that was taken from the model before",
    ),
    "kept ids": (
        f"held = frozenset(map(id, net.parameters()))\n{MADE}",
        "keeps the model's parameters, or their ids, in a frozenset",
    ),
    "kept parameters": (f"held = {{p: 0.1 for p in net.parameters()}}\n{MADE}", "or their ids, in a dict"),
    "unused parameters": ("DDP(net, find_unused_parameters=True)", "to find_unused_parameters=True"),
    "ranks of its own": (
        "DDP(net, process_group=dist.new_group([0, 1, 2, 3]))",
        "to a process group or mesh of the script's own",
    ),
    "a compiled model": ("DDP(torch.compile(net, backend='eager'))", "to a model that is compiled already"),
    "gradients already": (
        "net(torch.ones(2, 8)).sum().backward()\nDDP(net)",
        "to parameters that have gradients already",
    ),
    "a class of its own": ("class Own(DDP): pass\nOwn(net)", "Own is a class of the script's own"),
    "a communication hook": (
        f"{MADE}model.register_comm_hook(None, None)",
        "fsdp2 takes no communication hook",
    ),
    "a training pass of one rank": (
        f"{TRAINED}{FIRST}model(torch.ones(1, 8))\nstep(model, optimizer)",
        "rank 0 is at its training pass at",
    ),
    "an evaluation of one rank": (
        f"{TRAINED}{FIRST}torch.set_grad_enabled(False)\nmodel(torch.ones(1, 8))",
        "is at its evaluation at script.py:",
    ),
    "an evaluation of one rank around the wrapper": (
        f"{TRAINED}{FIRST}with torch.no_grad(): model.module(torch.ones(1, 8))\nstep(model, optimizer)",
        "is at its evaluation at script.py:",
    ),
    "a norm of one rank": (
        f"{TRAINED}{FIRST}nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nstep(model, optimizer)",
        "norm of gradients at script.py:",
    ),
    "a checkpoint that one rank loads": (
        f"{TRAINED}saved = model.state_dict()\n{FIRST}model.load_state_dict(saved)\nstep(model, optimizer)",
        "load_state_dict() at script.py:",
    ),
    "fewer batches on one rank": (
        f"{TRAINED}for _ in range(2 + dist.get_rank()):\n    step(model, optimizer)",
        "rank 0 is at its end",
    ),
    "another optimizer": (
        f"{STEP}model = DDP(net)\nstep(model, torch.optim.Adafactor(model.parameters()))",
        "fsdp2 cannot be applied to torch.optim.Adafactor",
    ),
    "another optimizer on one rank": (
        f"{TRAINED}{BESIDE}step(model, other)\nstep(model, (optimizer, other)[dist.get_rank() % 2])",
        "at its step of optimizer 2 at script.py:",
    ),
    "a closure": (f"{MADE}optimizer.step(lambda: model(torch.ones(2, 8)).sum())", "gives step() a closure"),
    "gradients of gradients": (f"{MADE}{PENALTY}g.sum().backward()", "create_graph"),
    "two backward passes": (
        f"{MADE}one = model(torch.ones(2, 8)).sum()\none.backward(retain_graph=True)\none.backward()",
        "makes a second backward pass after one forward pass",
    ),
    "around the wrapper": (
        f"{MADE}model.module(torch.ones(2, 8)).sum().backward()",
        "calls model.module: DistributedDataParallel averages",
    ),
    "a part of the model": (
        f"{LISTED}model = DDP(Other())\nmodel.module.blocks[0](torch.ones(2, 8))",
        "calls a part of the model: DistributedDataParallel averages",
    ),
    "a copy": (f"{MADE}import copy\ncopy.deepcopy(model)", "copies a model"),
    "a copy of what was wrapped": (
        f"{MADE}import copy\ncopy.deepcopy(model.module)",
        "does not support deepcopy",
    ),
    "the wrapped model in a file": (f"{MADE}torch.save(model, 'model.pt')", "saves, or sends, a model"),
    "a part's state dict in a file": (f"{MADE}torch.save(net[0].state_dict(), 'part.pt')", ONLY),
    "parameters of functional_call": (
        f"{MADE}{CALLED}with torch.no_grad(): torch.func.functional_call(net, given, (torch.ones(2, 8),))",
        "makes a pass with another parameter as weight of Linear",
    ),
    "a tied weight later": (
        f"{MADE}net[1].weight = net[0].weight\nstep(model, optimizer)",
        "with another parameter as weight of Linear",
    ),
    "a pass that changes a parameter": (
        f"{CODEBOOK}step(DDP(nn.Sequential(Codebook(8, 8), net)), None)",
        "changes weight of Codebook, and fully_shard drops that",
    ),
    "an output of its own": (
        f"{HIDING}step(DDP(Hiding()), None)",
        "Hider returns a Out in the pass at script.py:",
    ),
    "sparse gradients": (
        "DDP(nn.Sequential(nn.Embedding(4, 8, sparse=True), net))",
        "an embedding with sparse gradients",
    ),
}


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_what_would_hang_or_be_wrong_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    cases: Cases = {name: (PRESETS["fsdp2"], text, words) for name, (text, words) in STOPPED.items()}
    stop_with_a_sentence(tmp_path, cases)


def settings(**options: Any) -> Settings:
    return Settings("fsdp2", options, {}, None, 1, torch.float32, torch.float32)


class Part(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


def test_blocks_are_members_of_lists_or_what_repeats_and_never_share() -> None:
    listed = nn.ModuleDict({"list": nn.ModuleList([Part(), Part()]), "head": nn.Linear(4, 1)})
    assert blocks(listed, settings()) == list(listed["list"])
    repeating = nn.Sequential(nn.Linear(4, 4), Part(), nn.Sequential(Part(), Part()))
    assert len(blocks(repeating, settings())) == 3
    listed["list"][0].inner.weight = listed["list"][1].inner.weight
    assert blocks(listed, settings()) == []
    assert blocks(nn.Linear(4, 4), settings()) == []
    assert blocks(repeating, settings(wrap=["Sequential"])) == [repeating[2]]
