"""The launch form: filled from a run or the last launch, paths completed, scripts that cannot run refused."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import scripted as play
from conftest import Start, shown
from each import for_each

from distui.presets.load import load
from distui.presets.plan import Place, Plan, make_plan
from distui.presets.request import Request
from distui.presets.secrets import MASK
from distui.runners.launch import recent
from distui.runners.launch.launch_form import LaunchForm, requested, with_free_name
from distui.runners.launch.prepared import REQUEST_FILE, request_text
from distui.runners.launch.preset_library import PresetEntry
from distui.runners.launch.recent import CopiedForm
from distui.runners.launch.syntax_check import syntax_problem
from distui.runners.run import journal, run_directories
from distui.runners.run.errors import RunError
from distui.runners.run.model import AttemptStarted, Stamped
from distui.runners.run.settings_file import settings_path
from distui.tui.option_values import completed_path
from distui.tui.rows.form import form_rows
from distui.tui.rows.form_fields import Field
from distui.tui.rows.glyphs import plain, row_width
from distui.tui.rows.plan_preview import folded_plan
from distui.tui.rows.preset_list import best_match
from distui.tui.screens.launch import LaunchScreen
from distui.tui.screens.modal import ConfirmScreen


def presets(*names: str) -> list[PresetEntry]:
    return [PresetEntry(name=name, title="", summary="as fsdp2, but not") for name in names]


def test_a_preset_of_exactly_that_name_wins() -> None:
    entries = presets("single", "zero1", "fsdp2", "fsdp2-hybrid")
    assert best_match(entries, "fsdp2", "zero1") == "fsdp2"
    assert best_match(entries, "FSDP2 ", "fsdp2-hybrid") == "fsdp2"
    assert best_match(entries, "fsdp", "single") == "fsdp2"
    assert best_match(entries, "fsdp", "fsdp2-hybrid") == "fsdp2-hybrid", "the cursor stays where it fits"
    assert best_match(entries, "but", "zero1") == "zero1"


@for_each("label", ["gradient_as_bucket_view", "x" * 40, "a"])
def test_no_label_runs_into_its_value(label: str) -> None:
    field = Field(name="f", label=label, table="run", help="", value="true", choices=("true", "false"))
    (row,) = [line for line in plain(form_rows([field], {}, 0, 0, 80, False).rows) if line.endswith("true")]
    assert row.endswith(" true")


@for_each(("text", "caret"), [("数据" * 40, 80), ("数据" * 40, 40), ("a" * 200, 200), ("数据" * 40, 0)])
def test_wide_characters_fit_into_the_form(text: str, caret: int) -> None:
    edited = Field(name="f", label="script", table="run", help="")
    chosen = Field(name="f", label="script", table="run", help="", choices=("数据" * 20, "b"))
    for field, typed in ((edited, text), (chosen, "数据" * 20)):
        for width in (30, 45, 80):
            rows = form_rows([field], {"f": typed}, 0, caret, width, True).rows
            assert max(map(row_width, rows)) <= max(width, 32)


def test_values_of_checkboxes_stand_below_those_of_other_fields() -> None:
    fields = [
        Field(name=f"f{check}", label="x", table="run", help="", value="VALUE", check=check)
        for check in (False, True)
    ]
    rows = [line for line in plain(form_rows(fields, {}, 0, 0, 80, False).rows) if "VALUE" in line]
    assert len({line.index("VALUE") for line in rows}) == 1


def test_paths_complete_as_far_as_they_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train_big.py", "notes.txt", ".hidden.py", "odd\x1b.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/run.py").write_text("")
    (tmp_path / "around").symlink_to("around")
    assert completed_path("tr", ".py") == ("train", ["train.py", "train_big.py"])
    assert completed_path("train.", ".py") == ("train.py", ["train.py"])
    assert completed_path("to", ".py") == ("tools/", ["tools/"])
    assert completed_path("tools/", ".py") == ("tools/run.py", ["tools/run.py"])
    assert completed_path(f"{tmp_path}/no", ".py")[0] == f"{tmp_path}/notes.txt"
    assert completed_path("nothing/", ".py") == ("nothing/", [])
    assert completed_path("odd", ".py") == ("odd", [])
    assert completed_path("a", ".py") == ("around", ["around"])


def launched(request: Request, ago_s: float = 0.0) -> None:
    """Leave the directory of a run that was launched so, some seconds ago."""
    record = run_directories.new_record(request.name or "x")
    record = msgspec.structs.replace(record, created=record.created - ago_s)
    run_directories.create(record, b"{}", {REQUEST_FILE: request_text(request, os.getcwd())})


def test_launches_come_back_without_their_secrets() -> None:
    for at in range(recent.MOST + 5):
        launched(Request(preset="ddp", script=f"t{at}.py"))
    launched(Request(command=("true",)))
    request = Request(
        preset="ddp",
        script="train.py",
        args=("--lr", "1", "--api-key", "sk-live-1234567890abcdef"),
        env={"LR": "1", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz012345"},
        grace_s=3.0,
        setup="export MY_TOKEN=s3cret",
        mounts={"/d": "sk-live-1234567890abcd"},
        env_on={"gpu*": {"MY_TOKEN": "s3cret"}},
    )
    launched(request)
    launched(request)
    forms = recent.read()
    assert len(forms) == recent.MOST
    assert forms[0] == LaunchForm(preset="ddp", script="train.py", options={"env": "LR=1", "grace_s": "3"})
    assert [each.script for each in forms].count("train.py") == 1


def test_the_question_counts_what_distui_sets_and_shows_what_was_chosen() -> None:
    text = "run  x\n\nenvironment (3 variables besides the inherited ones)\n  A=1  # distui\n  LR=1  # command line\n"
    rows = plain(folded_plan(f"{text}\nwritten\n  /path/*.json\n"))
    assert [row.strip() for row in rows if row.strip()] == [
        "run  x", "environment: 3 variables, e shows them", "LR=1  # command line",
    ]  # fmt: skip


def planned(tmp_path: Path, text: str, run: str = "r", **request: Any) -> Plan:
    (tmp_path / "train.py").write_text(text)
    place = Place(
        run=run, run_dir=str(tmp_path / "r"), cwd=str(tmp_path), python=sys.executable, gpus=0, cores=2, port=29400,
        ras_port=29401,
    )  # fmt: skip
    return make_plan(load("ddp"), Request(script="train.py", nproc_per_node=2, **request), place)


@pytest.mark.real
def test_the_trainings_python_names_the_line_of_a_syntax_error(tmp_path: Path) -> None:
    problem = syntax_problem(planned(tmp_path, "import torch\ndef x(:\n"))
    assert problem.startswith("train.py:2: syntax error (")
    assert syntax_problem(planned(tmp_path, "import torch\n")) == ""
    plan = planned(tmp_path, "def x(:\n")
    newer = tmp_path / "python"
    newer.write_text("#!/bin/sh\nexit 0\n")
    newer.chmod(0o755)
    assert syntax_problem(replace(plan, python=str(newer))) == ""
    assert syntax_problem(replace(plan, python=str(tmp_path / "missing"))) == ""


async def test_the_form_begins_with_the_run_at_hand(rig: Start) -> None:
    it = rig(play.running())
    form = LaunchForm(preset="fsdp2", script="train.py", args="--lr 1", nproc="4", options={"env": "LR=1"})
    it.source.form_of = lambda run_id: CopiedForm(form, "copied from minigpt")  # type: ignore[method-assign]
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+n")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert screen.form == form
        await it.until(lambda: screen.preview)
        await it.press("enter")
        assert isinstance(it.app.screen, ConfirmScreen)
        await it.press("escape", "2")
        assert screen.form.script == "train.py2", "what is typed first goes behind what stands there"
        await it.press("ctrl+u", *"new.py")
        assert screen.form.script == "new.py"


async def test_the_last_launch_comes_back_and_recent_ones_by_a_key(rig: Start) -> None:
    it = rig(play.running(), run=None)
    launched(Request(preset="ddp", script="old.py"), ago_s=60)  # virtual time does not pass between the two
    launched(Request(preset="ddp", script="new.py"))
    async with shown(it, 120, 40):
        await it.press("ctrl+n")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert screen.form.script == "new.py"
        await it.press("ctrl+r")
        assert screen.form.script == "old.py"


async def test_a_first_form_begins_as_the_settings_say(
    rig: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = settings_path()
    path.parent.mkdir(mode=0o700, parents=True)
    path.write_text('[launch]\npreset = "zero1"\nplace = "slurm/lab"\n')
    it = rig(play.running(), run=None)
    async with shown(it, 120, 40):
        await it.press("ctrl+n")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert (screen.form.preset, screen.form.place) == ("zero1", "slurm/lab")
        await it.until(lambda: "from your settings" in it.screen())


async def test_tab_completes_the_script_and_then_moves_on(
    rig: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("")
    (folder / "train_big.py").write_text("")
    async with shown(rig(play.running(), run=None), 120, 40) as it:
        await it.press("ctrl+n", *"tr", "tab")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert screen.form_view.text == "train"
        assert "train_big.py" in it.screen()
        await it.press(".", "tab")
        assert screen.form_view.text == "train.py"
        assert screen.form_view.current.name == "script"
        await it.press("tab")
        assert screen.form_view.has_focus
        assert screen.form_view.current is screen.form_view.fields[1]


async def test_what_is_typed_after_tab_goes_into_the_next_field_and_is_no_key(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        theme = it.app.theme
        await it.press("ctrl+n", *"train.py", "tab", *"--hang-at 30 --lr 1e-2")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert (screen.form.script, screen.form.args) == ("train.py", "--hang-at 30 --lr 1e-2")
        assert "tab ↑↓ field" in it.screen().splitlines()[-1]
        await it.press("shift+tab")
        assert screen.form_view.current.name == "script"
        await it.press("shift+tab")
        assert screen.presets.has_focus
        await it.press("t", "q")
        assert (it.app.theme, screen.form.script) == (theme, "train.pytq")
        assert screen.form_view.has_focus
        screen.form_view.go(screen.form_view.fields[-1].name)
        await it.press("tab")
        assert not screen.form_view.has_focus


@for_each("ended", [False, True])
def test_the_form_offers_a_name_that_no_other_run_has(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("res", "res-2"):
        run_directories.create(run_directories.new_record(name), b"{}", {})
    monkeypatch.setattr(run_directories, "ended", lambda entry: ended)
    form = LaunchForm(preset="ddp", script="job/res.py")
    assert with_free_name(form).option("name") == "res-3", "the name that it would get"
    assert with_free_name(replace(form, options={"name": "res-2"})).option("name") == "res-3"
    assert with_free_name(replace(form, options={"name": "mine"})).option("name") == "mine"
    assert with_free_name(LaunchForm(preset="ddp")).option("name") == ""
    other = "res" if ended else "res-3"
    assert run_directories.free_name("res") == other, (
        "for a launch by a verb the names of ended runs are free"
    )


async def test_digits_typed_into_a_field_stay_there(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+n", *"4567")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert screen.form_view.text == "4567"
        await it.press("escape")
        assert it.app.view.pane == "overview"


def test_the_form_of_a_run_is_what_was_launched_in_the_environment_of_its_end(tmp_path: Path) -> None:
    record = run_directories.new_record("mine")
    asked = {"LR": "1", "HF_TOKEN": "hf_secret"}
    request = Request(
        preset="ddp",
        script="train.py",
        args=("--lr", "3e-4"),
        nproc_per_node=2,
        env=asked,
        nccl={"NCCL_DEBUG": "INFO"},
    )
    path = run_directories.create(record, b"{}", {REQUEST_FILE: request_text(request, str(tmp_path))})
    entry = run_directories.at(path)
    assert entry is not None
    form = recent.copied(entry, str(tmp_path)).form
    assert form == LaunchForm(
        preset="ddp",
        script="train.py",
        args="--lr 3e-4",
        nproc="2",
        options={"name": "mine", "env": "LR=1"},
        nccl_debug="INFO",
    )
    assert (
        recent.copied(entry, str(tmp_path)).note
        == "copied from mine · without HF_TOKEN: secrets are never stored"
    )
    elsewhere = recent.copied(entry, "/")
    assert elsewhere.form.script == str(tmp_path / "train.py")
    assert f"starts here, not in {tmp_path}" in elsewhere.note
    changed = AttemptStarted(
        2, "restart", 2, (), {"LR": None, "SEED": "9", "NCCL_DEBUG": "WARN", "TOKEN": MASK}
    )
    (path / journal.NAME).write_bytes(msgspec.json.encode(Stamped(time=1.0, event=changed, seq=1)) + b"\n")
    form = recent.copied(entry, str(tmp_path)).form
    assert (form.option("env"), form.nccl_debug) == ("SEED=9", "WARN"), (
        "as `:restart env` left it; secrets stay out"
    )
    (path / REQUEST_FILE).write_text("{}")
    with pytest.raises(RunError):
        recent.copied(entry, str(tmp_path))


def test_the_form_of_a_run_names_the_options_whose_rows_are_at_its_end(tmp_path: Path) -> None:
    request = Request(
        preset="ddp",
        script="pkg.train",
        module=True,
        hook=False,
        grace_s=7.0,
        restart_limit=5,
        args=("--key", MASK),
    )
    files = {REQUEST_FILE: request_text(request, str(tmp_path))}
    entry = run_directories.at(run_directories.create(run_directories.new_record("mine"), b"{}", files))
    assert entry is not None
    form, note = recent.copied(entry, str(tmp_path))
    again = requested(form)
    assert (again.module, again.hook, again.grace_s, again.restart_limit) == (True, False, 7.0, 5)
    assert (
        "also: --module --no-hook --grace 7 --restarts 5 · without the arguments: secrets are never" in note
    )
