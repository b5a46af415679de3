"""What a preset did is seen in the ranks, whatever the plan expected; and a run that trained nothing says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from .runs import EXAMPLES, Run, World

pytestmark = pytest.mark.torch
CALLED = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from distui.runners.inrank.parallelize import parallelize
dist.init_process_group("gloo")
"""
OWN = f"""{CALLED}
def never(model):
    return parallelize(model)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
del model, optimizer
dist.destroy_process_group()
"""
LEAVES = "import torch\nprint('Unable to locate sufficient 2 gpus to run this example. Exiting.')\n"
EVALUATES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("accuracy 0.5")
dist.destroy_process_group()
"""
BUILDS = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
del optimizer
print("nothing to do")
"""


def ended(world: World, preset: str, script: str, *args: str, ranks: int = 2) -> Run:
    words = ("launch", preset, "--nproc-per-node", str(ranks), "--restarts", "0", "--", script, *args)
    run = world.run(*words)
    assert run.wait() == 0, run.describe() + run.distui("logs", "--stream", "err").out
    return run


def findings(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in status["findings"]}


@pytest.mark.parametrize(
    ("preset", "ranks", "words"),
    [
        pytest.param("fsdp2", 2, "fully_shard", marks=pytest.mark.real),
        pytest.param("ddp", 2, "DistributedDataParallel", marks=pytest.mark.long),
        pytest.param("zero1", 2, "ZeroRedundancyOptimizer", marks=pytest.mark.long),
        pytest.param("fsdp1", 2, "FullyShardedDataParallel", marks=pytest.mark.long),
        pytest.param("tp", 2, "tp 2", marks=pytest.mark.long),
        pytest.param("fsdp2-tp", 4, "tp 2", marks=pytest.mark.long),
        pytest.param("context", 2, "cp 2", marks=pytest.mark.long),
        pytest.param("pp-1f1b", 2, "pp 2", marks=pytest.mark.long),
        pytest.param("single", 1, "wrapped in nothing", marks=pytest.mark.long),
    ],
)
def test_a_preset_that_acted_is_applied(world: World, preset: str, ranks: int, words: str) -> None:
    status = ended(world, preset, str(EXAMPLES / "chargpt.py"), "--steps", "2", ranks=ranks).status()
    assert status["applied"]["state"] == "applied", status["applied"]
    assert words in status["applied"]["text"]
    assert not {name for name in findings(status) if name.startswith("acted")}


@pytest.mark.long
def test_experts_are_applied(world: World) -> None:
    status = ended(world, "moe", str(EXAMPLES / "chargpt_moe.py"), "--steps", "2").status()
    assert status["applied"] == {
        "state": "applied", "text": "the model is wrapped in DistributedDataParallel, divided by ep 2",
    }  # fmt: skip


@pytest.mark.long
def test_a_plan_that_expected_otherwise_is_corrected(world: World) -> None:
    run = ended(world, "fsdp2", world.script("own.py", OWN))
    status = run.status()
    assert status["plan"]["obeys"], "by its text it seems to obey"
    assert status["applied"]["state"] == "not applied"
    assert "fsdp2 asks for fully_shard, and the model is wrapped in Dist" in status["applied"]["text"]
    one = findings(status)["acted-otherwise"]
    assert (one["severity"], one["role"]) == ("warning", "cause")
    assert "preset not applied: rank 0: fsdp2 asks for fully_shard" in run.distui("status").fine().out
    assert [rank["made"]["strategies"] for rank in status["ranks"]] == [["ddp"], ["ddp"]]


@pytest.mark.long
def test_what_the_plan_knew_is_no_warning(world: World) -> None:
    status = ended(world, "fsdp2", str(EXAMPLES / "plain_ddp.py"), "--steps", "2").status()
    assert (status["applied"]["state"], status["plan"]["obeys"]) == ("not applied", None)
    assert status["findings"] == []


