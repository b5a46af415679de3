"""The launch screen on the real presets and the real plan, by keys alone, in 80 × 24."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Rig, shown

from distui.presets import model, nccl, trusted_files
from distui.presets.load import BUILTIN, load
from distui.tui.app import CockpitApp
from distui.tui.rows.form_fields import NAMED, SET
from distui.tui.screens.launch import LaunchScreen
from distui.tui.screens.modal import ConfirmScreen
from distui.tui.source import LocalSource

THEIRS = (
    '[preset.ddp]\nbase = "ddp"\nenv = { LD_PRELOAD = "/tmp/evil.so" }\n[preset.theirs]\nbase = "ddp"\n'
)
Here = Callable[[], Rig]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """The cockpit of this machine, in a directory with a script; no run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")

    def make() -> Rig:
        made = Rig(tmp_path / "run", LocalSource())  # type: ignore[arg-type]
        made.app = CockpitApp(made.source, None, keys=tmp_path / "keys.toml")
        return made

    return make


async def opened(it: Rig, *keys: str) -> LaunchScreen:
    """The launch screen with a script in it, and its first plan."""
    await it.press("ctrl+n", *"train.py")
    screen = it.app.screen
    assert isinstance(screen, LaunchScreen)
    await it.until(lambda: screen.preview)
    await it.press(*keys)
    return screen


async def chosen(it: Rig, screen: LaunchScreen, name: str) -> None:
    """A preset, by searching for it; then back in the form."""
    await it.press("shift+tab", "slash", *name, "enter")
    screen.presets.go(name)
    await it.press("enter")
    assert screen.form_view.has_focus


async def at_field(it: Rig, screen: LaunchScreen, name: str) -> None:
    """The cursor on a field; the first test walks there by keys."""
    screen.form_view.go(name)
    await it.pilot.pause()


async def planned(it: Rig, screen: LaunchScreen, wanted: str) -> str:
    """The plan, once it holds a text."""
    await it.until(
        lambda: screen.preview and wanted in screen.preview.text + "".join(screen.preview.problems)
    )
    assert screen.preview is not None
    return screen.preview.text


async def test_every_field_is_reached_and_seen_and_every_choice_can_be_changed(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it)
        await chosen(it, screen, "fsdp2")
        form = screen.form_view
        seen, changed = [], []
        for one in form.fields:
            assert form.current.name == one.name
            assert one.label in it.screen(), one.name
            assert one.help.split()[-1] in it.screen(), one.name  # help, to its last word
            seen.append(one.name)
            if one.choices or one.check:
                before = dict(form.typed)
                await it.press("right")
                assert dict(form.typed) != before, one.name
                await it.press("backspace")
                assert dict(form.typed) == before, one.name
                changed.append(one.name)
            await it.press("down")
        flat = {path for path in model.flat(load("fsdp2").preset) if path not in ("title", "summary")}
        topology = {"topology.nnodes", "topology.nnodes_min", "topology.nproc_per_node"}  # ranks and nodes
        assert {f"{SET}{path}" for path in flat - topology} <= set(seen)
        assert {f"{NAMED}{name}" for name in nccl.nccl_presets()} <= set(changed)
        assert {"nccl_debug", f"{SET}hook", f"{SET}strategy.kind", f"{SET}precision.param"} <= set(changed)


async def test_all_presets_are_listed_and_the_one_at_hand_says_when_to_take_it(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it, "shift+tab")
        for name in BUILTIN:
            assert screen.presets.current is not None
            assert screen.presets.current.name == name
            preset = load(name).preset
            lines = it.screen().splitlines()[:3]
            assert preset.title in lines[0]
            assert " ".join(" ".join(lines[1:]).split()) == preset.summary  # to its last word
            await it.press("down")


async def test_a_search_takes_words_in_any_order_and_esc_ends_it(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it)
        assert "/ search" not in it.screen().splitlines()[-1], "in a field a slash is a letter"
        await it.press("shift+tab")
        await it.until(lambda: "/ search" in it.screen().splitlines()[-1])
        await it.press("slash", *"parallel tensor")
        await it.until(lambda: len(screen.presets.listed) < len(BUILTIN))
        assert [one.name for one in screen.presets.listed] == ["tp", "tp-sp", "fsdp2-tp"]
        assert f"presets 3 of {len(BUILTIN)}" in it.screen()
        await it.press(*"xyz")
        assert "no match: esc clears the search" in it.screen()
        await planned(it, screen, "no preset is chosen")
        await it.press("escape")
        assert len(screen.presets.listed) == len(BUILTIN)
        assert it.app.screen is screen
        await it.press("escape")
        assert it.app.screen is not screen


