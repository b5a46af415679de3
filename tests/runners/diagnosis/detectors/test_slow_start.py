"""A start without a step and a collective: what the ranks have been doing since then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distui.runners.diagnosis import slow_start
from distui.runners.run.pulse import ProcessGroup, Site
from distui.runners.run.samples import RankSample

from .hang_rig import NOW, STEP, TORCH, Made, coming, only, series

COMPILES = (Site(TORCH + "_inductor/compile_fx.py", 9, "compile_fx"), *STEP)
READS = (Site("/job/data.py", 12, "read"), Site("/job/train.py", 40, "load"), *STEP[1:])


def begun(seconds: float, *pulses: object) -> Made:
    """A run that began so long ago, whose ranks have made no step."""
    made = Made(ranks=2)
    made.state.attempts[-1] = replace(made.state.attempts[-1], began=NOW + 1.0 - seconds)
    return made.add(*pulses)  # type: ignore[arg-type]


def starts(rank: int, stack: tuple[Site, ...], **more: object) -> object:
    values: dict[str, object] = {"groups": (), "step": 0, **more}
    return series(rank, stack, share=0.9, **values)  # type: ignore[arg-type]


def test_what_the_ranks_do_is_told_after_fifty_seconds() -> None:
    both = starts(0, COMPILES), starts(1, READS)
    assert list(slow_start.find(begun(49.0, *both).view)) == []
    found = only(list(slow_start.find(begun(51.0, *both).view)))
    assert (found.id, found.severity, found.ranks) == ("start-slow", "note", (0, 1))
    assert found.text == (
        "no step and no collective yet; rank 0: compiling; rank 1: in load() (called at train.py:70)"
    )
    assert found.since == NOW + 1.0 - 51.0
    assert "TORCHINDUCTOR_CACHE_DIR" in found.remedy


@pytest.mark.parametrize(
    "pulses",
    [
        starts(1, READS, groups=(ProcessGroup("0", (), 1, 1),)),
        coming(1, size="2"),
    ],
    ids=["a collective", "another finding explains it"],
)
def test_a_start_that_goes_on_or_is_explained_is_not_told(pulses: object) -> None:
    assert list(slow_start.find(begun(90.0, starts(0, READS), pulses).view)) == []


def test_a_run_that_trains_is_not_starting() -> None:
    made = begun(90.0, starts(0, READS), starts(1, READS))
    made.state.ranks[0].sample = RankSample(0, step=3)
    assert list(slow_start.find(made.view)) == []
