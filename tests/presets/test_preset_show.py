"""The text of presets: it loads again, says origins and hides secrets."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path

from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.presets import model
from distui.presets.load import BUILTIN, entries, library, load
from distui.presets.model import Loaded, Preset
from distui.presets.preset_text import list_dict, list_text, new_text, show_dict, show_text
from distui.presets.secrets import is_secret

NOWHERE: dict[str, str] = {"HOME": "/nonexistent"}


def shipped(name: str, *overrides: str) -> Loaded:
    return load(name, overrides, cwd=Path("/"), env=NOWHERE)


def reloaded(text: str, name: str = "again") -> Preset:
    """What `text` loads to as a user's preset file."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home, ".config", "distui", "presets", f"{name}.toml")
        file.parent.mkdir(parents=True)
        file.write_text(text, "utf-8")
        return load(name, cwd=Path(home), env={"HOME": home}).preset


@for_each("name", ["single", "ddp", "fsdp2", "zero1"])
def test_every_value_has_an_origin(name: str) -> None:
    lines = show_text(shipped(name, "restart.limit=1")).splitlines()
    values = [line for line in lines if " = " in line and not line.startswith("#")]
    assert "limit = 1  # --set restart.limit" in values
    assert "grace_s = 30.0  # default" in values
    assert f'kind = "{name}"  # builtin {name}.toml' in values
    assert all("  # " in line for line in values)


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
VARIABLE = st.from_regex(r"[A-Za-z_]?[A-Za-z0-9][A-Za-z0-9_]{0,11}", fullmatch=True).filter(
    lambda name: not is_secret(name)
)
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "title": TEXT,
        "summary": TEXT,
        "hook": st.booleans(),
        "strategy.bucket_cap_mb": st.integers(1, 10**9),
        "strategy.static_graph": st.booleans(),
        "launcher.grace_s": st.floats(0, 1e300),
        "launcher.args": st.lists(TEXT, max_size=3).map(tuple),
        "topology.nproc_per_node": st.one_of(st.integers(1, 64), st.sampled_from(["gpu", "cpu", "auto"])),
        "nccl.NCCL_IB_HCA": TEXT,
    },
)


@settings(max_examples=60, deadline=None)
@given(values=OVERRIDES, env=st.dictionaries(VARIABLE, TEXT, max_size=3), origin=TEXT)
def test_what_is_shown_loads_to_the_same_preset(
    values: dict[str, model.Value], env: dict[str, str], origin: str
) -> None:
    values = {**values, **{f"env.{name}": value for name, value in env.items()}}
    preset = model.build("again", values)
    text = show_text(Loaded(preset=preset, origins=dict.fromkeys(values, origin)))
    assert reloaded(text) == preset


def test_secrets_are_masked_in_both_forms() -> None:
    loaded = shipped("ddp", "env.HF_TOKEN=hunter2", "env.WANDB_API_KEY=hunter2", "env.PLAIN=seen")
    assert "hunter2" not in show_text(loaded)
    document = show_dict(loaded)
    assert "hunter2" not in str(document)
    assert document["values"]["env.HF_TOKEN"] == "***"
    assert document["values"]["env.PLAIN"] == "seen"
    assert document["origins"]["env.PLAIN"] == "--set env.PLAIN"
    assert document["origins"]["hook"] == "default"


def test_new_text_is_the_base_until_edited() -> None:
    base = shipped("zero1")
    text = new_text("mine", base)
    fresh = reloaded(text, "mine")
    assert fresh.title == "mine"
    assert (fresh.strategy, fresh.restart, fresh.topology) == (
        base.preset.strategy,
        base.preset.restart,
        base.preset.topology,
    )
    edited = reloaded(
        text.replace("# limit = 3", "limit = 8").replace("# hook = true", "hook = false"), "mine"
    )
    assert edited.restart.limit == 8
    assert not edited.hook
    assert tomllib.loads(text)["base"] == "zero1"


def test_the_list_shows_what_loads_and_says_what_does_not(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "distui" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('base = "ddp"\ntitle = "My own"\nsummary = "For me."')
    (folder / "torn.toml").write_text("title = ")
    (folder / "odd.toml").write_text("hook = 3")
    loaded, problems = entries(library(tmp_path, {"HOME": str(tmp_path)}))
    assert [entry["name"] for entry in list_dict(loaded)] == [*BUILTIN, "mine"]
    column = max(map(len, BUILTIN)) + 2
    assert f"{'mine':<{column}}My own\n{'':<{column}}For me.\n" in list_text(loaded)
    assert sorted(problem.split(".toml")[0].rsplit("/", 1)[1] for problem in problems) == ["odd", "torn"]
