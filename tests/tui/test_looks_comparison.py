"""What two runs over each other look like, as `:compare` shows them; see looks.py."""

from __future__ import annotations

import math

import pytest
import scripted as play
from conftest import Start
from looks import MIDDLE, SMALL, Look

from distui.runners.comparison.account import Account, MetricCurve, Quantity
from distui.tui.screens import side_by_side


def account(title: str, preset: str, step_s: float, batch: str) -> Account:
    """A run of two minutes whose loss falls, with a restart that the curves show as a gap."""
    steps = tuple(None if 12 <= at < 15 else float(at * 9) for at in range(40))
    times = tuple(
        None if step is None else step_s * (1 + 0.1 * math.sin(at)) for at, step in enumerate(steps)
    )
    losses = tuple(None if step is None else 4 * math.exp(-step / 120) + 0.2 / step_s for step in steps)
    waits = tuple(None if step is None else 30.0 + 20 * math.cos(at / 4) for at, step in enumerate(steps))
    return Account(
        title, f"20261126-2236-{title}", "succeeded", attempts=2,
        facts={
            "outcome": {"attempts": "2"}, "plan": {"preset": preset, "precision: param": "bf16", "ranks": "8"},
            "arguments": {"--steps": "500", **({"--batch": batch} if batch else {})},
            "code": {"commit": "3f2c9ab" if batch else "1b7e04d", "branch": "main"},
            "versions": {"torch": "2.13.0", "NCCL": "2.29.3"}, "nodes": {"node 0": "gpu1"},
        },
        env={"HF_TOKEN": "***", "NCCL_IB_HCA": "mlx5" if batch else "mlx5_0", "PATH": "/usr/bin"}, env_whole=True,
        quantities=(
            Quantity("rank.step_s", "step time", "s", step_s, 120, (step_s * 0.99, step_s * 1.01), "less"),
            Quantity("train.tokens_s", "tokens/s", "/s", 1000 / step_s, 120, (980 / step_s, 1020 / step_s), "more"),
            Quantity("peak:rank.rss", "rank memory (RSS), peak", "B", 4e8 + step_s * 1e7, 40, None, "less"),
            Quantity("last:train.loss", "loss, last", "", losses[-1] or 0.0, 40),
        ),
        curves=(
            MetricCurve("rank.step_s", 1.5, 3.0, times), MetricCurve("rank.step", 1.5, 3.0, steps),
            MetricCurve("rank.wait", 1.5, 3.0, waits), MetricCurve("train.loss", 1.5, 3.0, losses),
        ),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(name: str) -> Account:
        return (
            account(name, "fsdp2", 0.213, "4") if name == "night-2" else account("night", "ddp", 0.146, "")
        )

    monkeypatch.setattr(side_by_side, "load", load)


COMPARE = (":", *"compare night-2", "enter")


async def test_curves_over_each_other(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), *COMPARE, sizes=[SMALL, MIDDLE])


async def test_what_differs(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), *COMPARE, "c", sizes=[SMALL, MIDDLE])


async def test_by_step(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), *COMPARE, "x", sizes=[MIDDLE])


async def test_in_ascii(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running(), ascii_only=True), *COMPARE, sizes=[SMALL])
