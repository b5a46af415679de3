"""A preset at a script's own DistributedDataParallel call, from inside two ranks: all numbers are those of bare DDP."""

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
from starts import environment, finished, torchrun

from distui.runners.inrank import adoption
from distui.runners.inrank.adopted import AdoptionError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
    from distui.runners.inrank.adopted_ddp import changed, in_full
    from distui.runners.inrank.parallelize.settings import Settings
    from distui.runners.inrank.sharded_steps import BY_PARAMETER, by_parameter, shares

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
CASES = 24
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
    """Of bare DDP and of presets: the folder, and what each of two ranks saw."""

    def results(name: str, env: dict[str, str]) -> tuple[Path, list[dict[str, Any]]]:
        folder = tmp_path_factory.mktemp(name)
        finished(torchrun(HERE / "adopting.py", str(folder), str(CASES)), env, folder)
        return folder, [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]

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
def test_zero1_holds_about_half_of_the_states_in_each_rank(trained: Any) -> None:
    whole = sum(case["held"] for case in trained["bare"][1][0]["cases"])
    for rank in trained["zero1"][1]:
        assert 0.3 * whole < sum(case["held"] for case in rank["cases"]) < 0.7 * whole
    strategies, text = trained["zero1"][1][0]["described"]
    assert strategies == {"zero1"}
    assert "zero1 applied at adopting.py:" in text
    assert re.search(r"\d+ of \d+ parameters are updated on this rank", text), text


