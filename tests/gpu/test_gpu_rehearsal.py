"""The checks for machines with GPUs, on gloo: what can be tried here of the script that proves the rest there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.torch
def test_the_checks_run_without_a_gpu_as_far_as_gloo_goes() -> None:
    words = ["bash", "tests/gpu/run.sh", "--rehearse", "restart", "dumps", "hang", "telemetry"]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, timeout=160)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [line.split()[0] for line in done.stdout.splitlines()[:-1]]
    assert outcomes == ["ok", "ok", "ok", "left"]
    assert done.stdout.splitlines()[-1] == "4 checks: 0 failed, 1 left out"


@pytest.mark.real
def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(
        ["bash", "tests/gpu/run.sh"],
        cwd=ROOT,
        env=bare,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "writes" in done.stdout:
        pytest.skip("there is a GPU here")
    assert done.returncode == 2
    assert done.stderr.startswith("tests/gpu/run.sh: nvidia-smi lists no GPU here")
