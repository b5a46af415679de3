"""Inside the ranks the mesh is what the plan says, and a model that cannot be divided says why."""

from __future__ import annotations

import importlib
import json
import math
import warnings
from typing import Any, ClassVar

import pytest
from each import for_each

from distui.presets import rank_mesh
from distui.presets.load import BUILTIN, load
from distui.presets.plan import contract

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", name="preset")
def _preset() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
        return importlib.import_module("distui.runners.inrank.parallelize")


WITH_RANKS = [name for name in BUILTIN if load(name).preset.strategy.kind not in ("single", "deepspeed")]


@for_each("name", WITH_RANKS)
@for_each("world", [8, 16])
def test_ranks_and_plan_agree_on_the_mesh(
    preset: Any, monkeypatch: pytest.MonkeyPatch, name: str, world: int
) -> None:
    made = load(name).preset
    for variable, value in contract(made, "gloo").items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("WORLD_SIZE", str(world))
    planned, numbers = rank_mesh.dimensions(made, world), []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        found = preset.coordinates()
        assert {key: found[key] for key in planned} == rank_mesh.coordinates(planned, rank)
        assert all(found[key] == 0 for key in found.keys() - planned.keys())
        numbers.append(preset.data_rank())
    assert preset.data_ranks() == rank_mesh.data_ranks(planned)
    assert sorted(set(numbers)) == list(range(rank_mesh.data_ranks(planned)))
    assert math.prod(planned.values()) == world


def settings(preset: Any, strategy: str, **sizes: Any) -> Any:
    return preset.settings._read(strategy, "", json.dumps(sizes), "", "", several=True)


def test_a_world_that_is_no_multiple(preset: Any) -> None:
    found = settings(preset, "fsdp2", tp=2, pp=2)
    with pytest.raises(preset.ParallelizeError, match="pp 2 × tp 2 = 4 does not divide the world size 6"):
        preset.settings.sizes(found, 6)


def test_a_model_that_cannot_be_cut(preset: Any) -> None:
    with pytest.raises(preset.ParallelizeError, match="Linear has no pp_plan, embed, logits, loss"):
        preset.pipeline_stages.cut(preset.nn.Linear(2, 2), 0, 2)


def test_a_tied_head_is_not_cut_from_its_embedding(preset: Any) -> None:
    nn = preset.nn

    class Tied(nn.Module):  # type: ignore[name-defined,misc]
        pp_plan: ClassVar = {"first": ("tokens",), "blocks": "blocks", "last": ("head",)}
        embed = logits = loss = None

        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            if tied:
                self.head.weight = self.tokens.weight

    with pytest.raises(
        preset.ParallelizeError, match=r"tokens\.weight and head\.weight are one parameter.*: untie them"
    ):
        preset.pipeline_stages.cut(Tied(True), 0, 2)
    last = Tied(False)
    preset.pipeline_stages.cut(last, 1, 2)
    assert [name for name, _ in last.named_parameters()] == [
        "head.weight",
        "blocks.1.weight",
        "blocks.1.bias",
    ]


def test_a_model_without_a_plan_for_tp(preset: Any) -> None:
    nn, tensor = preset.nn, preset.tensor_parallel
    net = nn.Sequential(nn.Linear(2, 6), nn.Linear(6, 2))
    with pytest.raises(preset.ParallelizeError, match="Sequential has no tp_plan"):
        tensor.divide_layers(net, None, False, True)
    with pytest.raises(preset.ParallelizeError, match="style 'diagonal'; known: colwise"):
        tensor._layers(net, {"0": "diagonal"})
    with pytest.raises(preset.ParallelizeError, match="the model has no such layers"):
        tensor._layers(net, {"blocks.*.up": "colwise"})
    assert tensor._layers(net, {"*": "rowwise"}) == {"0": "rowwise", "1": "rowwise"}
    with pytest.raises(preset.ParallelizeError, match="tp is 4, which does not divide the 6 of 0"):
        tensor._check("0", net[0], "colwise", 4)
    tensor._check("1", net[1], "rowwise", 3)


def test_layers_to_wrap_by_name(preset: Any) -> None:
    net = preset.nn.Sequential(preset.nn.Linear(2, 2))
    assert preset.layers._named(net, ["Linear"]) == [preset.nn.Linear]
    with pytest.raises(
        preset.ParallelizeError, match="wrap names Block, and the model has Linear, Sequential"
    ):
        preset.layers._named(net, ["Block"])


def test_experts_that_are_not_there(preset: Any) -> None:
    with pytest.raises(preset.ParallelizeError, match="Linear has no module with expert_parallel = True"):
        preset.expert_parallel.divide_experts(preset.nn.Linear(2, 2), None)


def test_only_experts_that_are_divided_are_left_out_of_the_average(
    preset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP ignores the returned names: a layer inside the experts that is not divided would differ between ranks."""
    nn = preset.nn
    experts = nn.Module()
    experts.expert_parallel = True
    experts.weight = nn.Parameter(preset.torch.zeros(4, 2))
    experts.norm = nn.LayerNorm(2)
    monkeypatch.setattr(preset.expert_parallel, "_divide_module", lambda path, module, mesh: None)
    names = preset.expert_parallel.divide_experts(nn.Sequential(experts), None)
    assert names == ["0.weight"]


def test_accumulation_cuts_the_batch_and_gives_the_mean(
    preset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, nn = preset.torch, preset.nn

    class Net(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)
            self.saw: list[int] = []

        def forward(self, x: Any) -> Any:
            self.saw.append(len(x))
            return (self.inner(x) ** 2).mean()

    x, net = torch.randn(6, 4), Net()
    net(x).backward()
    wanted, loss = net.inner.weight.grad.clone(), net(x).item()
    net.zero_grad()
    net.saw.clear()
    monkeypatch.setenv("DISTUI_BATCH", '{"accumulation": 3, "micro": 2}')
    assert preset.batch_size(50) == 6
    assert preset.forward_backward(net, x).item() == pytest.approx(loss, rel=1e-5)
    assert net.saw == [2, 2, 2]
    assert torch.allclose(net.inner.weight.grad, wanted, rtol=1e-5)
    with pytest.raises(preset.ParallelizeError, match="a batch of 5 cannot be cut into 3 equal parts"):
        preset.forward_backward(net, x[:5])
