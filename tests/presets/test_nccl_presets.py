"""Settings of NCCL by name: valid each, combined, and told of in the plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from each import for_each

from distui.presets.finding import PlanError
from distui.presets.load import load
from distui.presets.nccl import combined, error_in, nccl_presets
from distui.presets.plan import Place, command_plan, make_plan
from distui.presets.request import Request
from distui.tui.cli import main

PLACE = Place(run="r", run_dir="/r", port=1, ras_port=2, gpus=0, cores=4, cwd="/", python="python")
TRAIN = Request(script="train.py", nproc_per_node=2)


@for_each("name", nccl_presets())
def test_nccl_takes_every_value(name: str) -> None:
    preset = nccl_presets()[name]
    assert [problem for pair in preset.env.items() if (problem := error_in(*pair))] == []
    assert preset.when.endswith(".")


def test_several_together() -> None:
    assert combined(["sockets-only", "no-p2p", "sockets-only"]) == {
        "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
    }  # fmt: skip


@for_each(
    ("names", "sentence"),
    [
        (
            ["sockets-onyl"],
            "--nccl-preset sockets-onyl: unknown name: did you mean sockets-only?",
        ),
        (["xyz"], "`distui presets nccl` lists them"),
        (
            ["debug-warn", "no-p2p", "debug-init"],
            "--nccl-preset debug-warn wants NCCL_DEBUG=WARN, and debug-init wants INFO: leave one out",
        ),
    ],
)
def test_what_cannot_be_combined(names: list[str], sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(load("ddp"), replace(TRAIN, nccl_presets=tuple(names)), PLACE)
    assert sentence in str(caught.value)


def test_the_plan_says_what_they_change() -> None:
    place = replace(PLACE, user_env={"NCCL_DEBUG": "TRACE"})
    request = replace(
        TRAIN, nccl_presets=("hang-forensics", "low-memory"), nccl={"NCCL_BUFFSIZE": "4194304"}
    )
    plan = make_plan(load("ddp"), request, place)
    assert (plan.env["NCCL_DEBUG"], plan.env["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,COLL,NET")
    assert (plan.env["NCCL_MAX_NCHANNELS"], plan.env["NCCL_BUFFSIZE"]) == ("8", "4194304")
    first, second = (note for note in plan.notes if note.startswith(("hang-forensics: ", "low-memory: ")))
    assert (
        "NCCL_DEBUG=INFO instead of TRACE, NCCL_DEBUG_SUBSYS=INIT,COLL,NET instead of INIT,BOOTSTRAP,ENV"
        in first
    )
    assert "TORCH_FR_BUFFER_SIZE=2000 as before, " in first
    assert second == "low-memory: NCCL_MAX_NCHANNELS=8, not NCCL_BUFFSIZE=2097152, because you set 4194304."


def test_a_command_gets_them_too() -> None:
    plan = command_plan(("bash", "train.sh"), Request(nccl_presets=("no-shm",)), PLACE)
    assert plan.env["NCCL_SHM_DISABLE"] == "1"
    assert "no-shm: NCCL_SHM_DISABLE=1." in plan.notes


def test_a_command_is_warned_of_variables_that_nothing_reads() -> None:
    request = Request(nccl={"NCCL_FOOBAR": "1", "NCCL_INSPECTOR_ENABLE": "1"}, env={"NCCL_P2P_LVL": "NVL"})
    plan = command_plan(("bash", "train.sh"), request, PLACE)
    assert (plan.env["NCCL_FOOBAR"], plan.env["NCCL_P2P_LVL"]) == ("1", "NVL")
    first, second = (note for note in plan.notes if note.startswith("Neither NCCL"))
    assert "NCCL_P2P_LVL" in first
    assert first.endswith("Did you mean NCCL_P2P_LEVEL?")
    assert "NCCL_FOOBAR" in second


def test_what_can_be_told_to_a_running_process() -> None:
    live = {name for name, preset in nccl_presets().items() if preset.live}
    assert {"debug-warn", "debug-init", "coll-tap"} <= live
    assert not live & {"sockets-only", "low-memory", "hang-forensics"}


@pytest.mark.torch
def test_the_command_line_lists_and_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "nccl"]) == 0
    text = capsys.readouterr().out
    assert "sockets-only\n    Whether InfiniBand" in text
    assert "    NCCL_NET=Socket NCCL_IB_DISABLE=1\n" in text
    assert main(["presets", "nccl", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(nccl_presets())
    assert main(["presets", "nccl", "IB_TIMEOUT"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("NCCL_IB_TIMEOUT\n    RDMA timeout: ")
    assert text.endswith("    takes a whole number from 0 to 255; default 20; read once in a process\n")
    assert main(["presets", "nccl", "ib_", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert len(names) > 30
    assert all(name.startswith("NCCL_IB_") for name in names)
    assert main(["presets", "nccl", "gdr_level", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert names == ["NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL"]
    assert main(["presets", "nccl", "no-p2p"]) == 0
    assert capsys.readouterr().out.startswith("no-p2p\n")
    assert main(["presets", "nccl", "IB_TIMEUOT"]) == 2
    assert "did you mean NCCL_IB_TIMEOUT?" in capsys.readouterr().err
    words = [
        "plan",
        "ddp",
        "--nproc-per-node",
        "2",
        "--nccl-preset",
        "no-p2p",
        "--nccl-preset",
        "rail-only",
    ]
    assert main([*words, "--no-python", "--json", "--", "/bin/true"]) == 0
    env = json.loads(capsys.readouterr().out)["env"]
    assert (env["NCCL_P2P_DISABLE"], env["NCCL_CROSS_NIC"]) == ("1", "0")
