"""What curves and a moment of the past look like; see looks.py."""

from __future__ import annotations

import math

import scripted as play
from conftest import Rig, Start
from looks import MIDDLE, SMALL, Look

from distui.presets.finding import Finding
from distui.runners.run.answers import MetricsWindow, Series
from distui.runners.run.commands import ReadMetrics
from distui.runners.run.model import CaughtUp, Checkpoint, CheckpointSaved, Event, FindingRaised

MANY = {"rank.step_s", "rank.wait", "rank.write", "gpu.util", "gpu.mem", "gpu.power"}


def value(name: str, at: float, index: int) -> float:
    """Curves that go up and down, with a spike of the step time every 97 seconds."""
    wave = math.sin(at / 40 + index)
    table = {
        "rank.step_s": 0.84 + 0.05 * wave + (0.6 if int(at) % 97 < 2 else 0.0),
        "rank.step": at - play.BEGAN + 500,
        "train.step": at - play.BEGAN + 500,
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


async def test_curves(look: Look, rig: Start) -> None:
    await look(lambda: curved(rig), "4")


async def test_curves_in_ascii(look: Look, rig: Start) -> None:
    await look(lambda: curved(rig, ascii_only=True), "4", sizes=[SMALL])


async def test_ranks_and_time(look: Look, rig: Start) -> None:
    await look(lambda: curved(rig), "4", "b", sizes=[MIDDLE])


async def test_a_moment_of_the_past(look: Look, rig: Start) -> None:
    await look(lambda: curved(rig), "4", "left_curly_bracket", sizes=[MIDDLE])


async def test_choosing_metrics(look: Look, rig: Start) -> None:
    await look(lambda: curved(rig), "4", "a", *"net", sizes=[SMALL])


async def test_no_curves(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running(2, gpu=False), ranks=2), "4", sizes=[SMALL])
