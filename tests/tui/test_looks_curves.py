"""Snapshots of the curves, and of a moment of the past."""

from __future__ import annotations

import math

import pytest
import scripted as play
from conftest import Rig, Start
from test_looks import LARGE, MIDDLE, SMALL, Compare, look

from distui.presets.finding import Finding
from distui.runners.model import (
    CaughtUp,
    Checkpoint,
    CheckpointSaved,
    Event,
    FindingRaised,
    MetricsWindow,
    ReadMetrics,
    Series,
)

pytestmark = pytest.mark.timeout(60)

MANY = {"rank.step_s", "rank.wait", "rank.write", "gpu.util", "gpu.mem", "gpu.power"}


def value(name: str, at: float, index: int) -> float:
    """Curves that go up and down, with a spike of the step time every 97 seconds."""
    wave = math.sin(at / 40 + index)
    table = {
        "rank.step_s": 0.84 + 0.05 * wave + (0.6 if int(at) % 97 < 2 else 0.0),
        "rank.step": at - play.BEGAN + 500,
        "rank.wait": 20 + 10 * wave if index else 70.0,
        "train.loss": 2.3 + math.exp(-(at - play.BEGAN + 600) / 300),
        "train.tokens_s": 91_200 + 900 * wave,
        "gpu.util": 92 + 5 * wave,
        "gpu.mem": (62 + wave) * play.GIB,
        "gpu.power": 560 + 40 * wave,
        "host.cpu": 35 + 10 * wave,
        "host.net_rx": 2e6 + 1e6 * wave,
    }
    return table.get(name, 1e6 if int(at) % 60 < 5 else 0.0)


class Curved(play.ScriptedLink):
    """Has curves, with a gap of 40 seconds."""

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        length = (ask.end - ask.begin) / ask.buckets
        indexes = (ask.indexes or tuple(range(8))) if ask.fold == "each" else (None,)
        series = []
        for name in ask.metrics or ("rank.step", "rank.step_s", "gpu.util", "gpu.mem"):
            for index in indexes:
                times = [ask.begin + at * length for at in range(ask.buckets)]
                mean = tuple(
                    None if 40 <= at - play.BEGAN < 80 else value(name, at, index or 0) for at in times
                )
                wide = 0.03 if index is None and name in MANY else 0.0
                low = tuple(None if each is None else each * (1 - wide) for each in mean)
                high = tuple(None if each is None else each * (1 + wide) for each in mean)
                series.append(Series(name, 0, index, 8 if wide else 1, mean, low, high))
        return MetricsWindow(ask.id, ask.begin, length, ask.buckets, tuple(series))


def curved(rig: Start, **more: object) -> Rig:
    finding = Finding("slow", "warning", "rank 4 is the straggler", rank=4, since=play.BEGAN + 90)
    happened: list[tuple[float, Event]] = [
        (100, CheckpointSaved(1, Checkpoint("/c/step-600", play.BEGAN + 100, "torch.save", 600))),
        (110, FindingRaised(finding)),
    ]
    script = [item for item in play.running() if not isinstance(item[1], CaughtUp)]
    it = rig([*script, *happened, (124.7, CaughtUp(30))], **more)
    it.source.link = Curved(it.link.run_dir, it.link.script, it.link.readonly)
    return it


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])
def test_curves(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, curved(rig), size, "RUNNING", ["4"], then="╵22:")


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])
def test_curves_without_colour(
    snap_compare: Compare, rig: Start, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert look(snap_compare, curved(rig, ascii_only=True), size, "RUNNING", ["4"], then="|22:")


def test_ranks_and_time(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, curved(rig), MIDDLE, "RUNNING", ["4", "b"], then="waits")


def test_a_moment(snap_compare: Compare, rig: Start) -> None:
    press = ["4", "left_curly_bracket"]
    assert look(snap_compare, curved(rig), MIDDLE, "RUNNING", press, then="PAST 22:15:")


def test_choosing_metrics(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, curved(rig), SMALL, "RUNNING", ["4", "a", *"net"], then="network out")


def test_no_curves(snap_compare: Compare, rig: Start) -> None:
    it = rig(play.running(2, gpu=False), ranks=2)
    assert look(snap_compare, it, SMALL, "RUNNING", ["4"], then="╵22:")