async def test_a_message_of_the_form_covers_nothing_and_goes_when_something_is_typed(here: Here) -> None:
    async with shown(here()) as it:
        await it.press("ctrl+n")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        await it.until(lambda: screen.preview)
        await it.press("enter")
        await it.until(lambda: screen.flash.display)
        *_, message, keys = it.screen().splitlines()
        assert it.told().splitlines()[-1].startswith(message.strip(" ✖")[:30])
        assert "esc back" in keys
        await it.press(*"train.py")
        assert not screen.flash.display


@pytest.mark.torch
async def test_a_changed_field_changes_the_plan(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it)
        await chosen(it, screen, "ddp")
        await at_field(it, screen, f"{SET}launcher.monitor_interval_s")
        await it.press(*"0.75")
        assert "--monitor-interval 0.75" in await planned(it, screen, "--monitor-interval 0.75")
        await at_field(it, screen, f"{NAMED}sockets-only")
        await it.press("space")
        text = await planned(it, screen, "NCCL_IB_DISABLE=1")
        assert "sockets-only: NCCL_NET=Socket" in text
        assert screen.form.overrides == ("launcher.monitor_interval_s=0.75",)
        assert screen.form.nccl_presets == ("sockets-only",)


@pytest.mark.torch
async def test_another_strategy_brings_its_own_fields_and_only_those_are_sent(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it)
        await chosen(it, screen, "ddp")
        await at_field(it, screen, f"{SET}strategy.bucket_cap_mb")
        await it.press(*"50")
        await at_field(it, screen, f"{SET}strategy.kind")
        await it.press("right", "right", "right")  # zero1, fsdp1, fsdp2
        names = [one.name for one in screen.form_view.fields]
        assert f"{SET}strategy.reshard_after_forward" in names
        assert f"{SET}mesh.tp" in names
        assert f"{SET}strategy.bucket_cap_mb" not in names
        assert screen.form.overrides == ("strategy.kind=fsdp2",)
        assert "strategy fsdp2" in await planned(it, screen, "strategy fsdp2")
        await it.press("left", "left", "left")
        assert set(screen.form.overrides) == {"strategy.bucket_cap_mb=50"}


BAD_VALUES = [
    (f"{SET}restart.limit", "x", 'restart.limit takes a whole number, not "x"'),
    (f"{SET}batch.micro", "0", "batch.micro takes 1 or more, not 0"),
    (f"{SET}launcher.args", '"a', "launcher.args: a quote is open"),
    ("args", "'a", "arguments: a quote is open"),
    ("nproc", "many", "'many' is not valid: write a number, gpu, cpu or auto"),
    ("further", "no.such=1", "no.such is not a field of a preset"),
]
"""A field, what is typed into it, and what is wrong with that."""


async def test_a_bad_value_is_one_sentence_and_starts_nothing(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it)
        await chosen(it, screen, "ddp")
        for name, typed, sentence in BAD_VALUES:
            await at_field(it, screen, name)
            await it.press(*typed)
            assert await planned(it, screen, sentence) == "", name
            assert screen.preview is not None
            assert len(screen.preview.problems) == 1, name
            assert "✖" in it.screen(), name
            await it.press("enter")
            assert sentence in it.told(), name
            assert it.app.screen is screen, name
            screen.form_view.set(name, "")


