"""`ddp` and `zero1` at a script's own DistributedDataParallel call, in four ranks: all numbers are those of bare DDP."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from each import for_each
from hypothesis import given
from hypothesis import strategies as st
from starts import RANKS, environment, finished, in_forks, torchrun

from distui.runners.inrank.adopt import arming
from distui.runners.inrank.adopt.report import AdoptionError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
    from distui.runners.inrank.adopt.call import changed
    from distui.runners.inrank.adopt.optimizers import BY_PARAMETER, is_one_of
    from distui.runners.inrank.adopt.outputs import in_full
    from distui.runners.inrank.adopt.zero1 import checksums, shares
    from distui.runners.inrank.parallelize.settings import Settings

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
CASES = 8
Cases = dict[str, tuple[dict[str, str], str, str]]
"""By name: the environment, the script behind BEGIN, and words of the sentence with which it stops."""
OPTIONS = {"bucket_cap_mb": 1, "gradient_as_bucket_view": True, "device_mesh": True}


def adopting(strategy: str, options: dict[str, Any] | None = None, **more: str) -> dict[str, str]:
    return environment(
        DISTUI_ADOPT="1",
        DISTUI_STRATEGY=strategy,
        DISTUI_STRATEGY_OPTIONS=json.dumps(options or {}),
        **more,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[dict[str, Any]]]]:
    """Of bare DDP and of presets: the folder, and what each rank saw."""

    def results(name: str, env: dict[str, str]) -> tuple[Path, list[dict[str, Any]]]:
        folder = tmp_path_factory.mktemp(name)
        finished(torchrun(HERE / "adopting.py", str(folder), str(CASES), ranks=RANKS), env, folder)
        return folder, [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(RANKS)]

    return {
        "bare": results("bare", environment()),
        "ddp": results("ddp", adopting("ddp", OPTIONS)),
        "zero1": results("zero1", adopting("zero1", {"gradient_as_bucket_view": True})),
    }


@pytest.mark.real
def test_every_number_and_checkpoint_is_that_of_bare_ddp(trained: Any) -> None:
    for kind in ("ddp", "zero1"):
        for bare, adopted in zip(trained["bare"][1], trained[kind][1], strict=True):
            for case, (wanted, seen) in enumerate(zip(bare["cases"], adopted["cases"], strict=True)):
                assert seen["losses"] == wanted["losses"], (kind, case)
                assert same(wanted["weights"], seen["weights"]), (kind, case)
    for case in range(CASES):
        bare, sharded = (torch.load(trained[kind][0] / f"saved-{case}.pt") for kind in ("bare", "zero1"))
        assert same(bare, sharded), case
    assert trained["bare"][1][0]["described"] == (set(), "")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.real
def test_zero1_divides_the_states_over_the_ranks(trained: Any) -> None:
    whole = sum(case["held"] for case in trained["bare"][1][0]["cases"])
    held = [sum(case["held"] for case in rank["cases"]) for rank in trained["zero1"][1]]
    assert sum(held) == whole, "each state is on one rank"
    assert 0 < min(held) <= max(held) < 0.5 * whole
    strategies, text = trained["zero1"][1][0]["described"]
    assert strategies == {"zero1"}
    assert "zero1 applied at adopting.py:" in text
    assert re.search(r"\d+ of \d+ parameters are updated on this rank", text), text


BEGIN = """
import os, sys, time; sys.stderr.reconfigure(line_buffering=True, write_through=False)
from distui.runners.inrank import gloo_workers
from distui.runners.inrank.adopt import arming
gloo_workers.arm(), arming.arm()
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
"""
LATE = f"""{BEGIN}
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
theirs, many = dist.send_object_list, torch.ones(1500, 1500)
dist.send_object_list = lambda *args, **named: (theirs(*args, **named), many @ many @ many)  # a thread still in torch
if dist.get_rank() == 0:
    time.sleep(2)
    print("saved", len(optimizer.state_dict()["state"]), flush=True)
