"""`distui presets new` and `presets show --format`, as a user types them."""

from __future__ import annotations

import signal
import subprocess
import tomllib
from typing import Any

import pytest
from e2e.runs import World
from e2e.written import Attempt, events_of, record, without_agent

from distui.runners.run.model import AttemptStarted

pytest.importorskip("yaml", reason="PyYAML is not installed")

CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}
"""


def values(world: World, name: str) -> dict[str, Any]:
    """A preset as `presets show` has it."""
    found: dict[str, Any] = world.distui("presets", "show", name, "--json").fine().json()["values"]
    return found


def test_from_a_file(world: World) -> None:
    file = world.script("a.yaml", CONFIG)
    done = world.distui("presets", "new", "mine", "--from", file, "--json").fine()
    assert "num_processes 8 is the total of 2 machines: 4 ranks on each" in done.err
    assert " L2 a.yaml:6" in done.err, done.err
    path = world.config / "distui" / "presets" / "mine.toml"
    assert done.json() == {"path": str(path)}
    assert [one.name for one in path.parent.iterdir()] == ["mine.toml"], "nothing half-written beside it"
    found = values(world, "mine")
    assert (found["strategy.kind"], found["strategy.reshard_after_forward"]) == ("fsdp2", False)
    assert (found["topology.nnodes"], found["topology.nproc_per_node"]) == (2, 4)
    before = path.read_text()
    world.distui("presets", "new", "mine", "--from", file).refused(2, "exists already")
    assert path.read_text() == before


def test_what_is_no_configuration_writes_nothing(world: World) -> None:
    world.distui("presets", "new", "mine", "--from", world.script("x.yaml", "a: 1")).refused(
        2, "x.yaml line 1: it holds keys a", "is expected"
    )
    world.distui("presets", "new", "mine", "--from", "./nowhere.yaml").refused(2, "cannot be read")
    world.distui("presets", "new", "mine", "--from", "no-such-run").refused(3, "No run 'no-such-run'")
    assert not (world.config / "distui").exists()


def file_of(world: World, name: str) -> dict[str, Any]:
    return tomllib.loads((world.config / "distui" / "presets" / f"{name}.toml").read_text())


def test_a_value_of_set_is_written_whatever_the_source(world: World) -> None:
    world.distui("presets", "new", "wide", "--base", "3d", "--set", "mesh.tp=8", "--set", "env.A=1").fine()
    assert file_of(world, "wide")["mesh"] == {"tp": 8}
    assert values(world, "wide")["env.A"] == "1"
    done = world.distui("presets", "new", "bad", "--base", "ddp", "--set", "strategy.stage=3")
    done.refused(2, "strategy.stage has no effect in strategy ddp")
    file = world.script("a.yaml", CONFIG)
    changed = (
        "--set",
        "strategy.cpu_offload=true",
        "--set",
        "accelerate.fsdp_config.fsdp_state_dict_type=A",
    )
    world.distui("presets", "new", "mine", "--from", file, *changed).fine()
    found = values(world, "mine")
    assert (found["strategy.cpu_offload"], found["strategy.reshard_after_forward"]) == (True, False)
    assert found["accelerate.fsdp_config"]["fsdp_state_dict_type"] == "A"


def test_an_option_that_an_action_would_ignore_is_refused(world: World) -> None:
    for words, sentence in (
        (("list", "--set", "mesh.tp=2"), "`distui presets list` takes no --set"),
        (("show", "ddp", "--from", "x"), "takes no --from: only new does"),
        (("new", "x", "--format", "accelerate"), "takes no --format: only show does"),
    ):
        world.distui("presets", *words).refused(2, sentence)


def test_guided_asks_what_matters_and_writes_the_answers(world: World) -> None:
    answers = ["deepspeed", "2", "8", "4", "3", "nvme", "", "/disk", "", "", "", ""]
    done = world.distui("presets", "new", "mine", "--guided", stdin="\n".join([*answers, ""])).fine()
    assert done.out.endswith("mine.toml\n")
    assert "Which strategy: single, ddp, zero1, fsdp2, fsdp1, deepspeed? [ddp]: " in done.err
    assert "strategy.stage takes 0, 1, 2 or 3, not 4" in done.err
    assert done.err.count("Which ZeRO stage: 0, 1, 2 or 3? [2]: ") == 2
    assert "reshard" not in done.err
    assert "next: `distui plan mine --hosts A,B -- SCRIPT`" in done.err
    table = file_of(world, "mine")
    assert table["base"] == "ds-zero2"
    assert table["topology"] == {"nnodes": 2, "nproc_per_node": 8}
    assert table["strategy"] == {"stage": 3, "offload_optimizer": "nvme", "nvme_path": "/disk"}


def test_guided_takes_yes_no_and_lists(world: World) -> None:
    answers = ["fsdp2", "", "4", "no", "y", "Block, Head", "", "2", "", "YES", *[""] * 5]
    world.distui("presets", "new", "mine", "--guided", stdin="\n".join([*answers, ""])).fine()
    table = file_of(world, "mine")
    assert table["strategy"] == {
        "reshard_after_forward": False,
        "wrap": ["Block", "Head"],
        "cpu_offload": True,
        "activation_checkpointing": True,
    }
    assert table["mesh"] == {"tp": 2}


def test_guided_writes_nothing_before_the_last_answer(world: World) -> None:
    done = world.distui("presets", "new", "mine", "--guided", stdin="fsdp2\n2\n")
    assert done.code == 2
    assert "The answers ended before the last question: nothing was written" in done.err
    assert not (world.config / "distui").exists()


@pytest.mark.real
def test_ctrl_c_between_the_questions_writes_nothing(world: World) -> None:
    asking = world.start("presets", "new", "mine", "--guided", stdin=subprocess.PIPE)
    assert asking.stderr is not None
    assert asking.stderr.read(5) == b"Which"
    asking.send_signal(signal.SIGINT)
    _, rest = asking.communicate(timeout=30)
    assert asking.returncode == 130
    assert rest.endswith(b"\n")
    assert not (world.config / "distui").exists()


def test_a_preset_is_printed_as_another_programs_file(world: World) -> None:
    done = world.distui("presets", "show", "fsdp2-offload", "--format", "accelerate").fine()
    assert "fsdp_offload_params: true\n" in done.out
    assert "pass --num_processes N to accelerate launch" in done.err
    world.distui("presets", "show", "zero1", "--format", "accelerate").refused(
        2, "Preset zero1: Accelerate has no"
    )
    done = world.distui(
        "presets", "show", "ds-zero3", "--format", "deepspeed", "--set", "batch.micro=2"
    ).fine()
    assert '"train_micro_batch_size_per_gpu": 2' in done.out
    assert done.err == ""


@pytest.mark.torch
def test_from_a_run(world: World) -> None:
    """Its values, its variables, and what a restart changed; secrets only by name."""
    words = ("--set", "strategy.bucket_cap_mb=7", "--env", "A=1", "--env", "B=2", "--nccl", "IB_TIMEOUT=22")
    script = world.script("x.py", "")
    with without_agent():
        run = world.run(
            "launch", "ddp", "--nproc-per-node", "2", *words, "--env", "HF_TOKEN=hunter2", "--", script
        )
    again = AttemptStarted(2, "restart", 2, (), {"A": "3", "B": None})
    record(run, [*events_of(run, [Attempt(outcome=None)]), again])
    done = world.distui("presets", "new", "again", "--from", run.name).fine()
    assert "HF_TOKEN is left out" in done.err
    text = (world.config / "distui" / "presets" / "again.toml").read_text()
    assert "hunter2" not in text
    table = tomllib.loads(text)
    assert table["base"] == "ddp"
    assert table["strategy"]["bucket_cap_mb"] == 7
    assert table["topology"] == {"nproc_per_node": 2}
    assert table["env"] == {"A": "3"}
    assert table["nccl"] == {"NCCL_IB_TIMEOUT": "22"}
    world.distui("presets", "new", "third", "--from", run.name, "--set", "strategy.bucket_cap_mb=9").fine()
    assert values(world, "third")["strategy.bucket_cap_mb"] == 9
    plan = world.distui("launch", "again", "--dry-run", "--json", "--", script).fine().json()
    assert (plan["env"]["A"], plan["env"]["NCCL_IB_TIMEOUT"], plan["nproc_per_node"]) == ("3", "22", 2)
    assert "B" not in plan["env"]
