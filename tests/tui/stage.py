"""The cockpit as a process of its own: a scripted run with eight GPUs that are sampled once a second.

`python stage.py RUN_DIR`
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import scripted as play

from distui.runners.run.model import GpuTick, RankTick, Stamped
from distui.tui.app import run_cockpit


class LiveLink(play.ScriptedLink):
    """Plays the script as of now, then a sample of everything each second."""

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        shift = time.time() - play.NOW
        for stamped in self.script:
            if stamped.seq > after or not stamped.seq:
                yield msgspec.structs.replace(stamped, time=stamped.time + shift)
        while True:
            await asyncio.sleep(1.0)
            for event in _tick():
                yield Stamped(time=time.time(), event=event)


def _tick() -> tuple[GpuTick, RankTick]:
    gpus = tuple(msgspec.structs.replace(gpu, util=float(random.randint(85, 99))) for gpu in play.gpus())
    ranks = tuple(
        msgspec.structs.replace(sample, step=int(time.time()) % 10000, cpu_percent=random.uniform(80, 120))
        for sample in play.samples(8)
    )
    return GpuTick(gpus), RankTick(ranks)


def main() -> int:
    link = LiveLink(Path(sys.argv[1]), play.stamped(play.running()))
    return run_cockpit(play.ScriptedSource(link), "r-1a2b3c4d")


if __name__ == "__main__":
    sys.exit(main())
