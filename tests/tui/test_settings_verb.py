"""`distui settings`: every value and where it comes from, a file to begin with; all themes of Textual, kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import scripted as play
from conftest import Start, shown
from each import for_each
from test_theme import contrast, hexed
from textual.theme import BUILTIN_THEMES

from distui.runners.diagnosis import diagnosis_settings
from distui.runners.logs import log_settings
from distui.runners.notify import channels
from distui.runners.removal import retention
from distui.runners.run.settings_file import settings_path
from distui.runners.telemetry import export_settings
from distui.tui import colours
from distui.tui.cli import main
from distui.tui.rows.command_line import RunNames, candidates, parse
from distui.tui.rows.themes import ALL_THEMES, TEXTUAL_THEMES
from distui.tui.rows.typed_commands import CommandError
from distui.tui.setting_guide import GUIDES, OF_RUNS, example
from distui.tui.setting_keys import KEYS, UserSettings
from distui.tui.user_settings import load

LEAST = {
    "text": 7.0,
    "head": 7.0,
    "accent": 4.0,
    "ok": 4.0,
    "warn": 4.0,
    "bad": 3.9,
    "key": 4.0,
    "dim": 3.3,
    "stale": 3.3,
}
"""Contrast on the ground of a theme that is not ours: what has to be read, and what stands back."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = settings_path()
    path.parent.mkdir(mode=0o700, parents=True)
    return path


def test_every_key_takes_its_example_and_its_default() -> None:
    for name, key in KEYS.items():
        assert key.fits(key.example), name
        assert key.default is None or key.fits(key.default), name
    for name, guide in GUIDES.items():
        assert (guide.default is None) == bool(guide.without), name
        assert not guide.about.endswith("."), name


def test_a_preset_that_nobody_has_made_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('[launch]\npreset = "dpd"\n')
    assert main(["settings"]) == 1
    told = capsys.readouterr().err
    assert told.endswith("launch.preset: there is no preset dpd here; did you mean ddp?\n")
    file.write_text('[launch]\npreset = "ddp"\n')
    assert main(["settings"]) == 0


def test_the_example_changes_nothing_until_a_comment_is_taken_away(file: Path) -> None:
    file.write_text(example())
    assert load(file) == (UserSettings(), [])
    whole = re.sub(r"^# (\w+ = )", r"\1", example(), flags=re.MULTILINE)
    file.write_text(whole)
    settings, problems = load(file)
    assert problems == []
    for name, key in KEYS.items():
        value = tuple(key.example) if isinstance(key.example, list) else key.example
        assert getattr(settings, key.field) == value, name
    assert channels.load().send == ("terminal",)
    assert log_settings.load() == log_settings.LogSettings(200_000_000, "200MB")
    assert diagnosis_settings.load() == diagnosis_settings.DiagnosisSettings(1200.0, "20m")
    assert retention.load() == retention.Retention(30 * 86400.0, 200)
    assert export_settings.load().otlp == export_settings.OtlpExport(
        *(guide.example for name, guide in OF_RUNS.items() if "otlp" in name)
    )
    assert max(map(len, example().splitlines())) <= 121


