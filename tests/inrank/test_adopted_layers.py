"""Checkpointed and compiled layers, accumulation and PowerSGD at a script's own call, seen from inside two ranks."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from starts import environment, finished, torchrun
from test_adopted import BEGIN, HERE, adopting
from test_adopted_fsdp import near
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
    from distui.runners.inrank.parallelize.layers import prepare
    from distui.runners.inrank.parallelize.settings import Settings

LAYERS = ("activation_checkpointing", "compile")
pytestmark = pytest.mark.torch


def results(folder: Path, script: str, env: dict[str, str], *words: str) -> list[Any]:
    folder.mkdir()
    finished(torchrun(HERE / script, str(folder), *words), env, folder)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


def agree(wanted: list[Any], seen: list[Any]) -> None:
    for one, other in zip(wanted, seen, strict=True):
        for loop, values in one.items():
            assert near(values, other[loop]), (loop, values, other[loop])


@pytest.fixture(scope="module")
def bare_loops(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return results(tmp_path_factory.mktemp("bare") / "loops", "loops.py", environment())


ALL = [(kind, option) for kind in ("ddp", "zero1", "fsdp2") for option in (*LAYERS, "both")]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "option"), ALL)
def test_loops_with_checkpointed_and_compiled_layers_compute_what_they_do_bare(
    bare_loops: list[Any], tmp_path: Path, kind: str, option: str
) -> None:
    names = LAYERS if option == "both" else [option]
    env = adopting(kind, dict.fromkeys(names, True))
    agree(bare_loops, results(tmp_path / "adopted", "loops.py", env))


@pytest.fixture(scope="module")
def whole_batches(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return results(tmp_path_factory.mktemp("bare") / "batches", "accumulating.py", environment(), "1")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "zero1", "fsdp2"])
def test_accumulated_batches_train_as_whole_ones(
    whole_batches: list[Any], tmp_path: Path, kind: str
) -> None:
    env = adopting(kind, DISTUI_BATCH='{"accumulation": 4}')
    agree(whole_batches, results(tmp_path / "adopted", "accumulating.py", env, "4"))


@pytest.mark.long
def test_without_accumulation_they_do_not(whole_batches: list[Any], tmp_path: Path) -> None:
    seen = results(tmp_path / "bare", "accumulating.py", environment(), "4")[0]
    assert not any(near(values, whole_batches[0][loop]) for loop, values in seen.items())


MODEL = """
class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
    def forward(self, x):
        return {forward}
