"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """Repetitions and durations. The table of docs/development/benchmarks.md is made with the defaults."""

    launches: int = 9
    restarts: int = 20
    pairs: int = 8
    """Pairs of whole training runs, with distui and without."""
    steps: int = 1000
    """Optimizer steps of each such run."""
    blocks: int = 60
    """Pairs of blocks inside one run, with the agent running and stopped."""
    block_s: float = 2.0
    watch_s: float = 60.0
    """How long CPU is counted."""
    paints: int = 9
    keys: int = 60
    toggles: int = 20
    helps: int = 15
    nodes: int = 128
    """Simulated nodes behind ssh."""
    events: int = 300_000
    """Events of a long journal."""
    lines: int = 10_000_000
    """Lines of a long log."""
    trips: int = 20
    """Commands and their answers over a slow link, in each state of it."""
    before: str = ""
    """Earlier commit whose cockpit is compared."""
    nvitop: bool = True
    """Install nvitop into a throw-away environment and measure it too."""


QUICK = Effort(
    launches=3, restarts=3, pairs=2, steps=200, blocks=4, block_s=2.0, watch_s=10.0, paints=3, keys=12,
    toggles=4, helps=5, nodes=16, trips=10, events=30_000, lines=1_000_000,
)  # fmt: skip
"""Enough to see that everything works; no numbers to quote."""