def test_each_value_is_shown_with_where_it_comes_from(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        'theme = "nord"\n[ranks]\nsort = "step"\n[notify]\nsend = ["terminal:hang"]\n[export]\nopenmetrics_dir = "/m"\n'
        '[logs]\ncap = "200MB"\n[retention]\nkeep = 7\n'
    )
    assert main(["settings", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {row["key"]: (row["value"], row["origin"]) for row in shown["settings"]}
    assert rows.keys() == GUIDES.keys()
    assert rows["logs.cap"] == ("200MB", str(file))
    assert rows["retention.keep"] == (7, str(file))
    assert rows["retention.older_than"] == (None, "default")
    assert rows["export.openmetrics_dir"] == ("/m", str(file))
    assert rows["export.otlp_endpoint"] == (None, "default")
    assert rows["notify.send"] == (["terminal:hang"], str(file))
    assert rows["theme"] == ("nord", str(file))
    assert rows["ranks.sort"] == ("step", str(file))
    assert rows["curves.window"] == ("5m", "default")
    assert rows["hosts"] == (None, "default")
    assert main(["settings"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf'^theme +"nord" +{re.escape(str(file))}$', text, re.MULTILINE)
    assert re.search(r"^gpus.sort +by index +default$", text, re.MULTILINE)
    file.write_text("")
    assert main(["settings"]) == 0
    assert re.search(r"^logs.cap +logs are kept whole +default$", capsys.readouterr().out, re.MULTILINE)


def test_a_collector_is_shown_without_secrets_and_an_extra_that_is_missing_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "hf_" + "abCdeFGhijKlmNopQRsTuvWxyZabcdEfgh"
    file.write_text(
        f'[export]\notlp_endpoint = "https://collect.example/{token}"\notlp_headers_file = "otlp-headers"\n'
    )
    headers = file.parent / "otlp-headers"
    headers.write_text("Authorization: Bearer secret-of-the-file\n")
    headers.chmod(0o600)
    assert main(["settings", "--json"]) == 0
    text = capsys.readouterr().out
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(text)["settings"]}
    assert rows["export.otlp_endpoint"] == ("https://collect.example/***", str(file))
    assert rows["export.otlp_headers_file"] == ("otlp-headers", str(file))
    assert rows["export.otlp_interval"] == ("10s", "default")
    assert "secret-of-the-file" not in text
    monkeypatch.setattr(export_settings, "is_installed", lambda: False)
    assert main(["settings"]) == 1
    assert "OTLP needs the package opentelemetry-proto: `" in capsys.readouterr().err


@for_each(
    "text", ['theme = "blue"\n', "theme = \n", 'future = "x"\n', '[notify]\nsend = ["terminal", "teem"]\n']
)
def test_a_file_that_is_not_right_is_named_and_exits_with_1(
    file: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["settings", "--json"]) == 1
    told = capsys.readouterr()
    assert len(json.loads(told.out)["problems"]) == 1
    assert told.err.startswith("distui: ")
    assert str(file) in told.err


@for_each(
    ("text", "where", "why"),
    [
        (
            '[notify.channels.t]\ntype = "webhook"\nurl = "https://HOST/x"\n',
            "notify.channels.t",
            "`chmod 600` it",
        ),
        ('[notify.channels.t]\ntype = "webhook"\nurl_file = "no"\n', "notify.channels.t", "No such file"),
        ('[notify.channels.t]\ntype = "webhook"\nurl_file = "s"\n', "notify.channels.t", "`chmod 600` it"),
        (
            '[export]\notlp_endpoint = "http://h:1"\notlp_headers_file = "s"\n',
            "export.otlp_headers_file",
            "`chmod 600` it",
        ),
    ],
)
def test_secrets_that_nothing_could_use_are_named(
    file: Path, text: str, where: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Notices and metrics would not be sent: what only a run's agent would say otherwise."""
    file.write_text(text)
    (file.parent / "s").write_text("https://HOST/secret-of-the-file\n")
    file.chmod(0o644)
    (file.parent / "s").chmod(0o644)
    assert main(["settings"]) == 1
    told = capsys.readouterr()
    assert f"{file}: {where}: " in told.err
    assert why in told.err
    assert "secret-of-the-file" not in told.out + told.err


@for_each(
    ("text", "why"),
    [
        ('[logs]\ncap = "1MB"\n', "logs.cap must be a size of 16MiB or more"),
        ("[logs]\ncap = 200000000\n", "logs.cap must be a size of 16MiB or more"),
        ('[logs]\ncap = "200MB"\ncaps = 1\n', "there is no setting logs.caps; did you mean cap?"),
        ("logs = 5\n", "logs must be a section, [logs]"),
    ],
)
def test_a_cap_that_is_none_caps_nothing_and_is_named(
    file: Path, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert log_settings.load().cap == 0
    assert main(["settings", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [why in problem for problem in shown["problems"]] == [True]
    assert ("logs.cap", None, "default") in [
        (row["key"], row["value"], row["origin"]) for row in shown["settings"]
    ]


def test_all_themes_of_textual_are_there_and_can_be_read() -> None:
    assert set(TEXTUAL_THEMES) == BUILTIN_THEMES.keys()
    for name, theme in BUILTIN_THEMES.items():
        table = colours.styles(name)
        ground = theme.to_color_system().generate()["background"]
        if ground == "ansi_default":
            assert table is colours.styles(colours.ANSI)
            continue
        assert table is colours.styles(colours.DARK if theme.dark else colours.LIGHT)
        for style, least in LEAST.items():
            assert contrast(hexed(table[style].color), ground) >= least, (name, style)


def test_the_command_line_of_the_cockpit_takes_a_theme() -> None:
    assert parse("theme", lambda: "1").action == "theme"
    assert parse("theme nord", lambda: "1").action == "theme('nord')"
    assert candidates("theme sol", RunNames()) == ["solarized-light", "solarized-dark"]
    with pytest.raises(CommandError, match="no theme 'nordd': did you mean nord"):
        parse("theme nordd", lambda: "1")


async def test_a_chosen_theme_is_kept(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        for theme in ("dracula", "solarized-light"):
            it.app.action_theme(theme)
            await it.until(lambda theme=theme: it.app.theme == theme)  # type: ignore[misc]
        await it.until(lambda: load(settings_path())[0].theme == "solarized-light")
        it.app.action_theme()
        assert it.app.theme == "distui-dark", "the key goes through distui's own"
    assert {"nord", "dark"} <= set(ALL_THEMES)
