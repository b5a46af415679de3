"""A rank that the others wait for: where it is, and why."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from e2e.runs import World

from .rig import Wanted, see, start

pytestmark = pytest.mark.torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One way in which rank 1 of hangs.py lets the others wait."""

    name: str
    wanted: Wanted
    ranks: int = 2


FAULTS = {
    "spin": Fault(
        name="one rank loops for ever in Python",
        wanted=Wanted(ids=("hang-python",), rank=1, words=("hangs.py", "spin")),
    ),
    "doze": Fault(
        name="one rank sleeps in Python", ranks=3,
        wanted=Wanted(ids=("hang-not-joined", "hang-python"), rank=1, words=("hangs.py", "doze")),
    ),
    "gil": Fault(
        name="one rank is in a C call that holds the GIL",
        wanted=Wanted(ids=("hang-c-call",), rank=1, words=("hold_the_gil",)),
    ),
    "stopped": Fault(name="one rank is stopped by SIGSTOP", wanted=Wanted(ids=("hang-stopped",), rank=1)),
    "leave": Fault(
        name="one rank ends with exit code 0 before the others",
        wanted=Wanted(ids=("hang-gone", "died-peer-gone"), rank=1, words=("exit code 0",)),
    ),
    "checkpoint": Fault(
        name="one rank is stuck in writing a checkpoint",
        wanted=Wanted(ids=("hang-checkpoint",), rank=1, words=("save_to_a_pipe",)),
    ),
    "loader-0": Fault(
        name="one rank's data loader is stuck (no workers)",
        wanted=Wanted(ids=("hang-loader",), rank=1),
    ),
    "loader-2": Fault(
        name="one rank's data loader is stuck (2 workers)",
        wanted=Wanted(ids=("hang-loader",), rank=1),
    ),
    "lock": Fault(
        name="one rank keeps a file lock over a collective", ranks=3,
        wanted=Wanted(ids=("hang-lock",), rank=1, words=("cache.lock", "barrier")),
    ),
    "thread": Fault(
        name="one rank waits for a thread that has died",
        wanted=Wanted(ids=("hang-not-joined",), rank=1, words=("producer", "KeyError")),
    ),
    "exit": Fault(
        name="one rank never leaves: a thread goes on",
        wanted=Wanted(ids=("hang-leaving",), rank=1, words=("uploader",)),
    ),
    "skip": Fault(
        name="one rank skips a collective", ranks=3,
        wanted=Wanted(ids=("hang-mismatch",), rank=1, words=("broadcast", "all_reduce")),
    ),
    "type": Fault(
        name="one rank calls another type of collective", ranks=3,
        wanted=Wanted(ids=("hang-mismatch",), rank=1, words=("broadcast", "all_reduce")),
    ),
    "uneven": Fault(
        name="one rank's epoch has fewer batches", ranks=3,
        wanted=Wanted(ids=("hang-mismatch",), rank=1, words=("barrier", "all_reduce")),
    ),
    "skipping": Fault(
        name="one rank skips a batch that it cannot read, and says so",
        wanted=Wanted(ids=("hang-mismatch",), rank=1, words=("barrier", "all_reduce", "skipping batch 17: bad sample")),
    ),
    "key": Fault(
        name="one rank asks for a key of the store that nobody sets",
        wanted=Wanted(ids=("hang-not-joined",), rank=1, words=("the key 'plan/1' of the store", "ask_for_a_key")),
    ),
    "reader": Fault(
        name="one rank writes into a full pipe",
        wanted=Wanted(ids=("hang-not-joined",), rank=1, words=("writes into a pipe", "(sleep)")),
    ),
    "beside": Fault(
        name="one rank waits for a queue while another thread of it spins",
        wanted=Wanted(ids=("hang-not-joined",), rank=1, words=("wait_beside_a_spinner", "an item of a queue")),
    ),
    "receive": Fault(
        name="every rank receives, and none sends",
        wanted=Wanted(ids=("hang-mismatch",), words=("in recv at hangs.py", "receive")),
    ),
}  # fmt: skip
"""By the argument of hangs.py."""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_is_named(world: World, fault: str) -> None:
    case = FAULTS[fault]
    run = start(world, "hangs.py", fault, ranks=case.ranks)
    see(case.name, run, case.wanted)
