"""A step with gradients that DDP has not averaged stops the run, whichever step it is; a step with others goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from starts import RANKS, in_forks
from test_adopted import BEGIN, adopting

pytestmark = [pytest.mark.torch, pytest.mark.real]

WRAPPED = f"""{BEGIN}
from contextlib import nullcontext
[torch.nn.init.constant_(each, 0.1) for each in net.parameters()]
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
x = torch.full((2, 8), 1.0 + dist.get_rank())
"""
TAIL = """
for n in range(22):
    last = n == 21
    with model.no_sync() if (n + 1) % 4 else nullcontext():
        model(x).sum().backward()
    if (n + 1) % 4 == 0 or last:
        optimizer.step()
        optimizer.zero_grad()
"""
AROUND = """
for n in range(24):
    (model.module(x) if n == 10 else model(x)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PART = AROUND.replace("model.module(x)", "model.module[2](x)")
TWICE = AROUND.replace(
    "optimizer.step()", "(model.module(x).sum().backward() if n == 10 else None, optimizer.step())"
)
STOP = {
    "zero1, the last step of an epoch": ("zero1", TAIL),
    "zero1, around the wrapper": ("zero1", AROUND),
    "zero1, a part of the model": ("zero1", PART),
    "zero1, a pass more behind the averaged one": ("zero1", TWICE),
    "fsdp2, the last step of an epoch": ("fsdp2", TAIL),
}
GO_ON = {
    "accumulated": """
for n in range(20):
    with model.no_sync() if (n + 1) % 4 else nullcontext():
        model(x).sum().backward()
    if (n + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "two passes, one backward": """
for n in range(5):
    (model(x).sum() + model(2 * x).pow(2).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a look at gradients that nobody keeps": """
for n in range(5):
    model.module(x).sum().backward()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "an evaluation": """
for n in range(5):
    model(x).sum().backward()
    with torch.no_grad():
        model.module(x)
    optimizer.step()
    optimizer.zero_grad()
""",
    "two models": """
judge = DDP(nn.Linear(8, 1))
second = torch.optim.AdamW(judge.parameters(), lr=0.1)
for n in range(5):
    judge(model(x).detach()).sum().backward()
    second.step()
    second.zero_grad()
    judge(model(x)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "checkpointed layers": """
from torch.utils.checkpoint import checkpoint
class Saving(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)
saving = DDP(Saving())
second = torch.optim.AdamW(saving.parameters())
for n in range(3):
    saving(x).sum().backward()
    second.step()
    second.zero_grad()
""",
}
END = "print('went on', flush=True)\ndist.destroy_process_group()\n"


def test_gradients_of_one_rank_alone_stop_the_run(tmp_path: Path) -> None:
    ran = in_forks(tmp_path, [(WRAPPED + text, adopting(strategy)) for strategy, text in STOP.values()])
    for name, (codes, output) in zip(STOP, ran, strict=True):
        assert any(codes), name
        assert "cannot be applied at script.py:" in output, (name, output)
        assert "in no_sync()" in output, (name, output)


def test_gradients_that_were_averaged_go_on(tmp_path: Path) -> None:
    ran = in_forks(tmp_path, [(WRAPPED + text + END, adopting("zero1")) for text in GO_ON.values()])
    for name, (codes, output) in zip(GO_ON, ran, strict=True):
        assert (codes, output.count("went on")) == ([0] * RANKS, RANKS), (name, output)
