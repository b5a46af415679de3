"""`--adopt`: a preset on a script that nobody edited, from the launch to what the ranks show; beside bare torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from .runs import EXAMPLES, Run, World

pytestmark = pytest.mark.torch
SCRIPT = str(Path(__file__).parents[1] / "inrank" / "plain_gpt.py")
SCRIPT_LINES = Path(SCRIPT).read_text().splitlines()
OWN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.ones(2, 4)).sum().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
optimizer.step()
"""


TWO = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
models = [DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))) for _ in range(2)]
optimizers = [torch.optim.Adam(model.parameters()) for model in models]
for step in range(3):
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        model(torch.ones(2, 256)).sum().backward()
        optimizer.step()
"""


def launched(
    world: World, preset: str, script: str, *args: str, options: tuple[str, ...] = ("--adopt",)
) -> Run:
    return world.run("launch", preset, *options, "--nproc-per-node", "2", "--", script, *args)


def bare(world: World, *args: str) -> None:
    """The same script under torch's own launcher."""
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*words, SCRIPT, *args], env={**world.env, "GLOO_SOCKET_IFNAME": "lo"}, cwd=world.work,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def log(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.long
def test_zero1_trains_and_saves_as_bare_torchrun_does_and_resumes_its_checkpoint(world: World) -> None:
    import torch  # takes seconds, which only this test needs

    bare(world, "--out", "bare.pt", "--losses", "bare.json")
    run = launched(world, "zero1", SCRIPT, "--out", "adopted.pt", "--losses", "adopted.json")
    assert run.wait() == 0, run.describe() + run.distui("logs", "--stream", "err").out
    status, work = run.status(), world.work
    assert log(work / "adopted.json") == log(work / "bare.json")
    one, other = (torch.load(work / f"{name}.pt") for name in ("bare", "adopted"))
    assert [*one["optimizer"]["state"]] == [*other["optimizer"]["state"]]
    for number, state in one["optimizer"]["state"].items():
        assert all(
            torch.equal(value, other["optimizer"]["state"][number][name]) for name, value in state.items()
        )
    assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())

    assert "calls DistributedDataParallel in line " in status["plan"]["obeys"]
    assert status["applied"]["state"] == "applied", status["applied"]
    text = status["applied"]["text"]
    assert "zero1 applied at plain_gpt.py:" in text
    assert "parameters are updated on this rank, 0.3 MB of states → 0.2 MB" in text
    assert not [finding for finding in status["findings"] if finding["id"].startswith("acted")]

    run = launched(
        world, "zero1", SCRIPT, "--resume", "bare.pt", "--steps", "4", "--out", "2.pt", "--losses", "2.json"
    )
    assert run.wait() == 0, run.describe()
    bare(world, "--resume", "adopted.pt", "--steps", "4", "--losses", "3.json")
    assert log(work / "2.json") == log(work / "3.json")


@pytest.mark.long
def test_fsdp2_trains_as_bare_torchrun_does_and_its_checkpoint_goes_on_there(world: World) -> None:
    bare(world, "--out", "bare.pt", "--losses", "bare.json")
    run = launched(world, "fsdp2", SCRIPT, "--out", "adopted.pt", "--losses", "adopted.json")
    assert run.wait() == 0, run.describe() + run.distui("logs", "--stream", "err").out
    status, work = run.status(), world.work
    for key, numbers in log(work / "bare.json").items():
        assert log(work / "adopted.json")[key] == pytest.approx(numbers, rel=1e-4), key

    line = SCRIPT_LINES.index("    model = DDP(raw_model, device_ids=[local] if cuda else None)") + 1
    assert f"calls DistributedDataParallel in line {line}: --adopt applies fsdp2" in status["plan"]["obeys"]
    assert status["applied"]["state"] == "applied", status["applied"]
    sizes = "3 blocks, 0.2 MB → 0.1 MB of parameters on this rank"
    assert f"fsdp2 applied at plain_gpt.py:{line}: {sizes}" in status["applied"]["text"]
    assert not [finding for finding in status["findings"] if finding["id"].startswith("acted")]

    bare(world, "--resume", "adopted.pt", "--steps", "4", "--losses", "2.json")
    bare(world, "--resume", "bare.pt", "--steps", "4", "--losses", "3.json")
    assert log(work / "2.json")["losses"] == pytest.approx(log(work / "3.json")["losses"], rel=1e-4)


