"""`[launch]` of settings.toml: preset and place where neither command line nor form says them, and nothing more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from each import for_each

from distui.runners.launch import launch_settings
from distui.runners.launch.launch_settings import LaunchDefaults, of_table
from distui.runners.run.settings_file import settings_path
from distui.tui.cli import main
from distui.tui.command_words import WrongUsage, understood

SCRIPT = "import torch\n"
pytestmark = pytest.mark.torch  # a plan asks the interpreter for it


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    path = settings_path()
    path.parent.mkdir(mode=0o700, parents=True)
    return path


def planned(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The preset of a plan, and what was said beside it."""
    code = main([*words.split()])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)["preset"], err


@for_each(
    ("table", "defaults"),
    [
        ({}, LaunchDefaults()),
        ({"preset": "fsdp2"}, LaunchDefaults("fsdp2")),
        ({"place": "slurm/lab"}, LaunchDefaults("", "slurm/lab")),
        ({"place": "hosts me@gpu1,gpu2"}, LaunchDefaults("", "hosts me@gpu1,gpu2")),
        ({"preset": "", "place": ""}, LaunchDefaults()),
    ],
)
def test_what_the_section_means(table: dict[str, str], defaults: LaunchDefaults) -> None:
    assert of_table(table, Path("settings.toml")) == defaults


@for_each(
    ("table", "key"),
    [
        (3, "launch"), ({"preset": 3}, "launch.preset"), ({"preset": "--env"}, "launch.preset"),
        ({"preset": ["ddp"]}, "launch.preset"), ({"place": "hosts"}, "launch.place"),
        ({"place": "hosts -oProxyCommand=x"}, "launch.place"), ({"place": "hosts a,,b"}, "launch.place"),
        ({"place": "two words"}, "launch.place"), ({"place": "hosts a\nb"}, "launch.place"),
        ({"presets": "ddp"}, "preset"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_a_sentence_and_the_rest_counts(table: object, key: str) -> None:
    defaults = of_table(table, Path("settings.toml"))
    assert len(defaults.problems) == 1
    assert key in defaults.problems[0]
    assert defaults.preset == defaults.place == ""


def test_the_settings_name_the_preset_and_the_command_line_another(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.write_text('[launch]\npreset = "zero1"\n')
    for words in ("plan --json -- train.py", "plan --json train.py", "plan --json train.py --lr 3"):
        preset, err = planned(words, capsys)
        assert preset == "zero1"
        assert "Preset zero1, as launch of the settings says" in err
    preset, err = planned("plan ddp --json -- train.py", capsys)
    assert (preset, "settings" in err) == ("ddp", False)


@pytest.mark.real
def test_the_place_is_where_a_launch_goes_unless_it_says_one(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.write_text('[launch]\nplace = "hosts nowhere.invalid"\n')
    assert main(["plan", "ddp", "--", "train.py"]) != 0
    err = capsys.readouterr().err
    assert "place hosts nowhere.invalid, as launch of the settings says" in err
    assert "nowhere.invalid" in err.splitlines()[-1]
    preset, err = planned("plan ddp --on local --json -- train.py", capsys)
    assert (preset, "nowhere" in err) == ("ddp", False)


def test_without_the_section_a_launch_names_its_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--", "train.py"]) == 2
    assert "No preset" in capsys.readouterr().err
    with pytest.raises(WrongUsage, match=r"no PRESET before train\.py"):
        understood(["plan", "train.py"], None, lambda word: False)


def test_a_wrong_section_costs_a_sentence_alone(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.write_text('[launch]\npreset = 3\nplace = "local"\n')
    preset, err = planned("plan ddp --json -- train.py", capsys)
    assert preset == "ddp"
    assert "launch.preset must be the name of a preset" in err


def test_a_preset_that_is_not_there_is_named(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.write_text('[launch]\npreset = "fsdp9"\n')
    assert main(["plan", "--", "train.py"]) == 2
    assert "fsdp9" in capsys.readouterr().err


def test_damage_of_the_file_names_nothing(settings: Path) -> None:
    settings.write_text("[launch\n")
    assert launch_settings.load() == LaunchDefaults(problems=launch_settings.load().problems)
    assert len(launch_settings.load().problems) == 1
