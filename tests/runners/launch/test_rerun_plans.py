"""A rerun is planned again from its request, in the place and the environment of then, whatever this shell is now."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distui.presets.plan_json import plan_to_json
from distui.presets.request import FORM_OPTIONS, Named, Request
from distui.presets.secrets import MASK
from distui.runners.comparison.rerun_changes import changes_of_rerun
from distui.runners.hub import launch_order
from distui.runners.hub.launch_order import SkyRequest
from distui.runners.inrank import script_files
from distui.runners.launch.prepare import prepare
from distui.runners.launch.prepared import REQUEST_FILE, Prepared, request_text
from distui.runners.launch.rerun import LaunchChanges, again, read
from distui.runners.launch.words import request_of, typed, words_of
from distui.runners.run import environment, journal, run_directories
from distui.runners.run.errors import RunError
from distui.runners.run.model import AttemptStarted, RunnerStarted, Stamped
from distui.tui.cli import main

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def kept(made: Prepared) -> run_directories.Entry:
    """The directory of a run that was planned, as its start would leave it; nothing is started."""
    assert made.asked is not None
    files = {REQUEST_FILE: request_text(made.asked, made.cwd or os.getcwd())}
    if made.order is not None:
        files["launch.json"] = "{}"  # a hub keeps it
    path = run_directories.create(
        made.record, json.dumps(plan_to_json(made.plan, masked=True)).encode(), files
    )
    if made.order is None:
        environment.write(path, environment.of_launch(os.environ, made.plan.env))
    entry = run_directories.at(path)
    assert entry is not None
    return entry


def script(*overrides: str, **about: Any) -> Request:
    return Request(
        **{
            "preset": "ddp",
            "overrides": overrides,
            "script": "train.py",
            "args": ("--lr", "1"),
            "nproc_per_node": 2,
            "python": sys.executable,
            **about,
        }
    )


def test_a_field_of_the_preset_in_the_old_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Path
) -> None:
    monkeypatch.setenv("GIVEN", "then")
    entry = kept(prepare(script("restart.limit=1", env={"A": "1", "B": "2"})))
    monkeypatch.setenv("GIVEN", "now")
    monkeypatch.setenv("STRANGE", "1")
    monkeypatch.chdir(tmp_path)
    wanted = LaunchChanges(
        "other", ("restart.limit=9", "strategy.bucket_cap_mb=50"), {"A": "3", "NCCL_DEBUG": "WARN"}, ("B",)
    )
    made = again(entry, wanted)
    assert (os.getcwd(), os.environ["GIVEN"], os.environ["STRANGE"]) == (str(tmp_path), "now", "1")
    assert made.plan.restart.limit == 9
    assert (made.plan.cwd, made.plan.command, made.record.name) == (
        str(code),
        ("train.py", "--lr", "1"),
        "other",
    )
    assert (made.plan.env["A"], made.plan.env["NCCL_DEBUG"], made.plan.env.get("B")) == ("3", "WARN", None)
    assert made.shell is not None
    assert (made.shell["GIVEN"], made.shell.get("STRANGE"), made.shell.get("B")) == ("then", None, None)
    third = again(kept(made), LaunchChanges(set=("strategy.bucket_cap_mb=60",)))
    assert (third.plan.restart.limit, third.plan.env["A"]) == (9, "3"), "changes of a rerun last"


def test_without_changes_it_is_the_very_plan() -> None:
    first = prepare(script(env={"A": "1"}))
    second = again(kept(first), LaunchChanges())
    before, after = (plan_to_json(each.plan, masked=False) for each in (first, second))
    renamed = json.loads(json.dumps(before).replace(first.record.run, second.record.run))
    assert {name for name in renamed if renamed[name] != after[name]} <= {"argv", "env"}, (
        "ports alone differ"
    )
    assert first.asked is not None
    assert second.asked == replace(first.asked, name="train")


WHOLE = Request(
    preset="fsdp2",
    script="t.py",
    args=("--a", "b c"),
    command=("true",),
    nnodes="1:2",
    nproc_per_node="gpu",
    on="aws",
    overrides=("mesh.tp=2",),
    adopt=True,
    python="/p",
    port=29500,
    module=True,
    no_python=True,
    name="night",
    env={"A": "1"},
    nccl={"NCCL_DEBUG": "INFO"},
    nccl_presets=("no-p2p",),
    env_on={"gpu*": {"B": "2"}},
    hook=False,
    signals=("loss (?P<loss>.*)",),
    grace_s=3.0,
    save_on="SIGUSR1",
    notify=("off",),
    log_cap=1 << 30,
    restart_limit=0,
    hosts=(Named("gpu1", 4), Named("me@gpu2")),
    hostfile="hosts",
    head_addr="10.0.0.1",
    ssh_config="/x",
    task="t.yaml",
    gpus="H100:8",
    cpus="4+",
    memory="32",
    spot=True,
    region="r",
    image="docker:x",
    network_tier="best",
    any_of=({"infra": "aws"},),
    cluster="c",
    workdir="/w",
    setup="true",
    mounts={"/d": "s3://b"},
    autostop_min=10,
    managed=True,
    retry_until_up=True,
)
"""A request in which nothing is as by default."""


def test_every_field_is_kept(tmp_path: Path) -> None:
    assert not [
        each.name for each in fields(Request) if getattr(WHOLE, each.name) == getattr(Request(), each.name)
    ]
    (tmp_path / REQUEST_FILE).write_text(request_text(WHOLE, "/somewhere"))
    entry = run_directories.Entry(tmp_path, run_directories.new_record("x"))
    assert (read(entry).cwd, read(entry).request) == ("/somewhere", WHOLE)


def test_the_form_repeats_every_option() -> None:
    for wanted in (WHOLE, replace(WHOLE, log_cap=0, hook=None), Request()):
        texts = {
            name: typed(name, getattr(wanted, name))
            for name in FORM_OPTIONS
            if getattr(wanted, name) is not None
        }
        again = request_of(words_of(texts))
        assert [name for name in FORM_OPTIONS if getattr(again, name) != getattr(wanted, name)] == []
    assert typed("hook", True) == ""


def test_on_sky_pilots_nodes_with_changes_the_cluster_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = Request(
        preset="ddp", script="train.py", nnodes=2, on="sky", gpus="H100:8", setup="pip install x"
    )
    first = prepare(wanted)
    entry = kept(first)
    assert isinstance(first.order, SkyRequest)
    launch_order.write(entry.path, first.order)
    monkeypatch.chdir(tmp_path)
    second = again(entry, LaunchChanges(set=("restart.limit=5",), env={"A": "1"}))
    assert isinstance(second.order, SkyRequest)
    assert (second.plan.restart.limit, second.plan.env["A"]) == (5, "1")
    assert (second.order.cluster, second.order.reuse) == (first.order.cluster, True)
    assert second.order.task["workdir"] == first.order.task["workdir"]


def test_secrets_are_in_no_request_and_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    entry = kept(prepare(script(env={"HF_TOKEN": token})))
    assert token not in (entry.path / REQUEST_FILE).read_text()
    with pytest.raises(RunError, match=r"HF_TOKEN: secrets are never stored: export"):
        again(entry, LaunchChanges(set=("restart.limit=5",)))
    monkeypatch.setenv("HF_TOKEN", token)
    assert again(entry, LaunchChanges(set=("restart.limit=5",))).plan.env["HF_TOKEN"] == token
    for name in ("A_TOKEN", "B_TOKEN"):
        monkeypatch.setenv(name, "s3cret")
    two = kept(prepare(script()))
    for name in ("A_TOKEN", "B_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(RunError, match="--unset A_TOKEN --unset B_TOKEN"):
        again(two, LaunchChanges())
    loud = kept(prepare(script(args=("--token", token))))
    for wanted in (LaunchChanges(), LaunchChanges(env={"A": "1"})):
        with pytest.raises(RunError, match="arguments of train hold secrets"):
            again(loud, wanted)


def test_what_cannot_be_repeated_is_a_sentence(
    capsys: pytest.CaptureFixture[str], code: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = kept(prepare(script()))
    kept(prepare(Request(command=(sys.executable, "-V"), name="plain")))

    def refused(*words: str) -> str:
        assert main(["rerun", "-n", *words]) == 2
        return capsys.readouterr().err

    assert "run plain has none" in refused("plain", "--set", "restart.limit=1")
    assert "RANK is computed" in refused("train", "--env", "RANK=3")
    assert "NAME=VALUE" in refused("train", "--env", "nothing")
    for name in ("A=1", "--reachable"):
        assert f"'{name}' is not a valid name of an environment variable" in refused(
            "train", f"--unset={name}"
        )
    assert "restart.limit" in refused("train", "--set", "restart.limits=9")
    monkeypatch.chdir(tmp_path)
    code.rename(tmp_path / "moved")
    assert "cannot be entered" in refused("train", "--env", "A=1")
    assert "cannot be entered" in refused("train"), "also without changes"
    (tmp_path / "moved").rename(code)
    (code / "train.py").rename(code / "renamed.py")
    assert "Script not found: train.py" in refused("train")
    (code / "renamed.py").rename(code / "train.py")
    (entry.path / REQUEST_FILE).write_text('{"place": 3}')
    assert "is damaged" in refused("train", "--env", "A=1")
    (entry.path / REQUEST_FILE).unlink()
    with pytest.raises(RunError, match="kept no request"):
        again(entry, LaunchChanges())


def differences(entry: run_directories.Entry, made: Prepared) -> dict[str, str]:
    """What differs, by name."""
    return {change.name: change.text for change in changes_of_rerun(entry, made)}


def test_the_changes_of_a_rerun_are_none_if_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = kept(
        prepare(script("restart.limit=5", grace_s=7.0, hook=False, env={"A": "1", "HF_TOKEN": "s"}))
    )
    monkeypatch.setenv("HF_TOKEN", "s")
    made = again(entry, LaunchChanges())
    assert differences(entry, made) == {}
    command = kept(prepare(Request(command=(sys.executable, "-V"), name="plain")))
    assert differences(command, again(command, LaunchChanges())) == {}


def test_the_changes_of_a_rerun_name_what_is_not_as_it_was(
    capsys: pytest.CaptureFixture[str], code: Path
) -> None:
    entry = kept(prepare(script("restart.limit=5", env={"A": "1", "B": "2"})))
    started = AttemptStarted(
        1, "launch", 2, (), code=script_files.digests({"command": ["train.py"], "cwd": str(code)})
    )
    begun = RunnerStarted(1, "torchrun", torch="1.0")
    stamped = [Stamped(time=1.0, event=begun, seq=1), Stamped(time=1.0, event=started, seq=2)]
    (entry.path / journal.NAME).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in stamped))
    assert list(differences(entry, again(entry, LaunchChanges()))) == ["torch"]
    (code / "train.py").write_text("import torch, os\n")
    wanted = ("--set", "restart.limit=3", "--env", "A=3", "--unset", "B")
    assert main(["rerun", "-n", "train", *wanted]) == 0
    printed = capsys.readouterr().out
    assert "\nchanges since train\n" in printed
    rows = dict(
        re.split(r" {2,}", line.strip())
        for line in printed.partition("changes since train\n")[2].splitlines()
    )
    assert rows.pop("torch").startswith("1.0 → ")
    assert rows == {
        "restarts: limit": "5 → 3",
        "--env A": "1 → 3",
        "--env B": "gone: 2",
        "file train.py": "changed",
    }
    assert main(["rerun", "-n", "--json", "train", "--env", "A=3", "--env", "API_TOKEN=s3cret"]) == 0
    shown = json.loads(capsys.readouterr().out)["changes"]
    assert {"name": "--env A", "before": "1", "after": "3"} in shown
    assert {"name": "--env API_TOKEN", "before": None, "after": MASK} in shown
