"""zero1 in scripts that average gradients themselves, from inside two ranks: the numbers of torchrun, or a stop."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from each import for_each
from hypothesis import given
from hypothesis import strategies as st
from starts import environment, in_forks
from test_adopted import BEGIN, Cases, adopting, same, stop_with_a_sentence

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
    from distui.runners.inrank.checksums import checksum

pytestmark = pytest.mark.torch
RANK = "rank = dist.get_rank()\ntorch.manual_seed(1)\n"
AVERAGED = """
def averaged(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
for parameter in net.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

def update(optimizer, model, seed):
    loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    averaged(model)
    return loss.item()
"""
LOOP = """
other = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
for parameter in other.parameters():
    dist.broadcast(parameter.data, 0)
other[0].bias.requires_grad_(False)
of_other = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
if "START" in os.environ:
    saved = torch.load(os.environ["START"])
    net.load_state_dict(saved["net"]), optimizer.load_state_dict(saved["of"]), of_other.load_state_dict(saved["other"])
losses = []
for step in range(6):
    losses.append(update(optimizer, net, 10 * step + rank))
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
    schedule.step()
    if step % 2:
        losses.append(update(of_other, other, 100 + 10 * step + rank))
        of_other.step()
    held = sum(v.numel() for o in (optimizer, of_other) for s in o.state.values() for v in s.values() if v is not None)
if rank == 0:
    states = dict(of=optimizer.state_dict(), other=of_other.state_dict())
    torch.save(dict(losses=losses, held=held, net=net.state_dict(), **states), "out.pt")
"""


@pytest.mark.long
def test_every_number_is_that_of_the_script_alone_and_checkpoints_go_on_there(tmp_path: Path) -> None:
    def going_on(number: int) -> dict[str, str]:
        return {"START": str(tmp_path / str(number) / "out.pt")}

    alone, zero1 = environment(), adopting("zero1")
    envs = [alone, zero1, {**alone, **going_on(1)}, {**zero1, **going_on(0)}]
    ran = in_forks(tmp_path, [(BEGIN + RANK + AVERAGED + LOOP, env) for env in envs])
    assert [codes for codes, _ in ran] == [[0, 0]] * 4, ran
    bare, adopted, on_bare, on_adopted = (
        torch.load(tmp_path / str(number) / "out.pt") for number in range(4)
    )
    assert adopted.pop("held") < 0.7 * bare.pop("held")
    assert same(bare, adopted)
    assert on_adopted.pop("held") < on_bare.pop("held")
    assert same(on_bare, on_adopted)


STEPS = """
for step in range(4):
    update(optimizer, net, 10 * step + rank)
    {before}
    optimizer.step()
    print(f"stepped {{rank}} {{step}}", flush=True)  # in one piece, as both ranks write
"""
DIFFER = "has no DistributedDataParallel before it, and its gradients differ between the ranks"
NEEDS = "which zero1 needs equal; leave --adopt out"
STOPPED = {
    "ranks that train for themselves": (
        RANK + "net = nn.Linear(8, 8)\noptimizer = torch.optim.SGD(net.parameters(), lr=1.0)\n"
        "net(torch.ones(2, 8) + rank).sum().backward()\noptimizer.step()\n",
        f"first optimizer step at script.py:16 {DIFFER}, {NEEDS}",
        0,
    ),
    "weights of their own": (
        RANK + "torch.manual_seed(rank)\nnet = nn.Linear(8, 8)\nnet(torch.ones(2, 8)).sum().backward()\n"
        "torch.optim.SGD(net.parameters(), lr=1.0).step()\n",
        f"the values of its parameters differ between the ranks, {NEEDS}",
        0,
    ),
    "gradients that differ later": (
        RANK + AVERAGED + STEPS.format(before="if step == 2 and rank: next(net.parameters()).grad[0, 0] += 1e-6"),
        f"the script's optimizer step at script.py:35 {DIFFER}, {NEEDS}",
        2,
    ),
    "a parameter that one rank changes": (
        RANK + AVERAGED + STEPS.format(before="if step == 2 and rank: next(net.parameters()).data[0, 0] += 1e-6"),
        f"the values of its parameters differ between the ranks, {NEEDS}",
        2,
    ),
    "another number of steps": (
        RANK + AVERAGED + STEPS.format(before="if step == 2 and rank: break"),
        "another rank has ended: without DistributedDataParallel in the script, zero1 needs every rank at",
        2,
    ),
    "a rank that never steps": (
        "from distui.runners.inrank import unwrapped_steps\nunwrapped_steps.ARRIVE_S = 2.0\n" + RANK + AVERAGED
        + "update(optimizer, net, 1)\nif rank == 0: optimizer.step()\ndist.barrier()\n",
        "rank 0 makes an optimizer step at script.py:34, and rank 1 has not come to it in 2 s",
        0,
    ),
    "other optimizers in each rank": (
        RANK + AVERAGED + "optimizer = (torch.optim.Adam, torch.optim.AdamW)[rank](net.parameters())\n"
        + STEPS.format(before=""),
        f"its parameters or the optimizer differ between the ranks, {NEEDS}",
        0,
    ),
    "an optimizer of the script's own": (
        RANK + AVERAGED + "class Own(torch.optim.AdamW): pass\noptimizer = Own(net.parameters())\n"
        + STEPS.format(before=""),
        "zero1 cannot be applied to __main__.Own, which steps at script.py:",
        0,
    ),
    "a closure": (
        RANK + AVERAGED + "optimizer.step(lambda: update(optimizer, net, 1))\n",
        "the script gives step() a closure, which computes gradients during the step; leave --adopt out",
        0,
    ),
    "sparse gradients": (
        RANK + "net = nn.Embedding(4, 4, sparse=True)\nnet(torch.ones(1, dtype=torch.long)).sum().backward()\n"
        "torch.optim.SGD(net.parameters(), lr=1.0).step()\n",
        "is in shards or sparse; leave --adopt out",
        0,
    ),
}  # fmt: skip


UNSUITED: Cases = {
    "another preset": (
        adopting("fsdp2"), RANK + AVERAGED + STEPS.format(before=""),
        "has not called DistributedDataParallel before, where --adopt applies fsdp2",
    ),
    "a precision": (
        adopting("zero1", DISTUI_PRECISION='{"reduce": "bf16"}'), RANK + AVERAGED + STEPS.format(before=""),
        "where precision acts: add --set",
    ),
}  # fmt: skip
"""What needs the call of DistributedDataParallel."""


@pytest.mark.long
def test_ranks_that_differ_stop_before_the_step_with_a_sentence(tmp_path: Path) -> None:
    cases: Cases = {name: (adopting("zero1"), text, words) for name, (text, words, _) in STOPPED.items()}
    outputs = stop_with_a_sentence(tmp_path, cases | UNSUITED)
    for name, (_, _, steps) in STOPPED.items():
        assert outputs[name].count("stepped 0") == steps, name


NUMBERS = st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20)


@given(NUMBERS, st.integers(0, 19), st.integers(0, 19))
def test_a_checksum_shows_a_change_and_another_order(numbers: list[float], one: int, other: int) -> None:
    tensor = torch.tensor(numbers)
    moved = tensor.clone()
    one, other = one % len(numbers), other % len(numbers)
    moved[one], moved[other] = tensor[other], tensor[one]
    same_bits = bool((tensor.view(torch.int32) == moved.view(torch.int32)).all())
    assert (checksum(tensor) == checksum(moved)) == same_bits
    changed = tensor.clone()
    changed.view(torch.int32)[one] ^= 1
    assert checksum(changed) != checksum(tensor)


@for_each("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int8, torch.bool])
def test_a_checksum_is_of_any_numbers(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(tensor) != checksum(tensor.T)[()] or bool((tensor == tensor.T).all())
    assert checksum(tensor[0]) != checksum(tensor[1])