@pytest.mark.long
def test_options_of_ddp_are_applied_and_shown(world: World) -> None:
    run = launched(
        world,
        "ddp",
        str(EXAMPLES / "plain_ddp.py"),
        "--steps",
        "3",
        options=("--adopt", "--set", "strategy.bucket_cap_mb=7"),
    )
    assert run.wait() == 0, run.describe()
    applied = run.status()["applied"]
    assert applied == {
        "state": "applied",
        "text": "the model is wrapped in DistributedDataParallel; ddp applied at plain_ddp.py:37: "
        "gradient_as_bucket_view=True, bucket_cap_mb=7",
    }  # fmt: skip


@pytest.mark.long
def test_checkpointed_layers_and_steps_that_are_left_out_are_shown(world: World) -> None:
    """What is divided shows at the first step that is made, not at the first that the script makes."""
    words = ("strategy.activation_checkpointing=true", "batch.accumulation=3")
    sets = [word for each in words for word in ("--set", each)]
    run = launched(world, "zero1", SCRIPT, "--steps", "3", options=("--adopt", *sets))
    assert run.wait() == 0, run.describe()
    applied = run.status()["applied"]
    done = "3 layers recomputed in backward, 1 optimizer step of 3 made, with their mean gradient; 14 of 37 parameters"
    assert applied["state"] == "applied", applied
    assert done in applied["text"]


@pytest.mark.long
def test_without_it_nothing_is_changed(world: World) -> None:
    run = launched(world, "zero1", str(EXAMPLES / "plain_ddp.py"), "--steps", "3", options=())
    assert run.wait() == 0, run.describe()
    status = run.status()
    assert (status["applied"]["state"], status["ranks"][0]["made"].get("adopted", "")) == (
        "not applied",
        "",
    )
    assert "DISTUI_ADOPT" not in os.fsdecode(run.file("plan.json"))


@pytest.mark.long
def test_a_script_that_averages_gradients_itself_gets_zero1(world: World) -> None:
    run = launched(world, "zero1", world.script("own.py", OWN))
    assert run.wait() == 0, run.describe()
    applied = run.status()["applied"]
    assert applied["state"] == "applied"
    assert "zero1 applied at own.py:10, where gradients are equal on all ranks" in applied["text"]


@pytest.mark.long
def test_states_of_a_second_optimizer_are_counted(world: World) -> None:
    """They are there from its own first step on, after that of the first."""
    run = launched(world, "zero1", world.script("two.py", TWO))
    assert run.wait() == 0, run.describe()
    text = run.status()["applied"]["text"]
    assert "8 of 16 parameters are updated on this rank, 4.2 MB of states → 2.1 MB" in text, text


@pytest.mark.long
def test_a_script_without_the_call_stops_before_its_first_step(world: World) -> None:
    run = launched(world, "ddp", world.script("own.py", OWN))
    assert run.wait() == 1
    (attempt,) = run.status()["attempts"]
    assert attempt["first_cause"]["kind"] == "settings"
    assert (
        "first optimizer step at own.py:10, and has not called DistributedDataParallel before"
        in attempt["first_cause"]["text"]
    )


def test_what_cannot_be_applied_is_refused_before_anything_starts(world: World) -> None:
    script = str(EXAMPLES / "plain_ddp.py")
    for verb in ("launch", "plan"):
        world.distui(verb, "tp", "--adopt", "--", script).refused(
            2, "--adopt cannot apply preset tp: mesh.tp 2 divides its layers"
        )
    world.distui("launch", "--task", "task.yaml", "--adopt").refused(
        2, "--adopt applies a preset to a script"
    )
    found = world.distui("lint", "fsdp1", "--adopt", "--nproc-per-node", "2", "--", script)
    assert "--adopt cannot apply preset fsdp1" in found.out + found.err
