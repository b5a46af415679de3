"""What a preset did is seen in the ranks, whatever the plan expected; and a run that trained nothing says so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from doubles.served import doubled
from each import for_each

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
        pytest.param("fsdp2-tp", 4, "tp 2", marks=pytest.mark.long),
    ],
)
def test_a_preset_that_acted_is_applied(world: World, preset: str, ranks: int, words: str) -> None:
    status = ended(world, preset, str(EXAMPLES / "chargpt.py"), "--steps", "2", ranks=ranks).status()
    assert status["applied"]["state"] == "applied", status["applied"]
    assert words in status["applied"]["text"]
    assert not {name for name in findings(status) if name.startswith("acted")}


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


@for_each(
    "note, words",
    [
        ({"step": 0, "optimizer": True}, ", but no training step was seen: last line: nothing to do"),
        ({"step": 0, "alone": True}, ", but no training step was seen: last line: nothing to do"),
        ({"step": 0}, ""),
        ({"step": 2, "optimizer": True}, ""),
    ],
)
async def test_what_a_rank_noted_at_its_end_decides(note: dict[str, object], words: str) -> None:
    async with doubled(nproc_per_node=1) as (run, runners):
        await run.hooked()
        runners.newest.writes(0, "nothing to do\n")
        runners.newest.writes(0, json.dumps(note), "end")
        runners.newest.finishes()
        await run.until(lambda state: state.phase.ended)
        assert run.state.end_text == f"every rank ended with exit code 0{words}"
        assert ("acted-idle" in {name for name, *_ in run.state.findings}) == bool(words)
