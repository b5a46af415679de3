"""The bytes per parameter of the memory estimate beside what Accelerate and DeepSpeed keep in real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distui.presets.estimate.workload import FORMATS

from .hf import HERE, needs_compiler, needs_hf

pytestmark = [needs_hf, needs_compiler, pytest.mark.torch, pytest.mark.long]
RANKS = 2


def test_half_precision_keeps_the_formats_of_the_estimate(tmp_path: Path) -> None:
    """Accelerate leaves the script's weights, DeepSpeed keeps 2 bytes of them and 12 for the optimizer."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    env = {**os.environ, "RESULTS": str(tmp_path), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(HERE / "formats_script.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    mixed = FORMATS["mixed"]
    for rank in range(RANKS):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        for dtype, name in (("float32", "fp32"), ("bfloat16", "bf16")):
            form = FORMATS[name]
            assert found[f"accelerate {dtype}"] == [form.weights, form.gradients, form.optimizer]
        for stage in (1, 2, 3):
            weights = mixed.weights / (RANKS if stage == 3 else 1)
            assert found[f"deepspeed {stage}"] == [weights, mixed.optimizer / RANKS], stage
