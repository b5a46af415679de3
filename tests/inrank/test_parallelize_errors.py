"""What keeps a script from obeying is one sentence that names the variable and what is known."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
from each import for_each

pytestmark = pytest.mark.torch

WRONG = [
    ({"DISTUI_STRATEGY": "fsdp"}, "is 'fsdp'; parallelize() knows single, ddp, zero1, fsdp1, fsdp2"),
    (
        {"DISTUI_STRATEGY": "zero1"},
        "so it has to construct it: write model, optimizer = parallelize(model, ",
    ),
    (
        {"DISTUI_STRATEGY": "ddp"},
        "strategy ddp needs ranks, but this is a single process: start it with torchrun",
    ),
    ({"DISTUI_STRATEGY": "single", "WORLD_SIZE": "2"}, "single is one process and the world size is 2"),
    ({"DISTUI_STRATEGY_OPTIONS": "{"}, "DISTUI_STRATEGY_OPTIONS is not JSON"),
    ({"DISTUI_STRATEGY_OPTIONS": "[1]"}, "DISTUI_STRATEGY_OPTIONS must be a JSON object, and is [1]"),
    ({"DISTUI_STRATEGY_OPTIONS": '{"static_graph": true}'}, "single has no option static_graph"),
    (
        {"DISTUI_STRATEGY": "ddp", "DISTUI_STRATEGY_OPTIONS": '{"static_graph": 1}'},
        "static_graph (DISTUI_STRATEGY_OPTIONS) is 1, and must be bool",
    ),
    ({"DISTUI_PRECISION": '{"param": "fp8"}'}, "DISTUI_PRECISION has param 'fp8'; known: param, reduce"),
    ({"DISTUI_PRECISION": '{"param": ["bf16"]}'}, "DISTUI_PRECISION has param ['bf16']"),
    ({"DISTUI_PRECISION": '{"output": "fp32"}'}, "DISTUI_PRECISION has output 'fp32'"),
    ({"DISTUI_STRATEGY": "deepspeed"}, "acts in scripts on DeepSpeed, Accelerate or the HF Trainer"),
    ({"DISTUI_MESH": '{"tp": 2}'}, "the mesh of single has no option tp (DISTUI_MESH)"),
    (
        {"DISTUI_STRATEGY": "fsdp2", "DISTUI_MESH": '{"tp": 0}'},
        "tp (DISTUI_MESH) is 0, and must be 1 or more",
    ),
    ({"DISTUI_STRATEGY": "fsdp2", "DISTUI_MESH": '{"ep": 2}'}, "the mesh of fsdp2 has no option ep"),
    ({"DISTUI_BATCH": '{"accumulation": "two"}'}, "accumulation (DISTUI_BATCH) is 'two', and must be int"),
    ({"DISTUI_BACKEND": "mpi"}, "DISTUI_BACKEND is 'mpi'; parallelize() knows nccl, gloo"),
]


@pytest.fixture(scope="module", name="preset")
def _preset() -> Any:
    """The module, imported here and not above: collecting tests must not cost an import of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
        return importlib.import_module("distui.runners.inrank.parallelize")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STRATEGY", "STRATEGY_OPTIONS", "MESH", "BATCH", "PRECISION"):
        monkeypatch.delenv(f"DISTUI_{name}", raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISTUI_BACKEND", "gloo")


@for_each(("env", "sentence"), WRONG)
def test_wrong_environment(
    preset: Any, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], sentence: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(preset.ParallelizeError) as caught:
        preset.parallelize(preset.nn.Linear(2, 2))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_optimizer_already_built(preset: Any) -> None:
    net = preset.nn.Linear(2, 2)
    built = preset.torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(preset.ParallelizeError, match="takes an optimizer's class, not one already built"):
        preset.parallelize(net, built)


def test_nccl_without_a_gpu(preset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if preset.torch.cuda.is_available():
        pytest.skip("nccl is right where there is a GPU")
    monkeypatch.setenv("DISTUI_BACKEND", "nccl")
    with pytest.raises(preset.ParallelizeError, match="DISTUI_BACKEND is nccl, but torch sees no GPU here"):
        preset.parallelize(preset.nn.Linear(2, 2))


def test_fp16_says_what_it_needs(preset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTUI_PRECISION", '{"param": "fp16"}')
    with pytest.warns(UserWarning, match="GradScaler"):
        preset.parallelize(preset.nn.Linear(2, 2))


def test_without_distui_a_plain_process_is_single(preset: Any) -> None:
    net = preset.nn.Linear(2, 2)
    assert preset.strategy() == "single"
    assert preset.parallelize(net) is net


def test_blocks_are_the_outermost_members_of_module_lists(preset: Any) -> None:
    nn = preset.nn
    experts = nn.ModuleList([nn.Linear(2, 2)])
    block = nn.Sequential(nn.Linear(2, 2))
    block.add_module("experts", experts)
    nested = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])])
    model = nn.Sequential(nn.ModuleList([block]), nn.Linear(2, 2), nested)
    assert list(preset.layers.blocks(model)) == [block, nested[0][0]]
