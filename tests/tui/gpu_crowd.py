"""Scripted runs of many GPUs: most are alike, some are slow, lost, or unknown."""

from __future__ import annotations

import msgspec
import scripted as play
import several

from distui.runners.run.model import HUB, CaughtUp, GpuTick
from distui.runners.run.samples import Gpu

ODD = {(1, 3): 12.0, (6, 7): 55.0, (37, 4): 12.0, (90, 0): 0.0, (125, 6): 30.0}
"""Utilisation of GPUs that differ from the others, by node and index."""
LOST, UNKNOWN = (63, 2), 100
"""A lost GPU, and a node whose driver does not serve utilisation."""


def gpu(node: int, index: int) -> Gpu:
    """A busy GPU, whose values vary a little."""
    turn = (7 * node + 3 * index) % 5
    return msgspec.structs.replace(
        play.gpus(8)[index],
        util=None if node == UNKNOWN else ODD.get((node, index), 93.0 + turn),
        mem_used=(61 << 30) + turn * (100 << 20),
        power_w=590.0 + 5 * turn,
        temp_c=62.0 + turn,
        lost=(node, index) == LOST,
    )


def crowd(nodes: int) -> list[several.Told]:
    """Two minutes of a run of `nodes` nodes with 8 GPUs each."""
    ticks = [
        (124.65, node, GpuTick(tuple(gpu(node, index) for index in range(8)))) for node in range(nodes)
    ]
    return [*several.running(nodes, 8)[:-1], *ticks, (124.7, HUB, CaughtUp(20))]
