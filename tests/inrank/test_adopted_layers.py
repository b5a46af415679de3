"""Loops and PowerSGD at a script's own call, seen from inside four ranks; checkpointed layers."""

from __future__ import annotations

import copy
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from each import for_each
from starts import RANKS, environment, finished, in_forks, torchrun
from test_adopted import BEGIN, HERE, Cases, adopting, stop_with_a_sentence
from test_adopted_fsdp import near
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
    from distui.runners.inrank.parallelize.layers import prepare
    from distui.runners.inrank.parallelize.settings import ParallelizeError, Settings

pytestmark = pytest.mark.torch


def results(folder: Path, script: str, env: dict[str, str]) -> list[Any]:
    folder.mkdir()
    finished(torchrun(HERE / script, str(folder), ranks=RANKS), env, folder)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(RANKS)]


def agree(wanted: list[Any], seen: list[Any]) -> None:
    for one, other in zip(wanted, seen, strict=True):
        assert other
        for loop, values in other.items():
            assert near(one[loop], values), (loop, one[loop], values)


@pytest.fixture(scope="module")
def bare_loops(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return results(tmp_path_factory.mktemp("bare") / "loops", "loops.py", environment())


@pytest.mark.long
def test_loops_of_many_kinds_compute_what_they_do_bare(bare_loops: list[Any], tmp_path: Path) -> None:
    agree(bare_loops, results(tmp_path / "adopted", "loops.py", adopting("fsdp2")))


MADE = """net = nn.Linear(8, 8)
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
"""
CHECKPOINTED = {"activation_checkpointing": True}
STOPPED: Cases = {
    "a hook beside PowerSGD's": (
        adopting("ddp", {"powersgd_rank": 1}), f"{MADE}model.register_comm_hook(None, lambda _, bucket: None)\n",
        "and strategy.powersgd_rank needs one, too: leave strategy.powersgd_rank out",
    ),
}  # fmt: skip


@pytest.mark.long
def test_what_would_compute_something_else_stops_with_a_sentence(tmp_path: Path) -> None:
    stop_with_a_sentence(tmp_path, STOPPED)


POWER = """
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
every = [torch.zeros_like(net[0].weight) for _ in range(4)]
dist.all_gather(every, net[0].weight.detach())
if dist.get_rank() == 0:
    torch.save((losses, all(torch.equal(every[0], each) for each in every)), "out.pt")
"""


@pytest.mark.long
def test_powersgd_begins_after_torchs_first_steps_and_trains_on(tmp_path: Path) -> None:
    ran = in_forks(
        tmp_path, [(BEGIN + POWER, env) for env in (environment(), adopting("ddp", {"powersgd_rank": 2}))]
    )
    assert [codes for codes, _ in ran] == [[0] * RANKS] * 2, ran
    (bare, _), (power, equal) = (torch.load(tmp_path / name / "out.pt") for name in ("0", "1"))
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


class Counting(Part):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(x)


class Drawing(Part):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * random.random()


@for_each(
    ("part", "words"),
    [(Counting, "its buffer passes"), (Drawing, "its random numbers of random would change")],
)
def test_what_a_second_pass_would_change_is_refused(part: type[Part], words: str) -> None:
    net = nn.Sequential(part(), part())
    prepare(net, Settings("ddp", CHECKPOINTED, {}, None, 1, torch.float32, torch.float32))
    with pytest.raises(ParallelizeError, match=words):
        net(torch.ones(2, 4))
