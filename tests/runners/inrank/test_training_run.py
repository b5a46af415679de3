"""Training signals of a real run: from the script's line to the state of the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .inrank_rig import driven, execute

PLAIN = """
import sys, time
for step in range(1, 60):
    bar = f"{step * 100 // 60}%|##   | {step}/60 [00:0{step % 10}<00:10,  9.8it/s, loss={3 - step / 60:.3f}]"
    sys.stdout.write(f"\\r\\x1b[32m {bar}\\x1b[0m")
    sys.stdout.flush()
    time.sleep(0.1)
print()
"""


@pytest.mark.real
async def test_a_progress_bar_of_a_command(tmp_path: Path) -> None:
    """No line ends, and nobody has a hook."""
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    async with driven(execute(sys.executable, str(script))) as run:
        await run.until(lambda s: 0 in s.training and (s.training[0].step or 0) > 5)
        sample = run.state.training[0]
        assert (sample.total, sample.sources["loss"]) == (60, "output: tqdm")
        assert sample.loss == pytest.approx(3 - (sample.step or 0) / 60, abs=1e-3)


@pytest.mark.real
async def test_the_last_lines_before_the_end_are_kept(tmp_path: Path) -> None:
    """They are printed after the last sample of the run."""
    script = tmp_path / "train.py"
    script.write_text(
        "import time\ntime.sleep(3)\nfor step in range(1, 101):\n    print(f'step {step}/100 loss 0.5', flush=True)\n"
    )
    async with driven(execute(sys.executable, str(script))) as run:
        await run.until(lambda s: s.phase.ended)
        sample = run.state.training[0]
        assert (sample.step, sample.total) == (100, 100)
