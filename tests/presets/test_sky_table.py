"""The table [sky]: what a preset says of nodes holds where a launch says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from each import for_each

from distui.presets import skypilot
from distui.presets.finding import PlanError
from distui.presets.request import Request
from distui.presets.skypilot import Cargo

CARGO = Cargo(run="r", bundle="distui-1", source="/here")
TABLE: dict[str, Any] = {
    "resources": {"accelerators": {"H100": 8}, "cpus": "32+", "disk_size": 512, "network_tier": "best",
                  "any_of": [{"infra": "aws"}, {"infra": "gcp"}]},
    "file_mounts": {"/data": "s3://bucket", "~/.netrc": "~/.netrc"},
    "setup": "pip install torch",
    "config": {"kubernetes": {"pod_config": {}}},
}  # fmt: skip


def made(wish: Request, table: dict[str, Any]) -> dict[str, Any]:
    wish = skypilot.check(skypilot.filled(wish, table))
    return skypilot.wrap({**table, "name": "t"}, wish, 2, CARGO, {"A": "b"})


def test_every_key_of_the_table_reaches_the_task() -> None:
    task = made(Request(), TABLE)
    assert task["resources"] == {
        "accelerators": "H100:8", "cpus": "32+", "disk_size": 512, "network_tier": "best",
        "any_of": [{"infra": "aws"}, {"infra": "gcp"}],
    }  # fmt: skip
    assert task["file_mounts"] == {"/data": "s3://bucket", "~/.netrc": "~/.netrc", "~/.distui": "/here"}
    assert (task["setup"], task["num_nodes"], task["name"]) == ("pip install torch", 2, "t")
    assert task["run"] == CARGO.command
    assert task["config"] == TABLE["config"]
    assert task["envs"] == {"A": "b"}


def test_the_launch_wins() -> None:
    task = made(Request(gpus="A100:4", cpus="8", setup="true", mounts={"/data": "/x"}), TABLE)
    assert task["resources"]["accelerators"] == "A100:4"
    assert (task["resources"]["cpus"], task["setup"]) == ("8", "true")
    assert task["file_mounts"]["/data"] == "/x"


def test_what_the_plan_counts_ranks_by_is_filled() -> None:
    assert skypilot.filled(Request(), TABLE).gpus == "H100:8"
    assert skypilot.filled(Request(), {"resources": {"accelerators": "L4:2"}}).gpus == "L4:2"
    assert skypilot.filled(Request(gpus="T4:1"), TABLE).gpus == "T4:1"


@for_each(
    ("table", "words"),
    [
        ({"run": "torchrun x"}, "sky.run is set by distui: use the script after --"),
        ({"num_nodes": 2}, "use topology.nnodes"),
        ({"resources": 3}, "sky.resources is 3: write a table"),
        ({"resources": {"accelerators": ["A", "B"]}}, "names several kinds"),
        ({"resources": {"network_tier": "premium"}}, "premium"),
    ],
)
def test_what_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        made(Request(), table)
    assert words in str(caught.value)
