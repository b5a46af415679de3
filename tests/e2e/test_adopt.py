"""`--adopt`: a preset on a script that nobody edited, from the launch to what the ranks show; beside bare torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from .runs import EXAMPLES, Run, World

pytestmark = pytest.mark.torch
SCRIPT = str(Path(__file__).parents[1] / "inrank" / "plain_gpt.py")
SETTLED = str(Path(__file__).parents[1] / "inrank" / "settled.py")
SCRIPT_LINES = Path(SCRIPT).read_text().splitlines()


def launched(world: World, preset: str, *args: str, options: tuple[str, ...] = ()) -> Run:
    return world.run("launch", preset, "--adopt", *options, "--nproc-per-node", "2", "--", SCRIPT, *args)


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
        [*words, SETTLED, SCRIPT, *args], env={**world.env, "GLOO_SOCKET_IFNAME": "lo"}, cwd=world.work,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def log(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "rel", "done"),
    [
        ("zero1", 0.0, "parameters are updated on this rank, 0.3 MB of states → 0.2 MB"),
        ("fsdp2", 1e-4, "3 blocks, 0.2 MB → 0.1 MB of parameters on this rank"),
    ],
)
def test_it_trains_as_bare_torchrun_does_and_checkpoints_go_both_ways(
    world: World, preset: str, rel: float, done: str
) -> None:
    bare(world, "--out", "bare.pt", "--losses", "bare.json")
    run = launched(world, preset, "--out", "adopted.pt", "--losses", "adopted.json")
    assert run.wait() == 0, run.describe() + run.distui("logs", "--stream", "err").out
    status, work = run.status(), world.work
    check_logs(work / "adopted.json", work / "bare.json", rel)

    line = SCRIPT_LINES.index("    model = DDP(raw_model, device_ids=[local] if cuda else None)") + 1
    assert (
        f"calls DistributedDataParallel in line {line}: --adopt applies {preset}" in status["plan"]["obeys"]
    )
    assert status["applied"]["state"] == "applied", status["applied"]
    assert f"{preset} applied at plain_gpt.py:" in status["applied"]["text"]
    assert done in status["applied"]["text"]
    assert not [finding for finding in status["findings"] if finding["id"].startswith("acted")]

    again = ("--steps", "4", "--losses")
    run = launched(world, preset, "--resume", "bare.pt", "--out", "2.pt", *again, "2.json")
    assert run.wait() == 0, run.describe()
    bare(world, "--resume", "adopted.pt", *again, "3.json")
    check_logs(work / "2.json", work / "3.json", rel)


def check_logs(one: Path, other: Path, rel: float) -> None:
    """Compare the numbers that two trainings have logged."""
    for key, numbers in log(other).items():
        assert log(one)[key] == pytest.approx(numbers, rel=rel, abs=0.0), key


def test_what_cannot_be_applied_is_refused_before_anything_starts(world: World) -> None:
    script = str(EXAMPLES / "plain_ddp.py")
    for verb in ("launch", "plan"):
        world.distui(verb, "tp", "--adopt", "--", script).refused(
            2, "--adopt cannot apply preset tp: mesh.tp 2 divides its layers"
        )
    world.distui("launch", "--task", "task.yaml", "--adopt").refused(
        2, "--adopt needs a preset and a script"
    )
    found = world.distui("lint", "fsdp1", "--adopt", "--nproc-per-node", "2", "--", script)
    assert "--adopt cannot apply preset fsdp1" in found.out + found.err
