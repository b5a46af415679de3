"""Which node this is: by SkyPilot's variables or the launch, and what cannot be."""

from __future__ import annotations

import pytest
from each import for_each

from distui.presets.finding import PlanError
from distui.presets.seats import Seat, given_seat, seat

SKY = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.77.0.11\n10.77.0.12",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}


def test_skypilot() -> None:
    assert seat(SKY, 2) == Seat(1, ("10.77.0.11", "10.77.0.12"), "SkyPilot")


def test_the_numbers_of_slurm_below_skypilot_do_not_count() -> None:
    """SkyPilot starts a step of its own on each node: Slurm calls each of them number 0 of 1."""
    step = {"SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "c2"}
    assert seat({**step, **SKY}, 2).node == 1


def test_what_the_launch_gave() -> None:
    assert given_seat(1, ["a", "b"], 2) == Seat(1, ("a", "b"), "the launch")


def test_an_elastic_plan_takes_fewer() -> None:
    assert len(seat(SKY, 4, 1).addresses) == 2


@for_each(
    ("env", "nnodes", "words"),
    [
        ({}, 2, "The node number is unknown"),
        (SKY, 3, "SkyPilot gives 2 nodes, and the plan is for 3: launch it with --nnodes 2"),
        (SKY, 1, "the plan is for 1"),
        ({**SKY, "SKYPILOT_NUM_NODES": "3"}, 3, "SKYPILOT_NUM_NODES is 3, and SKYPILOT_NODE_IPS names 2"),
        ({**SKY, "SKYPILOT_NODE_RANK": "2"}, 2, "impossible node number: 2 of 2"),
        ({**SKY, "SKYPILOT_NODE_RANK": "one"}, 2, "SKYPILOT_NODE_RANK is 'one', and must be a number"),
        ({**SKY, "SKYPILOT_NODE_RANK": "-1"}, 2, "must be a number"),
        ({"SKYPILOT_NODE_RANK": "0"}, 2, "number: 0 of 0"),
    ],
)
def test_what_cannot_be(env: dict[str, str], nnodes: int, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        seat(env, nnodes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")
