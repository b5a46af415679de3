"""The launch form's places, and shells on nodes, without a terminal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets.plan_json import plan_to_json
from distui.runners.hub.merged_run import LAUNCH_FILE
from distui.runners.launch import launch_form, recent
from distui.runners.launch.launch_form import LaunchForm
from distui.runners.launch.launch_settings import kind_of
from distui.runners.launch.prepared import REQUEST_FILE, Prepared, request_text
from distui.runners.node import routes
from distui.runners.node.routes import Route
from distui.runners.run import run_directories
from distui.runners.run.errors import LaunchError, RunError
from distui.runners.run.run_directories import Entry
from distui.tui.rows.form_fields import repeated_fields, typed_of
from distui.tui.source import LocalSource, shell_on


def form(**fields: Any) -> LaunchForm:
    return LaunchForm(preset="ddp", script="train.py", **fields)


def recorded(launch: Prepared, here: Path) -> Entry:
    """Write the directory of a run as its start does, without starting it."""
    assert launch.asked is not None
    files = {REQUEST_FILE: request_text(launch.asked, str(here))}
    files |= {LAUNCH_FILE: "{}"} if launch.order is not None else {}
    plan = json.dumps(plan_to_json(launch.plan, masked=True))
    entry = run_directories.at(run_directories.create(launch.record, plan.encode(), files))
    assert entry is not None
    return entry


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_preview_has_no_id_that_the_run_will_not_get(here: Path) -> None:
    text = launch_form.preview(form(nproc="2", options={"env": "LR=1"})).text
    head, *_ = text.splitlines()
    assert re.fullmatch(r"run +train", head)
    assert re.search(r"^records in .*/runs/<run>$", text, re.MULTILINE)
    assert not re.search(r"20\d{6}-\d{6}-", text)
    assert "LR=1  # launch form" in text
    assert "# command line" not in text


def test_an_unknown_variable_of_nccl_is_in_the_preview(here: Path) -> None:
    seen = launch_form.preview(form(nproc="2", options={"env": "NCCL_FOOBAR=1"}))
    (finding,) = (finding for finding in seen.findings if finding.id == "L15")
    assert (finding.where, finding.severity) == ("NCCL_FOOBAR", "warning")
    assert "NCCL_FOOBAR=1" in seen.text


@for_each(
    ("place", "kind"),
    [
        ("", "local"),
        ("local", "local"),
        ("sky", "sky"),
        ("slurm/lab", "sky"),
        ("hosts a,b", "hosts"),
        ("hosts: a", "hosts"),
    ],
)
def test_what_a_place_is(place: str, kind: str) -> None:
    assert kind_of(place) == kind


@for_each(
    ("fields", "why"),
    [
        ({"options": {"nnodes": "2"}}, "2 nodes need a place"),
        ({"options": {"gpus": "H100:8"}}, "set place to sky"),
        ({"place": "nowhere"}, "--on nowhere: unknown place"),
        ({"place": "sky", "options": {"gpus": "H100:8:9"}}, "--gpus H100:8:9: write NAME:COUNT"),
        ({"place": "hosts"}, "which hosts?"),
        ({"place": "hosts -oProxyCommand=x"}, "begins with '-'"),
        ({"place": "hosts a,a"}, "more than once"),
    ],
)
def test_a_wrong_place_is_one_sentence(here: Path, fields: dict[str, str], why: str) -> None:
    preview = LocalSource().plan(form(**fields))
    (problem,) = preview.problems
    assert why in problem
    assert "\n" not in problem


@pytest.fixture
def ways(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings with a way of their own, which every launch uses."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    path = here / "config/distui/settings.toml"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text(
        '[notify]\nsend = ["team"]\n[notify.channels.team]\ntype = "command"\ncommand = ["true"]\nrules = ["hang"]\n'
    )
    return path


@for_each(
    ("typed", "lines"),
    [
        ("", ["team:hang"]),
        ("terminal:gave-up,succeeded", ["terminal:gave-up,succeeded"]),
        ("  team   'desktop:hang' ", ["team:hang", "desktop:hang"]),
        ("off", ["off"]),
    ],
)
def test_the_plan_has_the_ways_that_were_typed(
    here: Path, ways: Path, typed: str, lines: list[str]
) -> None:
    preview = LocalSource().plan(form(nproc="1", options={"notify": typed}))
    assert not preview.problems
    shown = [line for line in preview.text.splitlines() if line.startswith("notify ")]
    assert shown == [f"notify       {line}" for line in lines]


@for_each(
    ("typed", "why"),
    [
        ("phone", "unknown channel phone"),
        ("team:hangs", "no rule hangs; did you mean hang?"),
        ("off team", "--notify off excludes every channel"),
        ("'team", "notify: a quote is open"),
        ("https://hooks.example/T0/s3cret", "takes the name of a channel"),
    ],
)
def test_what_is_no_way_is_one_sentence(here: Path, ways: Path, typed: str, why: str) -> None:
    (problem,) = LocalSource().plan(form(nproc="1", options={"notify": typed})).problems
    assert why in problem
    assert "s3cret" not in problem


def test_the_form_of_a_run_has_the_ways_that_its_launch_named(here: Path, ways: Path) -> None:
    for typed in ("", "team:gave-up terminal"):
        launch = launch_form.prepared(form(nproc="1", options={"notify": typed}))
        entry = recorded(launch, here)
        assert recent.copied(entry, str(here)).form.options.get("notify", "") == typed
        (entry.path / REQUEST_FILE).write_text("{}")
        with pytest.raises(RunError, match="is damaged"):
            recent.copied(entry, str(here)).form


def test_the_form_of_a_run_has_the_options_of_its_launch(here: Path, ways: Path) -> None:
    options = {"grace_s": "3", "hook": "true", "signals": "'loss (?P<loss>.*)'", "restart_limit": "0"}
    wanted = replace(form(nproc="1", options=options), overrides=("batch.micro=4", "sky.x=1"))
    launch = launch_form.prepared(wanted)
    plan = launch.plan
    assert (plan.grace_s, plan.hook, plan.restart.limit) == (3.0, False, 0)
    assert launch.asked is not None
    again = launch_form.requested(recent.copied(recorded(launch, here), str(here)).form)
    assert again == replace(launch.asked, name="train")
    with pytest.raises(RunError, match=r"--grace 'soon' is not a number of seconds"):
        launch_form.prepared(form(options={"grace_s": "soon"}))
    with pytest.raises(RunError, match=r"--spot is for nodes through SkyPilot"):
        launch_form.prepared(form(options={"spot": "true"}))


TASK = "name: bert\nresources:\n  infra: slurm/lab\nnum_nodes: 2\nrun: torchrun train.py\n"


@for_each(
    ("wanted", "name"),
    [
        (LaunchForm(command=("bash", "-c", "exit 3"), options={"name": "three", "grace_s": "4"}), "three"),
        (LaunchForm(command=("true",), nccl_debug="INFO", options={"env": "A=1"}), "true"),
        (LaunchForm(task="task.yaml", place="slurm/lab", options={"nnodes": "2", "env": "A=1"}), "bert"),
    ],
)
def test_the_form_of_a_run_without_a_preset_repeats_it(
    here: Path, ways: Path, wanted: LaunchForm, name: str
) -> None:
    (here / "task.yaml").write_text(TASK)
    launch = launch_form.prepared(wanted)
    assert launch.asked is not None
    entry = recorded(launch, here)
    assert entry.record.name == name
    copied = recent.copied(entry, str(here)).form
    assert copied.repeats
    assert launch_form.requested(copied) == replace(launch.asked, name=name)
    assert launch_form.preview(copied).text
    typed = typed_of(copied)
    given = repeated_fields(copied)
    assert [field.name for field in given if field.locked] == ["command" if wanted.command else "task"]
    assert not typed.keys() - {field.name for field in given}, "each option has a row"
    assert copied not in recent.read(), "^r offers launches with a preset"
    elsewhere = recent.copied(entry, "/elsewhere")
    assert elsewhere.form.task == (str(here / "task.yaml") if wanted.task else "")
    assert "starts here" in elsewhere.note


def test_a_command_with_a_secret_has_no_form(here: Path, ways: Path) -> None:
    launch = launch_form.prepared(LaunchForm(command=("true", "--token=hf_" + "a" * 34)))
    entry = recorded(launch, here)
    with pytest.raises(RunError, match="the command of true holds secrets, which are never stored"):
        recent.copied(entry, str(here))


def test_the_plan_for_this_machine_is_as_before(here: Path) -> None:
    preview = LocalSource().plan(form(nproc="2", options={"nnodes": "1"}))
    assert not preview.problems
    assert "nnodes 1 × nproc_per_node 2" in preview.text


def test_hosts_are_not_asked_by_a_preview(here: Path) -> None:
    preview = LocalSource().plan(form(place="hosts no-such-host.invalid, other.invalid"))
    assert "no-such-host.invalid, other.invalid" in preview.text
    assert preview.open_questions
    assert not preview.problems


async def test_candidates_for_a_mistake_are_a_sentence(here: Path) -> None:
    with pytest.raises(LaunchError, match="a number from 1 on"):
        await LocalSource().candidates(form(place="sky", options={"nnodes": "many"}))


def test_a_shell_goes_the_way_of_the_node(tmp_path: Path) -> None:
    routes.write(
        tmp_path,
        [
            Route(0, "c1", "ssh", "tt", ("-F", "/x/config"), ("sh", "node.sh", "attach", "r", "0")),
            Route(1, "c2", "via", "/tmp/a.sock"),
            Route(2, "c3", "unix", "/tmp/b.sock"),
        ],
    )
    assert shell_on(tmp_path, 0).argv == ("ssh", "-t", "-F", "/x/config", "--", "tt")
    relayed = shell_on(tmp_path, 1)
    assert relayed.argv == ()
    assert "carries no shell: ssh c2" in relayed.text
    own = shell_on(tmp_path, 2, {"SHELL": "/bin/zsh"})
    assert (own.argv, own.text) == (("/bin/zsh",), "c3 is this machine")
    with pytest.raises(RunError, match="node 3 is not reachable yet"):
        shell_on(tmp_path, 3)