@pytest.mark.long  # tests/e2e/test_adopt.py has one of a launch
@pytest.mark.parametrize("start", ["bare", "zero1"])
def test_a_checkpoint_goes_on_under_the_other(trained: Any, tmp_path: Path, start: str) -> None:
    under = adopting("zero1") if start == "bare" else environment()
    for name, env in (("other", under), ("plain", environment())):
        (tmp_path / name).mkdir()
        words = (
            str(tmp_path / name),
            str(CASES // 2),
            str(trained[start if name == "other" else "bare"][0]),
        )
        finished(torchrun(HERE / "adopting.py", *words), env, tmp_path)
    for case in range(CASES // 2):
        other, plain = (torch.load(tmp_path / name / f"saved-{case}.pt") for name in ("other", "plain"))
        assert same(plain, other), case


@pytest.mark.long
def test_a_training_script_computes_the_same_and_saves_the_same(tmp_path: Path) -> None:
    seen = {}
    for name, env in (
        ("bare", environment()),
        ("zero1", adopting("zero1", {"gradient_as_bucket_view": True})),
    ):
        out, log = tmp_path / f"{name}.pt", tmp_path / f"{name}.json"
        finished(torchrun(HERE / "plain_gpt.py", "--out", str(out), "--losses", str(log)), env, tmp_path)
        seen[name] = json.loads(log.read_text()), torch.load(out)
    assert seen["zero1"][0] == seen["bare"][0]
    assert same(seen["bare"][1], seen["zero1"][1])


@pytest.mark.long
def test_a_rank_that_ends_waits_until_the_others_have_what_they_need(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    output = finished(torchrun(script), adopting("zero1"), tmp_path)
    assert "saved 8" in output


@pytest.mark.long
def test_a_rank_that_the_others_wait_for_leaves(tmp_path: Path) -> None:
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    with pytest.raises(AssertionError, match=r"Connection closed|Connection reset|ChildFailedError"):
        finished(torchrun(script), adopting("zero1"), tmp_path)


BEGIN = """
import os, sys, time; sys.stderr.reconfigure(line_buffering=True, write_through=False)
from distui.runners.inrank import adoption, gloo_workers
from distui.runners.inrank.adopted import AdoptionError
gloo_workers.arm(), adoption.arm()
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
theirs, many = dist.send, torch.ones(1500, 1500)
dist.send = lambda *args, **named: (theirs(*args, **named), many @ many @ many)  # a thread that is still in torch
if dist.get_rank() == 0:
    time.sleep(2)
    print("saved", len(optimizer.state_dict()["state"]), flush=True)
"""
UNEVEN = f"""{BEGIN}
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2 + dist.get_rank()):
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
groups = [dist.new_group([at]) for at in range(2)]
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
LATER = f"""{WRAPPED}
model.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(
    lambda sent: sent.value()[0] + (dist.get_rank() if len(steps) == 4 else 0)))
steps = []
for _ in range(6):
    model(x).sum().backward()
    steps.append(optimizer.step())
"""
JOINED = f"{WRAPPED}with model.join():\n    model(x).sum().backward()\n"
JOINED_BESIDE = (
    f"{WRAPPED}from torch.distributed.algorithms.join import Join\nwith Join([model]): model(x)\n"
)
STATES = f"""{WRAPPED}
model(x).sum().backward()
optimizer.step()
[optimizer.state[p]['exp_avg'] for p in net.parameters()]
"""
ONE_STEPS = f"""{WRAPPED}
for step in range(4):
    model(x).sum().backward()
    if dist.get_rank() == 0 or step != 2:
        optimizer.step()
"""
STOPPED = {
    "a step behind except Exception": ("zero1", SWALLOWED, "zero1 cannot be applied to __main__.Own"),
    "a part of the model": (
        "zero1",
        PART,
        "gradients differ between the ranks",
    ),
    "no_sync": (
        "zero1",
        SPARSELY,
        "gradients differ between the ranks",
    ),
    "a hook that differs later": ("zero1", LATER, "gradients differ between the ranks"),
    "join": ("zero1", JOINED, "zero1 has no join(), which the script calls at script.py:"),
    "join beside": ("fsdp2", JOINED_BESIDE, "fsdp2 has no join(), which the script calls at script.py:"),
    "states of other ranks": (
        "zero1",
        STATES,
        "reads 'exp_avg' of an optimizer's state for a parameter that zero1 has",
    ),
    "a step of one rank": ("zero1", ONE_STEPS, "backward pass at script.py:"),
    "no call": ("ddp", ALONE, "has not called DistributedDataParallel before"),
    "another optimizer": (
        "zero1",
        OTHERS,
        "zero1 cannot be applied to __main__.Own, which steps at script.py:",
    ),
    "a closure": ("zero1", CLOSURE, "the script gives step() a closure"),
    "a group of some ranks": ("zero1", GROUPS, "a process group of some ranks alone"),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.real if case == "another optimizer" else pytest.mark.long)
        for case in STOPPED
    ],
)
def test_what_cannot_be_applied_stops_the_run_with_a_sentence(tmp_path: Path, case: str) -> None:
    strategy, text, words = STOPPED[case]
    script = tmp_path / "script.py"
    script.write_text(BEGIN + text)
    with pytest.raises(AssertionError) as raised:
        finished(torchrun(script), adopting(strategy), tmp_path)
    lines = [line for line in str(raised.value).splitlines() if "AdoptionError: " in line]
    assert lines, str(raised.value)
    assert words in lines[0]


@pytest.mark.long
def test_a_hook_of_the_scripts_own_beside_the_presets_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{BEGIN}model = DDP(net)\nmodel.register_comm_hook(None, lambda _, bucket: None)\n")
    env = adopting("ddp", DISTUI_PRECISION='{"reduce": "bf16"}')
    with pytest.raises(
        AssertionError, match=r"AdoptionError: the script registers a communication hook .* at script.py:12"
    ):
        finished(torchrun(script), env, tmp_path)


@pytest.mark.long
def test_half_precision_computes_in_it_and_returns_fp32(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{BEGIN}model = DDP(net)\nout = model(torch.randn(2, 8))\nexact = net(torch.randn(2, 8))\n"
                      "print(f'{out.dtype} {exact.dtype} {bool((out == out.bfloat16().float()).all())}')\n")  # fmt: skip
    output = finished(
        torchrun(script), adopting("ddp", DISTUI_PRECISION='{"param": "bf16", "reduce": "bf16"}'), tmp_path
    )
    assert "torch.float32 torch.float32 True" in output


HOOKED = f"""{BEGIN}
[torch.nn.init.constant_(each, 0.1) for each in net.parameters()]
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
mean = [each.detach().clone() for each in net.parameters()]
def before(optimizer, args, kwargs):
    norm = torch.nn.utils.clip_grad_norm_([each for each in net.parameters() if each.grad is not None], 0.1)
    print(f"norm {{dist.get_rank()}} {{norm.item()}}\\n", end="", flush=True)
def behind(optimizer, args, kwargs):
    with torch.no_grad():
        [slow.lerp_(fast, 0.5) for slow, fast in zip(mean, net.parameters())]
optimizer.register_step_pre_hook(before)
from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(behind)
optimizer.register_step_post_hook(hook=behind)
for step in range(3):
    model(torch.full((2, 8), 1.0 + dist.get_rank())).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"mean {{dist.get_rank()}} {{sum(each.double().norm() for each in mean).item()}}\\n", end="", flush=True)
dist.destroy_process_group()
"""


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "options", "lines"),
    [
        pytest.param(HOOKED, {}, 8, id="hooks around a step see all gradients and parameters"),
        pytest.param(COPIED, {}, 6, id="copies and pickles of the wrapped model"),
        pytest.param(
            COMPILED,
            {"activation_checkpointing": True},
            6,
            id="compiled behind the call",
        ),
    ],
)
def test_scripts_see_what_they_do_under_bare_ddp(
    tmp_path: Path, text: str, options: dict[str, Any], lines: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    seen = [
        finished(torchrun(script), env, tmp_path) for env in (environment(), adopting("zero1", options))
    ]
    bare, adopted = (sorted(re.findall(r"(?:norm|mean) \d \S+", output)) for output in seen)
    assert len(bare) == lines
    assert adopted == bare


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
    assert all(map(by_parameter, ours))
    assert not by_parameter(torch.optim.LBFGS)
    assert not any(by_parameter(type(kind.__name__, (kind,), {})) for kind in ours)


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
        adoption.check_release(version)
        return
    with pytest.raises(AdoptionError, match=r"needs torch 2\.9 or newer, and this is 2\.8\.0"):
        adoption.check_release(version)
