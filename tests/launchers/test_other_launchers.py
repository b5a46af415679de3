"""`accelerate launch` and `deepspeed` as launchers: run as they are, restarted by stop and start."""

from __future__ import annotations

import pytest
from e2e.runs import World, alive, until

from .hf import HERE, needs_compiler, needs_hf, results, told, trained, training

pytestmark = [needs_hf, needs_compiler, pytest.mark.torch, pytest.mark.long]

ACCELERATE = str(HERE / "accelerate_script.py")
DEEPSPEED = str(HERE / "deepspeed_script.py")


@pytest.mark.parametrize(
    ("preset", "model", "form"),
    [
        ("ddp", "DistributedDataParallel", ""),
        ("ddp", "DistributedDataParallel", "--multi_gpu"),
        ("ds-zero2", "DeepSpeedEngine", ""),
    ],
)
def test_accelerate_launch(world: World, preset: str, model: str, form: str) -> None:
    options = [f'--set=launcher.args=["{form}"]'] if form else []
    run, found = trained(world, preset, ACCELERATE, "--set=launcher.kind=accelerate", *options)
    assert [(one["model"], one["processes"]) for one in found] == [(model, 2)] * 2
    plan = run.status()["plan"]
    assert (plan["launcher"], plan["preset"]) == ("command", preset)
    assert (run.path / "accelerate.yaml").exists() is (not form)


def test_deepspeed(world: World) -> None:
    _, found = trained(world, "ds-zero2", DEEPSPEED, "--set=launcher.kind=deepspeed", "--set=batch.micro=8")
    assert [(one["model"], one["stage"], one["processes"], one["micro"]) for one in found] == [
        ("DeepSpeedEngine", 2, 2, 8)
    ] * 2


def test_a_restart_stops_and_starts_it(world: World) -> None:
    long = ("--epochs", "100000")
    with training(world, "ddp", ACCELERATE, "--set=launcher.kind=accelerate", args=long) as run:
        first = run.eventually(lambda status: status["ranks"] and status["ranks"][0]["pid"])["ranks"][0][
            "pid"
        ]
        assert until(lambda: len(children(world)) == 2), told(run)
        before = children(world)
        run.distui("restart", "--yes").fine()
        run.eventually(lambda status: status["attempt"] == 2 and status["state"] == "running")
        assert until(lambda: not any(map(alive, [first, *before])))
        assert until(lambda: len(children(world)) == 2), told(run)
        run.stop("--grace", "2").fine()
    assert not results(world)


def children(world: World) -> list[int]:
    """Pids of the ranks themselves, by their command line."""
    return [pid for pid, words in world.processes().items() if words.split(" ")[1:3] == ["-u", ACCELERATE]]