net = nn.Sequential(*[Part() for _ in range(3)])
"""
STEP = "model(torch.randn(4, 8)).sum().backward()\noptimizer.step()\n"
MADE = f"model = DDP(net)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{STEP}"
CLOSURE = "torch.optim.SGD(net.parameters(), lr=0.1).step(lambda: model(torch.ones(2, 8)).sum())\n"
OWN = "class Own(torch.optim.SGD): pass\nmodel = DDP(net)\noptimizer = Own(net.parameters(), lr=0.1)\n"
CHECKPOINTED = {"activation_checkpointing": True}
STOPPED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a buffer that changes": (
        "ddp", CHECKPOINTED, MODEL.format(forward="self.norm(self.inner(x))") + MADE,
        "and its buffer norm.",
    ),
    "random numbers of Python": (
        "ddp", CHECKPOINTED,
        "import random" + MODEL.format(forward="self.inner(x) * random.random()") + MADE,
        "its random numbers of random would change twice",
    ),
    "no layers": ("ddp", CHECKPOINTED, f"net = nn.Linear(8, 8)\n{MADE}", "the model has no layers that repeat"),
    "compiled by the script": (
        "fsdp2", {"compile": True}, f"net = torch.compile(net)\n{MADE}", "the model is compiled already",
    ),
    "no call to act at": (
        "zero1", {"compile": True}, f"model = net\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n{STEP}",
        "where strategy.compile acts: add --set strategy.compile=false",
    ),
    "a hook beside PowerSGD's": (
        "ddp", {"powersgd_rank": 1}, f"{MADE}model.register_comm_hook(None, lambda _, bucket: None)\n",
        "and strategy.powersgd_rank needs one, too: leave strategy.powersgd_rank out",
    ),
}  # fmt: skip
SCALED = """
model, scaler = DDP(net), torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
scaler.scale(model(torch.ones(2, 8)).sum()).backward()
scaler.step(optimizer)
"""
UNEVEN = {
    "a closure": (f"model = DDP(net)\n{CLOSURE}", "the script gives step() a closure"),
    "an optimizer of its own": (f"{OWN}{STEP}", "gradient accumulation cannot be applied to __main__.Own"),
    "a fused scaler": (
        SCALED,
        "takes the scale of GradScaler out of the gradients",
    ),
}


def stops(tmp_path: Path, text: str, env: dict[str, str], words: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEGIN + text)
    with pytest.raises(AssertionError) as raised:
        finished(torchrun(script), env, tmp_path)
    lines = [line for line in str(raised.value).splitlines() if "Error: " in line]
    assert any(words in line for line in lines), str(raised.value)


@pytest.mark.long
@pytest.mark.parametrize("case", STOPPED)
def test_what_would_compute_something_else_stops_with_a_sentence(tmp_path: Path, case: str) -> None:
    kind, options, text, words = STOPPED[case]
    stops(tmp_path, text, adopting(kind, options), words)


@pytest.mark.long
@pytest.mark.parametrize("case", UNEVEN)
def test_steps_that_cannot_be_left_out_stop_with_a_sentence(tmp_path: Path, case: str) -> None:
    text, words = UNEVEN[case]
    stops(tmp_path, text, adopting("ddp", DISTUI_BATCH='{"accumulation": 2}'), words)


POWER = """
import sys
torch.manual_seed(3)
net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
model, wanted = DDP(net), torch.randn(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
source, losses = torch.Generator().manual_seed(dist.get_rank()), []
for _ in range(1100):
    x = torch.randn(16, 32, generator=source)
    loss = (model(x) - x @ wanted).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
every = [torch.zeros_like(net[0].weight) for _ in range(2)]
dist.all_gather(every, net[0].weight.detach())
if dist.get_rank() == 0:
    torch.save((losses, torch.equal(*every)), sys.argv[1])
"""


@pytest.mark.long
def test_powersgd_begins_after_torchs_first_steps_and_trains_on(tmp_path: Path) -> None:
    script, seen = tmp_path / "script.py", {}
    script.write_text(BEGIN + POWER)
    for name, env in (("bare", environment()), ("power", adopting("ddp", {"powersgd_rank": 2}))):
        out = tmp_path / name
        finished(torchrun(script, str(out)), env, tmp_path)
        seen[name] = torch.load(out)
    (bare, _), (power, equal) = seen["bare"], seen["power"]
    assert power[:1000] == pytest.approx(bare[:1000], rel=1e-5)
    assert power[1050:] != pytest.approx(bare[1050:], rel=1e-5)
    assert sum(power[-50:]) < 1.2 * sum(power[900:950])
    assert equal


class Part(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return torch.tanh(self.inner(x))


def test_copies_and_files_of_a_checkpointed_layer_are_plain_ones(tmp_path: Path) -> None:
    config = Settings("ddp", CHECKPOINTED, {}, None, 1, torch.float32, torch.float32)
    net = nn.Sequential(Part(), Part())
    names = list(net.state_dict())
    assert prepare(net, config) == ["2 layers recomputed in backward"]
    net(torch.ones(1, 4)).sum().backward()
    assert [part.seen for part in net] == [2, 2], "forward, and once more in backward"
    assert list(net.state_dict()) == names
    torch.save(net, tmp_path / "net.pt")
    assert b"distui" not in (tmp_path / "net.pt").read_bytes()
    for other in (copy.deepcopy(net), torch.load(tmp_path / "net.pt", weights_only=False)):
        assert torch.equal(other(torch.ones(1, 4)), net(torch.ones(1, 4)))
        before = other[0].seen
        other(torch.ones(1, 4)).sum().backward()
        assert other[0].seen == before + 1
        assert other[0].forward.args == (other[0],)


def test_an_evaluation_is_not_computed_twice() -> None:
    config = Settings("ddp", CHECKPOINTED, {}, None, 1, torch.float32, torch.float32)
    net = nn.Sequential(Part(), nn.Dropout(), Part())
    prepare(net, config)
    net.eval()(torch.ones(1, 4)).sum().backward()
    assert net[0].seen == 1
    with torch.no_grad():
        net.train()(torch.ones(1, 4))
    assert net[0].seen == 2
