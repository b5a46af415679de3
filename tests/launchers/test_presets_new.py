"""`distui presets new NAME --from FILE|RUN`, as a user types it."""

from __future__ import annotations

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
    plan = world.distui("launch", "again", "--dry-run", "--json", "--", script).fine().json()
    assert (plan["env"]["A"], plan["env"]["NCCL_IB_TIMEOUT"], plan["nproc_per_node"]) == ("3", "22", 2)
    assert "B" not in plan["env"]