@pytest.mark.torch
async def test_saving_writes_what_differs_and_the_new_preset_is_at_hand(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "config/distui/presets/night.toml"
    async with shown(here()) as it:
        screen = await opened(it)
        await chosen(it, screen, "fsdp2")
        await at_field(it, screen, "nproc")
        await it.press("2")
        await at_field(it, screen, f"{SET}precision.param")
        await it.press("right")
        await it.press("ctrl+s", *"night", "enter")
        await it.until(lambda: "Saved as" in it.told())
        table = tomllib.loads(file.read_text())
        assert {**table, "title": "", "summary": ""} == {
            "base": "fsdp2", "title": "", "summary": "", "precision": {"param": "bf16"},
            "topology": {"nproc_per_node": 2},
        }  # fmt: skip
        assert screen.presets.current is not None
        assert (screen.presets.current.name, screen.presets.current.origin) == ("night", "yours")
        assert screen.form.overrides == ()
        assert screen.form.script == "train.py"
        await it.until(lambda: screen.preview)
        assert "nproc_per_node 2" in await planned(it, screen, "preset       night")


async def test_a_secret_is_not_saved_and_stays_in_the_form(here: Here, tmp_path: Path) -> None:
    async with shown(here()) as it:
        screen = await opened(it)
        screen.form_view.set("option.env", "LR=1 HF_TOKEN=hf_abcdef")
        await it.press("ctrl+s", *"night", "enter")
        await it.until(lambda: "Saved as" in it.told())
        text = (tmp_path / "config/distui/presets/night.toml").read_text()
        assert "hf_abcdef" not in text
        assert tomllib.loads(text)["env"] == {"LR": "1"}
        assert screen.form.option("env") == "LR=1 HF_TOKEN=hf_abcdef"


async def test_a_preset_is_replaced_only_when_that_is_said(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "config/distui/presets/night.toml"
    file.parent.mkdir(parents=True)
    file.write_text('base = "ddp"\n')
    async with shown(here()) as it:
        screen = await opened(it, "ctrl+s", *"night", "enter")
        await it.until(lambda: isinstance(it.app.screen, ConfirmScreen))
        assert "Replace the preset night?" in it.screen()
        await it.press("enter")
        assert file.read_text() == 'base = "ddp"\n'
        await it.press("ctrl+s", *"night", "enter")
        await it.until(lambda: isinstance(it.app.screen, ConfirmScreen))
        await it.press("y")
        await it.until(lambda: "Saved as" in it.told())
        assert tomllib.loads(file.read_text())["base"] == "single"
        await it.until(lambda: screen.presets.current and screen.presets.current.name == "night")
        await it.press("ctrl+s", *"night", "enter")
        await it.until(lambda: "night cannot build on itself" in it.told())


async def test_a_preset_that_does_not_load_says_why_and_starts_nothing(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "config/distui/presets"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("[strategy]\nkind = \n")
    (folder / "wrong.toml").write_text('[strategy]\nkind = "ddq"\n')
    async with shown(here()) as it:
        screen = await opened(it)
        assert [one.name for one in screen.presets.entries if one.problem] == ["wrong", "broken"]
        await chosen(it, screen, "broken")
        await planned(it, screen, "broken.toml line 2")
        assert "not valid TOML" in " ".join(it.screen().split())
        await it.press("enter")
        assert it.app.screen is screen
        await it.press("ctrl+s")
        assert "choose one first" in it.told()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.torch
@pytest.mark.parametrize("text", [THEIRS, "x = ["], ids=["presets", "no TOML"])
async def test_a_strangers_project_file_is_named_and_nothing_of_it_is_taken(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """In a folder above, where everybody may put files."""
    shared = tmp_path / "shared"
    mine = shared / "mine"
    mine.mkdir(parents=True)
    shared.chmod(0o1777)
    file = shared / "distui.toml"
    file.write_text(text)
    os.chown(file, 65534, 65534)
    (mine / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(mine)
    owner = trusted_files.user(65534)
    async with shown(here(), 120, 40) as it:
        screen = await opened(it)
        assert [one.name for one in screen.presets.entries] == [*BUILTIN, "distui.toml"]
        await chosen(it, screen, "ddp")
        plan = await planned(it, screen, "passed over")
        assert "LD_PRELOAD" not in plan
        assert f"{file} is passed over: it belongs to {owner}." in plan
        await chosen(it, screen, "distui.toml")
        said = await planned(it, screen, "passed over")
        assert said == "", "there is nothing to start"
        assert screen.preview is not None
        assert screen.preview.problems[0].startswith(f"{file} is passed over: it belongs to {owner}.")
        assert f"is passed over: it belongs to {owner}" in " ".join(it.screen().split())
        await it.press("enter")
        assert it.app.screen is screen


@pytest.mark.torch
async def test_a_projects_preset_is_named_with_its_file_and_its_variables_before_anything_starts(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "distui.toml"
    file.write_text('[preset.theirs]\nbase = "ddp"\nenv = { LD_PRELOAD = "/tmp/x.so" }\n')
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    async with shown(here(), 160, 50) as it:
        screen = await opened(it)
        await chosen(it, screen, "theirs")
        plan = await planned(it, screen, "LD_PRELOAD")
        assert f"project {file}" in next(line for line in plan.splitlines() if line.startswith("preset"))
        assert f"LD_PRELOAD=/tmp/x.so  # preset, project {file}" in plan
        await it.press("ctrl+l")
        await it.until(lambda: it.app.screen is not screen)
        assert str(file) in "".join(it.screen().split()), "the question names the file, too"
        await it.press("escape")


async def test_a_project_file_that_cannot_be_read_does_not_end_the_cockpit(
    here: Here, tmp_path: Path
) -> None:
    (tmp_path / "distui.toml").write_text("x = [")
    async with shown(here()) as it:
        screen = await opened(it)
        await planned(it, screen, "not valid TOML")
        await it.press("enter")
        assert it.app.screen is screen
