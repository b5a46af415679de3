"""The measured GPU memory of a run stands beside the next estimate. The driver is simulated."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest
import schemas

from .runs import EXAMPLES, Run, World, gone

sys.path.insert(0, str(Path(__file__).parents[1] / "rigs" / "nvml"))
import build
import scenario

GB = 10**9
SCRIPT = str(EXAMPLES / "chargpt.py")
needs_compiler = pytest.mark.skipif(
    build.compiler() is None, reason="no C compiler to build the simulated driver"
)


def trained(world: World, gigabytes: tuple[float, ...], *options: str) -> Run:
    """Start a run whose ranks hold these sizes of the simulated GPUs, and stop it once they are measured."""
    env = {
        "DISTUI_NVML_LIBRARY": str(build.build(world.root / "driver")),
        "DISTUI_FAKE_NVML_SCENARIO": str(world.root / "scenario"),
    }
    scenario.write(world.root / "scenario", scenario.idle(2))
    words = ("--nproc-per-node", "2", *options, "--", SCRIPT, "--steps", "100000")
    run = world.run("launch", "ddp", *words, env=env).healthy()
    held = (
        scenario.process(gpu, pid, round(size * GB))
        for gpu, (pid, size) in enumerate(zip(run.pids(), gigabytes, strict=True))
    )
    scenario.write(world.root / "scenario", scenario.idle(2) + "".join(held))
    run.eventually(lambda status: all(rank["gpu_mem"] for rank in status["ranks"]))
    time.sleep(2.5)  # the metrics have full seconds
    run.stop().fine()
    run.wait()
    assert gone(run.agent_pid())
    return run


@pytest.mark.real
@pytest.mark.torch
@needs_compiler
def test_the_peak_of_a_run_is_beside_the_next_estimate(world: World) -> None:
    run = trained(world, (41.2, 40.1), "--name", "run-3")
    day = f"{time.localtime().tm_mday} {time.strftime('%b')}"
    files = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}

    plan = ("plan", "ddp", "--nproc-per-node", "2")
    same = (*plan, "--", SCRIPT, "--steps", "100000")
    assert f"GPU memory per rank: measured 41.2 GB in run-3 on {day}.\n" in world.distui(*same).fine().out
    answer = world.distui(*plan, "--json", "--", SCRIPT, "--steps", "100000").fine().json()
    schemas.check("plan", answer)
    assert answer["measured"]["bytes"] == pytest.approx(41.2 * GB, rel=1e-3)
    other = world.distui(*plan, "--set", "precision.param=bf16", "--", SCRIPT).fine().out
    assert f"measured 41.2 GB in run-3 on {day} (without --set, other arguments)" in other
    for words in (
        ("plan", "ddp", "--nproc-per-node", "3", "--", SCRIPT),
        ("plan", "zero1", "--nproc-per-node", "2", "--", SCRIPT),
        ("plan", "ddp", "--nproc-per-node", "2", "--", str(EXAMPLES / "plain_ddp.py")),
    ):
        assert "measured" not in world.distui(*words).fine().out, words

    advise = ("advise", "--script", f"{SCRIPT}:CharGPT", "--model-args", "layers=4,width=96,length=64")
    out = world.distui(*advise, "--gpus", "2xH100").fine().out
    assert f"DDP: measured 41.2 GB in run-3 on {day} (without --set, estimate " in out
    answer = world.distui(*advise, "--gpus", "2xH100", "--json").fine().json()
    schemas.check("advise", answer)
    measured = [each["measured"]["run"] for each in answer["strategies"] if each["measured"]]
    assert measured == ["run-3"]
    assert "run-3" not in world.distui("advise", "--params", "7B", "--gpus", "2xH100").out

    assert files == {path: path.stat().st_mtime_ns for path in files}, "reading writes nothing"
    for path in run.path.rglob("metrics"):
        shutil.rmtree(path)
    assert "measured" not in world.distui(*same).fine().out, "a run without samples says nothing"
