"""Variables for the nodes of some names alone: an adapter is called otherwise on each kind of machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from each import for_each

from distui.presets.finding import PlanError, PresetError
from distui.presets.load import load
from distui.presets.model import Loaded
from distui.presets.node_plans import for_host
from distui.presets.plan import Place, Plan, command_plan, make_plan
from distui.presets.plan_json import plan_from_json, plan_to_json
from distui.presets.preset_text import show_text
from distui.presets.render import render
from distui.presets.request import Request

PLACE = Place(
    run="20261120-120000-train-00c0ffee", run_dir="/r", port=20481, ras_port=28111, gpus=0, cores=2,
    cwd="/c", python="python", nodes=None, script_source="print()",
)  # fmt: skip
TEXT = """\
base = "ddp"
[hosts."gpu0?"]
NCCL_SOCKET_IFNAME = "=eth1"
TUNED = 1
[hosts.gpu03]
NCCL_SOCKET_IFNAME = "=bond0"
"""


def loaded(tmp_path: Path, text: str = TEXT) -> Loaded:
    (tmp_path / "distui").mkdir(exist_ok=True)
    folder = tmp_path / "distui" / "presets"
    folder.mkdir(exist_ok=True)
    (folder / "mine.toml").write_text(text)
    return load("mine", cwd=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nonexistent"})


def plan(tmp_path: Path, **request: object) -> Plan:
    asked = Request(script="t.py", nnodes=4, **request)  # type: ignore[arg-type]
    return make_plan(loaded(tmp_path), asked, PLACE)


@for_each(
    ("host", "interface", "tuned"),
    [
        ("gpu01", "=eth1", "1"),
        ("GPU01.cluster.local", "=eth1", "1"),
        ("gpu03", "=bond0", "1"),
        ("gpu11", None, None),
        ("login", None, None),
    ],
)
def test_a_node_gets_what_its_name_fits(
    tmp_path: Path, host: str, interface: str | None, tuned: str | None
) -> None:
    made = for_host(plan(tmp_path), host)
    assert (made.env.get("NCCL_SOCKET_IFNAME"), made.env.get("TUNED")) == (interface, tuned)


def test_the_request_wins_and_adds_hosts(tmp_path: Path) -> None:
    asked = {"gpu0?": {"TUNED": "2"}, "login": {"X": "y"}}
    made = plan(tmp_path, env_on=asked)
    assert for_host(made, "gpu01").env["TUNED"] == "2"
    assert for_host(made, "gpu01").env["NCCL_SOCKET_IFNAME"] == "=eth1"
    assert for_host(made, "login").env["X"] == "y"


def test_it_is_in_the_plan_as_text_and_as_json(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert "on hosts gpu0?\n  NCCL_SOCKET_IFNAME==eth1  # preset, " in render(made)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(made, masked=True)))) == made
    assert '"gpu0?" = {NCCL_SOCKET_IFNAME = "=eth1", TUNED = "1"}' in show_text(loaded(tmp_path))


def test_a_command_has_hosts_too() -> None:
    made = command_plan(("true",), Request(env_on={"*": {"A": "b"}}), PLACE)
    assert for_host(made, "anything").env["A"] == "b"


@for_each(
    ("hosts", "words"),
    [
        ({"a": {"NCCL_SOKET_IFNAME": "x"}}, "did you mean NCCL_SOCKET_IFNAME?"),
        ({"a": {"RANK": "1"}}, "RANK is computed for each rank by the launcher"),
        ({"a": {"HF_TOKEN": "s"}}, "HF_TOKEN for hosts a is a secret"),
    ],
)
def test_what_no_plan_takes(tmp_path: Path, hosts: dict[str, dict[str, str]], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(tmp_path, env_on=hosts)
    assert words in str(caught.value)


def test_a_preset_whose_hosts_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match=r"hosts\.gpu01 is a table of variables"):
        loaded(tmp_path, 'base = "ddp"\n[hosts]\ngpu01 = "eth1"\n')
    with pytest.raises(PresetError, match="NCCL_P2P_DISABLE takes 0 or 1"):
        loaded(tmp_path, 'base = "ddp"\n[hosts.a]\nNCCL_P2P_DISABLE = "yes"\n')
