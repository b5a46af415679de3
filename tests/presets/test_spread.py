"""A plan for several nodes, and what each of them makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets.finding import PlanError
from distui.presets.load import load
from distui.presets.node_plans import for_node, part_id, part_run8, rendezvous_port
from distui.presets.plan import Place, Plan, command_plan, make_plan
from distui.presets.plan_json import plan_from_json, plan_to_json
from distui.presets.render import render
from distui.presets.request import Request

PLACE = Place(
    run="20261120-120000-train-00c0ffee",
    run_dir="",
    port=20481,
    ras_port=28111,
    gpus=8,
    cores=16,
    cwd="",
    python="",
    nodes=None,
    script_source="print('hello')",
)
SCRIPT = ("train.py", "--pattern", "{head}", "--rdzv-endpoint", "{local}")


def plan(
    nnodes: int | str = 2, name: str = "ddp", args: tuple[str, ...] = SCRIPT[1:], **place: Any
) -> Plan:
    loaded = load(name, (), cwd=Path("/"), env={"HOME": "/nonexistent"})
    return make_plan(loaded, Request(script="train.py", args=args, nnodes=nnodes), replace(PLACE, **place))


def option(words: tuple[str, ...], name: str) -> str:
    return words[words.index(name) + 1]


def test_a_plan_for_several_nodes_holds_what_differs_as_placeholders() -> None:
    made = plan()
    assert made.nnodes == 2
    assert made.node == 0
    assert option(made.argv, "--nnodes") == "2"
    assert option(made.argv, "--rdzv-endpoint") == "{head}:20481"
    assert option(made.argv, "--local-addr") == "{local}"
    assert option(made.argv, "--rdzv-conf").startswith("is_host={is_head},")
    assert option(made.argv, "--rdzv-id") == made.run


@for_each(("node", "is_host"), [(0, "1"), (1, "0")])
def test_each_node_fills_them_in(node: int, is_host: str) -> None:
    whole = plan()
    made = for_node(whole, node, ["10.0.0.1", "10.0.0.2"], "/state/runs/x", "/code", "/env/bin/python")
    assert option(made.argv, "--rdzv-endpoint") == "10.0.0.1:20481"
    assert option(made.argv, "--local-addr") == f"10.0.0.{node + 1}"
    assert option(made.argv, "--rdzv-conf").startswith(f"is_host={is_host},")
    assert option(made.argv, "--rdzv-id") == whole.run
    assert made.run == made.env["DISTUI_RUN_ID"] == f"{whole.run}.n{node}"
    assert (made.node, made.run_dir, made.cwd) == (node, "/state/runs/x", "/code")
    assert made.python == "/env/bin/python"
    assert (made.env["DISTUI_NODE"], made.env["DISTUI_NNODES"]) == (str(node), "2")
    assert made.env["DISTUI_HEAD"] == "10.0.0.1"
    assert "{" not in " ".join(made.argv[: -len(SCRIPT)])


def test_the_scripts_own_words_are_left_alone() -> None:
    made = for_node(plan(), 1, ["10.0.0.1", "10.0.0.2"], "/r", "/c", "python")
    assert made.argv[-len(SCRIPT) :] == SCRIPT
    assert made.command == SCRIPT


def test_an_ipv6_head_stands_in_brackets() -> None:
    made = for_node(plan(), 1, ["fd00::1", "fd00::2"], "/r", "/c", "python")
    assert option(made.argv, "--rdzv-endpoint") == "[fd00::1]:20481"
    assert option(made.argv, "--local-addr") == "fd00::2"


def test_one_node_is_planned_as_ever() -> None:
    made = plan(1, nodes=None)
    assert "--rdzv-endpoint" not in made.argv[: made.argv.index("train.py")], "it opens no port"
    alone = for_node(made, 0, ["10.0.0.1"], "/r", "/c", "python")
    assert alone.argv == made.argv
    assert alone.run == f"{made.run}.n0"


@for_each("node", [-1, 2, 3])
def test_there_is_no_such_node(node: int) -> None:
    with pytest.raises(PlanError, match=f"There is no node {node}: "):
        for_node(plan(), node, ["10.0.0.1", "10.0.0.2"], "/r", "/c", "python")


def test_an_elastic_plan() -> None:
    made = plan("1:4")
    assert (made.nnodes_min, made.nnodes) == (1, 4)
    assert option(made.argv, "--nnodes") == "1:4"
    assert "ranks        8 to 32 = nnodes 1 to 4 × nproc_per_node 8" in render(made)
    assert any(note.startswith("Elastic: ") and "down to 1" in note for note in made.notes)
    fitted = for_node(made, 1, ["10.0.0.1", "10.0.0.2"], "/r", "/c", "python")
    assert option(fitted.argv, "--nnodes") == "1:4"


def test_a_range_of_one_size_is_that_size() -> None:
    made = plan("2:2")
    assert (made.nnodes_min, made.nnodes) == (None, 2)
    assert option(made.argv, "--nnodes") == "2"


@for_each("text", ["0:2", "3:2", "a", "1:b", ":", "1:2:3", ""])
def test_what_is_no_number_of_nodes(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(text)
    assert "\n" not in str(caught.value)


def test_more_nodes_than_there_are() -> None:
    with pytest.raises(PlanError, match=r"^nnodes 3 > 2 available nodes: give at most 2$"):
        plan(3, nodes=2)
    with pytest.raises(PlanError, match=r"^nnodes 3 needs more machines than this one: .*, or give 1$"):
        plan(3, nodes=1)
    assert plan(2, nodes=2).nnodes == 2


def test_single_is_one_rank() -> None:
    with pytest.raises(PlanError, match="strategy single is one rank, not nnodes 2"):
        plan(2, "single", gpus=1)


def test_the_plan_says_how_the_nodes_meet() -> None:
    text = render(plan())
    assert "on each node {head} is the first node's address" in text
    assert "The nodes meet on port 20481 of the first one" in text
    assert "ranks        16 = nnodes 2 × nproc_per_node 8" in text


def test_a_command_on_several_nodes() -> None:
    made = command_plan(("bash", "train.sh", "{head}"), Request(nnodes=2), PLACE)
    assert made.nnodes == 2
    fitted = for_node(made, 1, ["10.0.0.1", "10.0.0.2"], "/r", "/c", "")
    assert fitted.argv == ("bash", "train.sh", "{head}")
    assert fitted.env["DISTUI_NODE"] == "1"
    with pytest.raises(PlanError, match="needs more machines than this one"):
        command_plan(("bash",), Request(nnodes=2), replace(PLACE, nodes=1))


def test_a_plan_survives_json() -> None:
    made = for_node(plan("1:2"), 1, ["10.0.0.1", "10.0.0.2"], "/r", "/c", "python")
    assert plan_from_json(plan_to_json(made)) == made


def test_names_of_a_part_and_its_port() -> None:
    assert part_id("20261120-120000-a-0000beef", 3) == "20261120-120000-a-0000beef.n3"
    assert part_run8("0000beef", 3) == "0000beefn3"
    ports = {rendezvous_port(f"{number * 7919:08x}") for number in range(1000)}
    assert len(ports) > 900
    assert all(20000 <= port <= 29999 for port in ports)
    assert rendezvous_port("ffffffff") == rendezvous_port("ffffffff")
