"""A saved preset is the base and what differs, and loads as what was seen."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from distui.presets import model
from distui.presets.finding import PresetError
from distui.presets.load import Library, library, load
from distui.presets.preset_text import check_saved, saved_text


def shelf(tmp_path: Path) -> Library:
    return library(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "config")})


def written(tmp_path: Path, name: str, text: str) -> Library:
    folder = tmp_path / "config" / "distui" / "presets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    return shelf(tmp_path)


def test_it_loads_again_as_what_was_saved(tmp_path: Path) -> None:
    overrides = (
        "strategy.wrap=[\"Block\", \"He\\\"ad\"]", "mesh.tp=2", "mesh.sequence_parallel=true", "hook=false",
        "nccl.NCCL_ALGO=Ring", "env.A=1 2", "deepspeed.zero.x=3", "deepspeed.zero.y=0.5", "restart.backoff_s=2",
        "hosts.gpu0.lab.A=1",
    )  # fmt: skip
    before = shelf(tmp_path)
    text = saved_text("mine", "fsdp2", overrides, before)
    check_saved("mine", text, before)
    after = load("mine", presets=written(tmp_path, "mine", text)).preset
    wanted = model.flat(load("fsdp2", overrides, presets=before).preset)
    assert {**model.flat(after), "title": wanted["title"]} == wanted
    assert after.title.endswith("as mine")


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    text = saved_text("mine", "ddp", ("batch.micro=4", "batch.micro=8"), shelf(tmp_path))
    table = tomllib.loads(text)
    assert table["base"] == "ddp"
    assert table["batch"] == {"micro": 8}
    assert set(table) == {"base", "title", "summary", "batch"}


def test_a_secret_is_not_written(tmp_path: Path) -> None:
    text = saved_text("mine", "ddp", ("env.HF_TOKEN=hf_abcdef",), shelf(tmp_path))
    assert "hf_abcdef" not in text
    assert "# HF_TOKEN is a secret" in text
    assert tomllib.loads(text)["env"] == {}


def test_a_bad_override_or_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match="takes a whole number"):
        saved_text("mine", "ddp", ("strategy.bucket_cap_mb=x",), shelf(tmp_path))
    with pytest.raises(PresetError, match="is not a valid preset name"):
        saved_text("../mine", "ddp", (), shelf(tmp_path))


def test_names_do_not_go_in_a_circle(tmp_path: Path) -> None:
    first = shelf(tmp_path)
    one = written(tmp_path, "one", saved_text("one", "ddp", (), first))
    two = written(tmp_path, "two", saved_text("two", "one", (), one))
    with pytest.raises(PresetError, match="circular"):
        check_saved("one", saved_text("one", "two", (), two), two)
    with pytest.raises(PresetError, match="is this preset itself"):
        check_saved("one", saved_text("one", "one", (), two), two)
    check_saved("ddp", saved_text("ddp", "ddp", ("mesh.cp=1",), two), two)
