"""The line at the bottom of the simulated demo: what to look at next. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...runners.run.state import RunState
from .glyphs import Row, clip


class Hint(NamedTuple):
    """A sentence, and the condition under which it is the next one."""

    holds: Callable[[RunState, str], bool]
    text: str


def _found(state: RunState, kind: str) -> bool:
    return any(finding.id.startswith(kind) for finding in state.findings.values())


NCCL_FAULT = "expect-network"
"""Only the simulation with all faults has this finding, from the first sample on."""
HINTS = (
    Hint(
        lambda state, pane: state.phase.ended,
        "the demo has ended. q leaves; `distui demo --hang` trains for real",
    ),
    Hint(
        lambda state, pane: state.attempt > 1,
        "restarted in place. q leaves; `distui demo --hang` trains for real",
    ),
    Hint(
        lambda state, pane: _found(state, "hang"),
        "one rank holds up 15. press w: where are they?  then r: restart",
    ),
    Hint(
        lambda state, pane: not _found(state, NCCL_FAULT),
        "16 ranks train on 2 nodes. wait: soon one of them hangs",
    ),
    Hint(
        lambda state, pane: not _found(state, "straggler"),
        "16 ranks train on 2 nodes. press 2: is one GPU not like the others?",
    ),
    Hint(
        lambda state, pane: pane == "findings",
        "a hot GPU costs 30 % of each step. press 5: which network is used?",
    ),
    Hint(
        lambda state, pane: pane == "nccl",
        "TCP, although there is RDMA. press 1 and wait: soon a rank hangs",
    ),
    Hint(lambda state, pane: True, "two faults are found already. press 6: what makes every step slow?"),
)
"""The first that holds is shown."""


def guide_row(state: RunState, pane: str, width: int) -> Row:
    """Return the line for a pane."""
    text = next(hint.text for hint in HINTS if hint.holds(state, pane))
    return clip(((" simulated ", "warn"), (f" {text}", "accent")), width)
