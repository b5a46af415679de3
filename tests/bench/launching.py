"""From the start of the launching command to the first optimizer step of every rank."""

from __future__ import annotations

import time

from .figures import Row, Sample, ratio_row
from .options import Effort
from .place import Place, a_place, stamped, torchrun

GOAL = 1.05
NPROC = 2
WORDS = stamped("--steps", "1000000", "--checkpoint-every", "0", "--resume", "never", "--step-delay", "60")


def through_distui(place: Place, number: int) -> float:
    """Seconds with `distui launch`."""
    began = time.monotonic()
    starting = place.launch(f"run{number}", WORDS, ("--nproc-per-node", str(NPROC)))
    took = place.new_stamps(place_seen(place), NPROC) - began
    starting.wait(30)
    place.distui("stop", f"run{number}", "--yes", "--grace", "5")
    return took


def bare(place: Place, env: dict[str, str]) -> float:
    """Seconds with torchrun in the same environment."""
    began = time.monotonic()
    running = place.start(torchrun(NPROC, WORDS, "--standalone"), **env)
    took = place.new_stamps(place_seen(place), NPROC) - began
    running.terminate()
    running.wait(60)
    return took


def place_seen(place: Place) -> set[str]:
    """Stamps that belong to earlier measurements."""
    return {path.name for path in place.stamps.glob("first-*")}


def rows(effort: Effort) -> list[Row]:
    """Both, in turns, after one of each that is not counted."""
    ours: list[float] = []
    theirs: list[float] = []
    with a_place() as place:
        env = place.same_env(WORDS, ("--nproc-per-node", str(NPROC)))
        for number in range(effort.launches + 1):
            mine, other = through_distui(place, number), bare(place, env)
            if number:
                ours.append(mine)
                theirs.append(other)
    return [
        ratio_row(
            "launch to first step, 2 ranks, ddp", Sample(tuple(ours), "s"), Sample(tuple(theirs), "s"), GOAL
        )
    ]
