"""Runs in which no rank waits for another, and none moves: all of them wait for the same storage, server or file."""

from __future__ import annotations

import pytest

from distui.runners.run.pulse import Pulse

from .hang_rig import LOAD, NOW, STEP, Made, only, series


def both(still_s: float, **waits: object) -> Made:
    """Two ranks that sleep at one place; their newest step was so long ago."""
    values: dict[str, object] = {"last_step": NOW + 1.0 - still_s, **waits}
    return Made(ranks=2).add(*(series(rank, LOAD, **values) for rank in (0, 1)))  # type: ignore[arg-type]


def test_ranks_that_all_open_the_same_file_are_an_error_after_a_minute() -> None:
    assert both(59.0, call="open", on="FIFO /data/shard-7").hang() == []
    found = only(both(61.0, call="open", on="FIFO /data/shard-7").hang())
    assert (found.id, found.severity, found.ranks) == ("hang-idle", "error", (0, 1))
    assert found.text == "no rank moves: ranks 0, 1 open FIFO /data/shard-7 at train.py:33 load"
    assert found.since == NOW + 1.0 - 61.0
    assert "stack of rank 0: train.py:33 load, train.py:70 main, train.py:80 <module>" in found.evidence


def test_what_all_ranks_wait_for_may_be_unknown_or_outside_of_the_job() -> None:
    for waits in ({"call": "futex"}, {"call": "read", "on": "10.0.0.7:443"}):
        assert both(290.0, **waits).hang() == []
        assert only(both(301.0, **waits).hang()).severity == "warning"
    assert only(both(61.0, state="D").hang()).severity == "error"


@pytest.mark.parametrize(
    "other",
    [
        series(1, STEP, share=0.9, sites=5),
        series(1, LOAD, last_step=NOW - 5.0),
        series(1, LOAD, call="sleep", until=NOW + 30.0),
    ],
    ids=["works", "has made a step", "in a sleep that ends"],
)
def test_a_run_in_which_one_rank_moves_is_not_told(other: tuple[Pulse, ...]) -> None:
    assert both(61.0, call="open", on="FIFO /data/shard-7").add(other).hang() == []


def test_a_rank_that_has_ended_is_no_part_of_it() -> None:
    assert both(61.0, call="open", on="FIFO /data/shard-7").end(0).hang() == []


def test_ranks_without_a_step_are_not_told() -> None:
    assert both(61.0, last_step=None, call="open", on="FIFO /data/shard-7").hang() == []