"""
UNEVEN = f"""{BEGIN}
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2 + (dist.get_rank() > 0)):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""
ALONE = """
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
net(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""
OTHERS = """
class Own(torch.optim.AdamW): pass
model = DDP(net)
optimizer = Own(model.parameters())
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""
CLOSURE = """
model = DDP(net)
torch.optim.SGD(model.parameters(), lr=0.1).step(lambda: model(torch.ones(2, 8)).sum())
"""
GROUPS = """
groups = [dist.new_group([at]) for at in range(4)]
DDP(net, process_group=groups[dist.get_rank()])
"""
SWALLOWED = f"""
try:
    {OTHERS.strip().replace(chr(10), chr(10) + "    ")}
except Exception:
    print("goes on without", flush=True)
"""
WRAPPED = """
model = DDP(net)
optimizer = torch.optim.Adam(model.parameters())
x = torch.full((2, 8), 1.0 + dist.get_rank())
"""
PART = f"{WRAPPED}model.module(x).sum().backward()\noptimizer.step()\n"
SPARSELY = f"{WRAPPED}with model.no_sync():\n    model(x).sum().backward()\n    optimizer.step()\n"
OWN_COMM_HOOK = f"""{WRAPPED}
def unsummed(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
model.register_comm_hook(None, unsummed)
model(x * (1 + dist.get_rank())).sum().backward()
optimizer.step()
"""
JOINED = f"{WRAPPED}with model.join():\n    model(x).sum().backward()\n"
JOINED_BESIDE = (
    f"{WRAPPED}from torch.distributed.algorithms.join import Join\nwith Join([model]): model(x)\n"
)
STEP_HOOK = f"{WRAPPED}optimizer.register_step_post_hook(lambda *_: None)\n"
CHANGED = f"""{WRAPPED}
for step in range(6):
    model(x).sum().backward()
    if step == 4 and dist.get_rank() == 0:
        net[0].{{what}}[0, 0] += 1e-6
    optimizer.step()
    optimizer.zero_grad()
"""
ONE_STEPS = f"""{WRAPPED}
for step in range(4):
    model(x).sum().backward()
    if dist.get_rank() == 0 or step != 2:
        optimizer.step()
"""
OWN_HOOK = "model = DDP(net)\nmodel.register_comm_hook(None, lambda _, bucket: None)\n"
DDP, ZERO1 = adopting("ddp"), adopting("zero1")
STOPPED: Cases = {
    "a step behind except Exception": (ZERO1, SWALLOWED, "zero1 cannot be applied to __main__.Own"),
    "a part of the model": (ZERO1, PART, "gradients differ between the ranks"),
    "no_sync": (ZERO1, SPARSELY, "gradients differ between the ranks"),
    "a gradient of one rank": (
        ZERO1,
        CHANGED.format(what="weight.grad"),
        "its gradients differ between the ranks",
    ),
    "a weight of one rank": (
        ZERO1,
        CHANGED.format(what="weight.data"),
        "the values of its parameters differ between the ranks",
    ),
    "a communication hook": (ZERO1, OWN_COMM_HOOK, "or with a communication hook of the script's own"),
    "a hook around a step": (ZERO1, STEP_HOOK, "the script registers a hook around optimizer steps"),
    "join": (ZERO1, JOINED, "zero1 has no join(), which the script calls at script.py:"),
    "join beside": (
        adopting("fsdp2"),
        JOINED_BESIDE,
        "fsdp2 has no join(), which the script calls at script.py:",
    ),
    "a step of one rank": (ZERO1, ONE_STEPS, "at its backward pass at script.py:"),
    "no call": (DDP, ALONE, "has not called DistributedDataParallel before"),
    "no call for zero1": (ZERO1, ALONE, "has not called DistributedDataParallel before"),
    "another optimizer": (
        ZERO1,
        OTHERS,
        "zero1 cannot be applied to __main__.Own, which steps at script.py:",
    ),
    "a closure": (ZERO1, CLOSURE, "the script gives step() a closure"),
    "a group of some ranks": (ZERO1, GROUPS, "a process group of some ranks only"),
    "a hook beside the preset's": (
        adopting("ddp", DISTUI_PRECISION='{"reduce": "bf16"}'),
        OWN_HOOK,
        "AdoptionError: the script registers a communication hook",
    ),
}


