"""Training signals of real runs: from the script's line, or its tracker, to the state of the run."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from distui.runners.model import AttemptEnded, FindingCleared, FindingRaised, RunPhase, TrainingTick
from distui.runners.progress import progress

from .inrank_rig import driven, execute, launch

pytestmark = pytest.mark.torch

HEAD = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
NAN = (
    HEAD
    + """
for step in range(1, 400):
    x = torch.ones(2, 4) * (float("nan") if step == 30 and rank == 1 else 1.0)
    loss = (model(x) - 1).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"step {step} loss {loss.item():.4f} lr {0.01}", flush=True)
    time.sleep(0.1)
"""
)


@pytest.mark.long
async def test_a_real_loss_that_becomes_nan(tmp_path: Path) -> None:
    """One bad batch on rank 1: its loss is NaN at step 30, that of rank 0 from step 31 on, through the gradients."""
    script = tmp_path / "train.py"
    script.write_text(NAN)
    async with driven(launch(script)) as run:
        await run.until(lambda s: ("loss-not-finite", 0, 0) in s.findings, 120)
        raised = [e.event.finding for e in run.events if isinstance(e.event, FindingRaised)]
        nan = [finding for finding in raised if finding.id == "loss-not-finite"]
        assert nan[-1].severity == "error"
        step = int(nan[-1].text.split("step ")[1].split(":")[0])
        assert 30 <= step <= 60  # of the lines between two readings the newest are read
        assert run.state.training[1].not_finite == {"loss": "nan"}
        assert run.state.training[1].sources["loss"] == "output: key value"
    cleared = [e.event for e in run.events if isinstance(e.event, FindingCleared)]
    assert not [event for event in cleared if event.id == "loss-not-finite"]


TRACKED = (
    HEAD
    + """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter(sys.argv[1]) if rank == 0 else None
for step in range(1, 81):
    loss = (model(torch.ones(2, 4)) - 1).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if writer: writer.add_scalar("train/loss", loss, step); writer.add_scalar("val/acc", 0.5, step)
    print(f"{step}/80 tokens_per_second=1000", flush=True)
    time.sleep(0.1)
"""
)


@pytest.mark.long
async def test_a_tracker_and_the_last_values_after_the_end(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    script = tmp_path / "train.py"
    script.write_text(TRACKED)
    async with driven(launch(script, str(tmp_path / "tb"), "--max-steps", "80")) as run:
        await run.until(
            lambda s: (
                0 in s.training
                and s.training[0].step_s is not None
                and s.training[0].sources.get("step") == "tensorboard"
            ),
            120,
        )
        line = progress(run.state, run.state.training[0].at)
        assert (line.total, line.sources["total"]) == (80, "`--max-steps 80` of the command")
        assert line.sources["loss"] == line.sources["step"] == "tensorboard"
        assert line.sources["step_s"] == "computed: steps over time"
        assert 0.05 < (line.step_s or 0) < 2
        assert line.eta_s is not None
        assert line.values == {"val/acc": 0.5}
        await run.until(lambda s: s.phase.ended, 120)
    assert run.state.phase is RunPhase.SUCCEEDED
    ended = [e.event for e in run.events if isinstance(e.event, AttemptEnded)]
    assert ended[-1].training[0].loss is not None
    assert progress(run.state, run.events[-1].time + 1e6).fraction == pytest.approx(1.0, abs=0.2)
    ticks = [e.time for e in run.events if isinstance(e.event, TrainingTick)]
    assert all(later - at > 0.5 for at, later in pairwise(ticks))


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


@pytest.mark.long
async def test_a_pattern_of_the_users_own_and_one_that_never_ends(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time\nfor at in range(60):\n"
        "    print(f'#{at} nll {3 - at / 60:.2f} ' + 'a' * 40 + '!', flush=True); time.sleep(0.1)\n"
    )
    signals = (r"#(?P<step>\d+) nll (?P<loss>\S+)",)
    async with driven(execute(sys.executable, str(script), signals=signals)) as run:
        await run.until(lambda s: 0 in s.training, 60)
        assert run.state.training[0].sources["loss"] == "output: --signal"
    async with driven(execute(sys.executable, str(script), signals=(r"(?P<loss>(a+)+)$",))) as run:
        await run.until(lambda s: ("signal-pattern-slow", None, 0) in s.findings, 60)
        await run.until(lambda s: s.phase.ended, 60)