@pytest.mark.long
def test_a_script_that_leaves_at_once_is_no_plain_success(world: World) -> None:
    run = ended(world, "ddp", world.script("leaves.py", LEAVES), ranks=1)
    said = "no training step was seen: last line: Unable to locate sufficient 2 gpus to run this example. Exiting."
    status = run.status()
    assert (status["state"], status["exit_code"]) == ("succeeded", 0)
    assert status["text"] == f"every rank ended with exit code 0, but {said}"
    assert findings(status)["acted-idle"]["severity"] == "warning"
    assert status["applied"]["state"] == "unknown"
    assert said in run.distui("status").fine().out
    assert said in run.distui("wait").fine().out


@pytest.mark.long
def test_a_torchrun_in_a_script_of_somebody_elses_that_leaves_at_once_is_none_either(world: World) -> None:
    """As pytorch/examples has it: `run_example.sh` under `exec`, once detached and once as text."""
    world.script("example.py", LEAVES)
    world.script("run_example.sh", "torchrun --nproc-per-node 1 example.py\n")
    env = {"PATH": f"{Path(sys.executable).parent}:{world.env['PATH']}"}
    words = ("exec", "--name", "example", "--", "bash", "run_example.sh")
    run = world.run(*words, env=env)
    assert run.wait() == 0, run.describe()
    said = "no training step was seen: last line: Unable to locate sufficient 2 gpus to run this example. Exiting."
    status = run.status()
    assert (status["state"], status["exit_code"]) == ("succeeded", 0)
    assert status["text"] == f"the command ended with exit code 0, but {said}"
    assert findings(status)["acted-idle"]["severity"] == "warning"
    assert [rank["step"] for rank in status["ranks"]] == [0]
    assert f"the command ended with exit code 0, but {said}" in run.distui("status").fine().out
    assert run.distui("wait").fine().out == f"example: the command ended with exit code 0, but {said}\n"
    told = world.distui(*words, env=env).fine().err
    followed = told.partition("\n\n")[0]
    assert followed.count(said) == 1, told
    assert followed.endswith("the command ended with exit code 0"), told


@pytest.mark.long
def test_an_optimizer_that_made_no_step(world: World) -> None:
    assert (
        "but no training step was seen"
        in ended(world, "ddp", world.script("b.py", BUILDS)).status()["text"]
    )


@pytest.mark.long
@pytest.mark.parametrize("text", [EVALUATES, "print('no torch')\n"])
def test_where_steps_say_nothing_nothing_is_said(world: World, text: str) -> None:
    status = ended(world, "ddp", world.script("job.py", text), ranks=1).status()
    assert status["text"] == "every rank ended with exit code 0"
    assert status["findings"] == []


@pytest.mark.long
def test_a_second_run_of_the_example_that_is_done_already(world: World) -> None:
    words = (str(EXAMPLES / "chargpt.py"), "--steps", "2", "--checkpoint-dir", "mine")
    assert ended(world, "ddp", *words).status()["text"] == "every rank ended with exit code 0"
    text = ended(world, "ddp", *words).status()["text"]
    assert "no training step was seen: last line: nothing to do: 2 steps are done" in text


WRONG = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).view(3, 3)
"""


@pytest.mark.long
def test_what_can_never_fit_is_not_started_again(world: World) -> None:
    words = ("launch", "tp", "--nproc-per-node", "2", "--", str(EXAMPLES / "chargpt.py"), "--heads", "3")
    run = world.run(*words)
    assert run.wait() == 1
    status = run.status()
    (attempt,) = status["attempts"]
    assert (
        "3 heads cannot be divided by tp 2 (blocks.0.heads): 3 / 2 is 1.5" in attempt["first_cause"]["text"]
    )
    assert attempt["first_cause"]["kind"] == "settings"
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--", world.script("wrong.py", WRONG))
    assert run.wait() == 1
    (attempt,) = run.status()["attempts"]
    assert attempt["first_cause"]["kind"] == "sizes"
    assert "a restart cannot help" in run.status()["text"]