def stop_with_a_sentence(folder: Path, cases: Cases) -> dict[str, str]:
    """Run each script, which must stop with a sentence that has these words. Returns the outputs."""
    ran = in_forks(folder, [(BEGIN + text, env) for env, text, _ in cases.values()])
    outputs = {name: output for name, (_, output) in zip(cases, ran, strict=True)}
    for (name, output), (codes, _) in zip(outputs.items(), ran, strict=True):
        errors = [line for line in output.splitlines() if "Error: " in line]
        assert any(codes), name
        assert any(cases[name][2] in line for line in errors), (name, output)
    return outputs


@pytest.mark.long
def test_what_cannot_be_applied_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    stop_with_a_sentence(tmp_path, STOPPED)


COPIED = f"""{BEGIN}
import copy, io
[torch.nn.init.constant_(each, 0.1) for each in net.parameters()]
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
teacher, file = copy.deepcopy(model).requires_grad_(False), io.BytesIO()
for step in range(3):
    x = torch.full((2, 8), 1.0 + dist.get_rank())
    (model(x) - teacher(x).detach()).pow(2).sum().add(model(x).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        [slow.lerp_(fast, 0.5) for slow, fast in zip(teacher.parameters(), model.parameters())]
torch.save(model, file)
for name, each in (("norm", teacher), ("mean", model)):
    norm = sum(value.double().norm() for value in each.parameters()).item()
    print(f"{{name}} {{dist.get_rank()}} {{norm}}\\n", end="", flush=True)
print(f"norm {{dist.get_rank()}} {{len(file.getvalue())}}\\n", end="", flush=True)
dist.destroy_process_group()
"""
COMPILED = f"""{BEGIN}
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x):
        return self.inner(x).tanh()
net = nn.Sequential(*[Layer() for _ in range(3)])
[torch.nn.init.constant_(each, 0.1) for each in net.parameters()]
model = torch.compile(DDP(net), backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.full((2, 8), 1.0 + dist.get_rank())).pow(2).sum()
    print(f"norm {{dist.get_rank()}} {{loss.item():.5f}}\\n", end="", flush=True)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


HALF = """
model = DDP(net)
out, exact = model(torch.randn(2, 8)), net(torch.randn(2, 8))
print(f"{out.dtype} {exact.dtype} {bool((out == out.bfloat16().float()).all())}\\n", end="", flush=True)
"""


@pytest.mark.long
def test_scripts_see_what_they_do_under_bare_ddp(tmp_path: Path) -> None:
    """Copies and pickles of the wrapped model, and a compiled model."""
    pairs = [(COPIED, ZERO1, 3 * RANKS), (COMPILED, ZERO1, 3 * RANKS)]
    cases = [(text, env) for text, adopted, _ in pairs for env in (environment(), adopted)]
    seen = [sorted(re.findall(r"(?:norm|mean) \d \S+", output)) for _, output in in_forks(tmp_path, cases)]
    assert [len(lines) for lines in seen[::2]] == [lines for _, _, lines in pairs]
    assert seen[1::2] == seen[::2]


@pytest.mark.long
def test_half_precision_and_ends_at_different_times(tmp_path: Path) -> None:
    """It computes in half precision and returns fp32; a rank that ends waits for those that need its states, and one
    that makes another step than the others does not wait for ever."""
    half = adopting("ddp", DISTUI_PRECISION='{"param": "bf16", "reduce": "bf16"}')
    cases = [(f"{BEGIN}{HALF}", half), (LATE, ZERO1), (UNEVEN, ZERO1)]
    (halved, late, uneven) = in_forks(tmp_path, cases)
    assert halved[1].splitlines() == ["torch.float32 torch.float32 True"] * RANKS
    assert late[0] == [0] * RANKS, late[1]
    assert "saved 8" in late[1]
    assert uneven[0][0] == 0, uneven[1]
    assert any(uneven[0][1:]), uneven[1]
    assert "rank 0 is at its end, and rank" in uneven[1]


def settings(**options: Any) -> Settings:
    return Settings("ddp", options, {}, None, 1, torch.float32, torch.float32)


@for_each(
    ("options", "given", "wanted"),
    [
        ({}, {"find_unused_parameters": True}, {}),
        ({"find_unused_parameters": False}, {"find_unused_parameters": True}, {}),
        ({"static_graph": True}, {}, {"static_graph": True}),
        ({"static_graph": True}, {"static_graph": True}, {}),
        ({"bucket_cap_mb": 50}, {"bucket_cap_mb": 25}, {"bucket_cap_mb": 50}),
        ({"device_mesh": True}, {"process_group": object()}, {}),
        ({"device_mesh": True}, {}, {"device_mesh": True}),
    ],
)
def test_a_preset_only_adds_to_what_the_script_asks_for(
    options: dict[str, Any], given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert changed(settings(**options), given) == wanted


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_shares_are_even_to_the_largest_parameter(sizes: list[int], ranks: int) -> None:
    owners = shares(sizes, ranks)
    held = [
        sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank)
        for rank in range(ranks)
    ]
    assert sum(held) == sum(sizes)
    assert max(held) - min(held) <= max(sizes, default=0)


def test_optimizers_of_torch_are_told_from_others() -> None:
    ours = [getattr(torch.optim, name) for name in BY_PARAMETER if hasattr(torch.optim, name)]
    assert len(ours) > 10
    assert all(is_one_of(kind, BY_PARAMETER) for kind in ours)
    assert not is_one_of(torch.optim.LBFGS, BY_PARAMETER)
    assert not any(is_one_of(type(kind.__name__, (kind,), {}), BY_PARAMETER) for kind in ours)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20), st.integers(0, 19))
def test_a_checksum_shows_a_changed_bit(numbers: list[float], at: int) -> None:
    tensor = torch.tensor(numbers)
    changed = tensor.clone()
    changed.view(torch.int32)[at % len(numbers)] ^= 1
    assert checksums([changed]) != checksums([tensor]) == checksums([tensor.clone()])


@for_each("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int8, torch.bool])
def test_a_checksum_is_of_any_numbers(dtype: torch.dtype) -> None:
    zeros, ones = torch.zeros(3, 2).to(dtype), torch.ones(3, 2).to(dtype)
    assert checksums([zeros, ones]) == [0, *checksums([ones.T])] != [0, 0]


def test_outputs_of_any_shape_come_in_fp32() -> None:
    half = torch.ones(1, dtype=torch.bfloat16)
    seen = in_full({"a": (half, [half]), "b": torch.ones(1, dtype=torch.int64), "c": None})
    assert seen["a"][0].dtype == seen["a"][1][0].dtype == torch.float32
    assert (seen["b"].dtype, seen["c"]) == (torch.int64, None)


@for_each(
    ("version", "well"),
    [("2.8.0", False), ("2.9.0", True), ("2.14.0a0+git1", True), ("3.0", True), ("odd", True)],
)
def test_an_older_torch_is_refused(version: str, well: bool) -> None:
    if well:
        arming.check_release(version)
        return
    with pytest.raises(AdoptionError, match=r"needs torch 2\.9 or newer, and this is 2\.8\.0"):
        arming.check_release(version)
