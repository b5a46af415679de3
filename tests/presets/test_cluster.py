"""Which node this is: SkyPilot's variables, Slurm's, plain ones, and what cannot be."""

from __future__ import annotations

import pytest
from each import for_each

from distui.presets.finding import PlanError
from distui.presets.worker_group import Seat, expand_hosts, given_seat, seat

SKY = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.77.0.11\n10.77.0.12",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}
SLURM = {
    "SLURM_NODEID": "2",
    "SLURM_NNODES": "4",
    "SLURM_JOB_NODELIST": "gpu[07-09],login",
    "SLURM_GPUS_ON_NODE": "4",
}


def test_skypilot() -> None:
    assert seat(SKY, 2) == Seat(1, ("10.77.0.11", "10.77.0.12"), 8, "SkyPilot")


def test_skypilots_word_counts_more_than_that_of_the_slurm_below() -> None:
    """SkyPilot starts a step of its own on each node: Slurm calls each of them number 0 of 1."""
    step = {"SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "c2"}
    assert seat({**step, **SKY}, 2).node == 1


def test_slurm() -> None:
    assert seat(SLURM, 4) == Seat(2, ("gpu07", "gpu08", "gpu09", "login"), 4, "Slurm")


def test_plain_variables() -> None:
    found = seat({"NODE_RANK": "1", "NODE_IPS": "10.0.0.1,10.0.0.2", "NNODES": "2"}, 2)
    assert found == Seat(1, ("10.0.0.1", "10.0.0.2"), None, "the environment")


PBS = {"PBS_NODEFILE": "/var/spool/pbs/aux/7.head", "PBS_JOBID": "7.head"}
NODEFILE = "n3.lab\nn3.lab\nn1.lab\nn1.lab\n"


@for_each(
    ("more", "host", "node"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "", 1),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "n3", 0),
        ({"PALS_NODEID": "1", "PMI_RANK": "1"}, "n1.other", 1),
        ({"PBS_NODENUM": "1"}, "elsewhere", 1),
        ({}, "n1", 1),
        ({}, "n3.lab", 0),
        ({"NODE_RANK": "1", "NNODES": "2", "SLURM_NODEID": "1", "SLURM_NNODES": "2"}, "n1", 1),
    ],
)
def test_pbs(more: dict[str, str], host: str, node: int) -> None:
    """Each node once, in the file's order, however many slots it has."""
    found = seat({**PBS, **more}, 2, nodefile=NODEFILE, host=host)
    assert found == Seat(node, ("n3.lab", "n1.lab"), None, "PBS")


def test_pbs_with_one_node() -> None:
    assert seat(PBS, 1, nodefile="n3\nn3\n") == Seat(0, ("n3",), None, "PBS")


def test_skypilots_word_counts_more_than_that_of_pbs() -> None:
    assert seat({**PBS, **SKY}, 2, nodefile="a\nb\nc").source == "SkyPilot"


@for_each(
    ("env", "nodefile", "host", "words"),
    [
        ({"PBS_NODEFILE": "/f"}, NODEFILE, "n1", "PBS_NODEFILE is set, and PBS_JOBID is not"),
        (PBS, None, "n1", "PBS_NODEFILE is /var/spool/pbs/aux/7.head, and there is no such file"),
        (PBS, " \n", "n1", "which names no node"),
        (PBS, NODEFILE, "elsewhere", "nothing says which one this is: PALS_NODEID, PMI_RANK"),
        ({**PBS, "PMI_RANK": "0"}, NODEFILE, "n1", "PMI_RANK says node 0, the place of this host"),
        ({**PBS, "PMI_RANK": "0", "PALS_NODEID": "1"}, NODEFILE, "", "they disagree"),
        ({**PBS, "PMI_RANK": "3", "PMI_SIZE": "4"}, NODEFILE, "", "PMI_SIZE is 4, and PBS gives 2 nodes: start one"),
        ({**PBS, "PMI_RANK": "2"}, NODEFILE, "", "this is node 2 of 2: that cannot be"),
        ({**PBS, "PMI_RANK": "x"}, NODEFILE, "", "PMI_RANK is 'x', and must be a number"),
        ({**PBS, "NODE_RANK": "0"}, NODEFILE, "n1", "PBS says node 1, and NODE_RANK is 0: they disagree"),
        ({**PBS, "SLURM_NODEID": "1", "SLURM_NNODES": "4"}, NODEFILE, "n1", "PBS gives 2 nodes, and SLURM_NNODES is 4"),
        ({**SLURM, "NODE_RANK": "1"}, None, "", "Slurm says node 2, and NODE_RANK is 1: they disagree"),
    ],
)  # fmt: skip
def test_what_cannot_be_under_pbs(env: dict[str, str], nodefile: str | None, host: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        seat(env, 2, nodefile=nodefile, host=host)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


def test_one_node_needs_nobody_to_say_so() -> None:
    assert seat({}, 1) == Seat(0, ("127.0.0.1",), None, "the launch")


def test_what_the_launch_gave() -> None:
    assert given_seat(1, ["a", "b"], 2) == Seat(1, ("a", "b"), None, "the launch")


def test_an_elastic_plan_takes_fewer() -> None:
    assert len(seat(SKY, 4, 1).addresses) == 2


@for_each(
    ("env", "nnodes", "words"),
    [
        ({}, 2, "Nothing says which node this is"),
        (SKY, 3, "SkyPilot gives 2 nodes, and the plan is for 3: launch it with --nnodes 2"),
        (SKY, 1, "the plan is for 1"),
        ({**SKY, "SKYPILOT_NUM_NODES": "3"}, 3, "SKYPILOT_NUM_NODES is 3, and SKYPILOT_NODE_IPS names 2"),
        ({**SKY, "SKYPILOT_NODE_RANK": "2"}, 2, "this is node 2 of 2: that cannot be"),
        ({**SKY, "SKYPILOT_NODE_RANK": "one"}, 2, "SKYPILOT_NODE_RANK is 'one', and must be a number"),
        ({**SKY, "SKYPILOT_NODE_RANK": "-1"}, 2, "must be a number"),
        ({"SKYPILOT_NODE_RANK": "0"}, 2, "node 0 of 0"),
        ({**SLURM, "SLURM_NNODES": "3"}, 4, "Slurm says 3 nodes, and its list"),
        ({**SLURM, "SLURM_JOB_NODELIST": "gpu[x-"}, 4, "is no list of hosts as Slurm writes them"),
        ({"NODE_RANK": "0", "NODE_IPS": "a b", "NNODES": "3"}, 3, "NNODES is 3, and NODE_IPS names 2"),
        ({"NODE_RANK": "0"}, 2, "node 0 of 0"),
    ],
)
def test_what_cannot_be(env: dict[str, str], nnodes: int, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        seat(env, nnodes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


@for_each(
    ("names", "hosts"),
    [
        ("", []),
        ("c1", ["c1"]),
        ("c1,c2", ["c1", "c2"]),
        ("c[1-3]", ["c1", "c2", "c3"]),
        ("gpu[008-010,2]-x", ["gpu008-x", "gpu009-x", "gpu010-x", "gpu2-x"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("a[1,3],login", ["a1", "a3", "login"]),
    ],
)
def test_slurms_lists_of_hosts(names: str, hosts: list[str]) -> None:
    assert expand_hosts(names) == hosts


def test_a_list_of_a_million_hosts_is_refused() -> None:
    with pytest.raises(PlanError, match="more than"):
        expand_hosts("c[1-1000000]")
