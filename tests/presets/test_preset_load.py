"""Layers of presets: what wins, what each value says of its origin, and what each error says."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import get_args

import pytest
from each import for_each

from distui.presets.finding import PresetError
from distui.presets.load import BUILTIN, library, load, user_dir
from distui.presets.model import Loaded, Mesh, StrategyKind


class Places:
    """A home, a project and a directory inside it."""

    def __init__(self, root: Path) -> None:
        self.home, self.project = root / "home", root / "project"
        self.cwd = self.project / "src" / "deep"
        self.cwd.mkdir(parents=True)
        self.env = {"HOME": str(self.home)}
        self.users = user_dir(self.env)
        self.users.mkdir(parents=True)
        self.project_file = self.project / "distui.toml"

    def user(self, name: str, text: str) -> Path:
        file = self.users / f"{name}.toml"
        file.write_text(text)
        return file

    def load(self, name: str, *overrides: str) -> Loaded:
        return load(name, overrides, cwd=self.cwd, env=self.env)

    def error(self, name: str, *overrides: str) -> str:
        with pytest.raises(PresetError) as caught:
            self.load(name, *overrides)
        text = str(caught.value)
        assert "\n" not in text
        assert not text.endswith(".")
        return text


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_the_shipped_presets_are_whole(places: Places) -> None:
    shelf = library(places.cwd, places.env)
    folder = resources.files("distui.presets") / "builtin"
    assert shelf.names == BUILTIN
    assert {f"{name}.toml" for name in BUILTIN} == {entry.name for entry in folder.iterdir()}
    titles = {places.load(name).preset.title for name in BUILTIN}
    assert len(titles - {""}) == len(BUILTIN), "each has a title of its own"
    for name in BUILTIN:
        loaded = places.load(name)
        assert loaded.preset.summary.endswith(".")
        assert all(origin.startswith("builtin ") for origin in loaded.origins.values())
    kinds = {places.load(name).preset.strategy.kind for name in BUILTIN}
    assert kinds == set(get_args(StrategyKind))
    assert places.load("single").preset.topology.nproc_per_node == 1
    assert places.load("ddp").preset.topology.nproc_per_node == "auto"


def test_variables_that_newer_nccls_and_plugins_may_have_load(places: Places) -> None:
    places.user(
        "mine", 'base = "ddp"\n[nccl]\nNCCL_FOOBAR = 1\nFI_PROVIDER = "efa"\nNCCL_LL_THRESHOLD = 0\n'
    )
    env = places.load("mine").preset.nccl.env
    assert (env["NCCL_FOOBAR"], env["FI_PROVIDER"], env["NCCL_LL_THRESHOLD"]) == ("1", "efa", "0")


def test_later_layers_win_value_by_value(places: Places) -> None:
    user = places.user("ddp", 'title = "mine"\n[restart]\nlimit = 7\nbackoff_s = 2\n')
    places.project_file.write_text("[preset.ddp.restart]\nbackoff_s = 5\n")
    loaded = places.load("ddp", "restart.backoff_max_s=9")
    policy = loaded.preset.restart
    assert (policy.limit, policy.backoff_s, policy.backoff_max_s, policy.reset_after_s) == (
        7,
        5.0,
        9.0,
        600.0,
    )
    assert loaded.preset.title == "mine"
    assert {
        path: loaded.origins[f"restart.{path}"] for path in ("limit", "backoff_s", "backoff_max_s")
    } == {
        "limit": f"user {user}",
        "backoff_s": f"project {places.project_file}",
        "backoff_max_s": "--set restart.backoff_max_s",
    }
    assert loaded.origins["restart.reset_after_s"] == "builtin ddp.toml"


def test_a_preset_builds_on_another(places: Places) -> None:
    places.user(
        "mine", 'base = "ddp"\n[nccl]\nNCCL_P2P_DISABLE = true\nNCCL_IB_TIMEOUT = 22\n[env]\nX = 1.5\n'
    )
    places.project_file.write_text('[preset.ours]\nbase = "mine"\nhook = false\n')
    preset = places.load("ours").preset
    assert preset.name == "ours"
    assert preset.strategy.gradient_as_bucket_view
    assert preset.nccl.env == {"NCCL_P2P_DISABLE": "1", "NCCL_IB_TIMEOUT": "22"}
    assert preset.env == {"X": "1.5"}
    assert not preset.hook


def test_base_may_name_the_layer_below(places: Places) -> None:
    places.user("ddp", 'base = "ddp"\n[restart]\nlimit = 9\n')
    preset = places.load("ddp").preset
    assert preset.restart.limit == 9
    assert preset.strategy.gradient_as_bucket_view


def test_options_of_the_old_strategy_are_forgotten(places: Places) -> None:
    loaded = places.load("ddp", "strategy.kind=fsdp2", "strategy.reshard_after_forward=2")
    assert loaded.preset.strategy.options()["reshard_after_forward"] == 2
    assert "strategy.gradient_as_bucket_view" not in loaded.origins
    assert "gradient_as_bucket_view" in places.load("ddp", "strategy.kind=zero1").preset.strategy.options()
    assert places.load("3d", "strategy.kind=ddp").preset.mesh == Mesh(pp=2, schedule="1f1b", microbatches=4)
    assert places.load("3d", "strategy.kind=single").preset.mesh == Mesh()


def test_tables_of_other_programs_are_merged_key_by_key(places: Places) -> None:
    places.user("mine", 'base = "ds-zero3"\n[deepspeed]\nsteps_per_print = 5\n'
                "[deepspeed.zero_optimization]\nsub_group_size = 7\nstage3_max_live_parameters = 1\n")  # fmt: skip
    places.project_file.write_text(
        '[preset.ours]\nbase = "mine"\n[preset.ours.deepspeed.zero_optimization]\nsub_group_size = 8\n'
    )
    preset = places.load("ours", "deepspeed.zero_optimization.stage3_max_live_parameters=2").preset
    assert preset.deepspeed == {
        "steps_per_print": 5,
        "zero_optimization": {"sub_group_size": 8, "stage3_max_live_parameters": 2},
    }
    mounts = places.load("ddp", 'sky.file_mounts={"~/.netrc" = "a", list = [1, "b"]}').preset.sky
    assert mounts == {"file_mounts": {"~/.netrc": "a", "list": [1, "b"]}}
    assert places.load("ddp", "accelerate.main_training_function=main").preset.accelerate == {
        "main_training_function": "main"
    }
    assert "deepspeed.a is 2026-01-01: write a text" in places.error("ddp", "deepspeed.a=2026-01-01")


def test_a_file_that_no_one_wrote_by_hand_is_refused(places: Places) -> None:
    places.user("large", 'base = "ddp"\n' + "# x\n" * 300_000)
    assert "has 1200013 bytes, and 1048576 are the most" in places.error("large")
    assert places.load("ddp").preset.name == "ddp", "and spoils no other"


def test_xdg_config_home_counts_only_when_absolute() -> None:
    assert user_dir({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/distui/presets")
    assert user_dir({"XDG_CONFIG_HOME": "c", "HOME": "/h"}) == Path("/h/.config/distui/presets")


@for_each(
    ("text", "path", "value"),
    [
        ("strategy.kind=single", "strategy.kind", "single"),
        ('strategy.kind="single"', "strategy.kind", "single"),
        ("preset.hook=false", "hook", False),
        ("topology.nproc_per_node=4", "topology.nproc_per_node", 4),
        ("topology.nproc_per_node=gpu", "topology.nproc_per_node", "gpu"),
        ("strategy.bucket_cap_mb=50", "strategy.bucket_cap_mb", 50),
        ("launcher.grace_s=2", "launcher.grace_s", 2.0),
        ('launcher.args=["--virtual-local-rank"]', "launcher.args", ("--virtual-local-rank",)),
        ("title=7", "title", "7"),
        ("title=a = b # c", "title", "a = b # c"),
    ],
)
def test_set_reads_values_as_the_field_needs_them(
    places: Places, text: str, path: str, value: object
) -> None:
    found: object = places.load("ddp", text).preset
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@for_each("value", ["1_000", "0x10", "=mlx5", " a b", "", "true", '"q"'])
def test_set_leaves_the_text_of_variables_alone(places: Places, value: str) -> None:
    assert places.load("ddp", f"env.X={value}").preset.env == {"X": value}
    if value.strip():
        assert places.load("ddp", f"nccl.NCCL_IB_HCA={value}").preset.nccl.env == {"NCCL_IB_HCA": value}


@for_each(
    ("text", "table", "value"),
    [
        ("hosts.gpu0.X=1", "hosts", {"gpu0": {"X": "1"}}),
        ("hosts.gpu0.lab.local.NCCL_DEBUG=INFO", "hosts", {"gpu0.lab.local": {"NCCL_DEBUG": "INFO"}}),
        ("deepspeed.a.b.c=2", "deepspeed", {"a": {"b": {"c": 2}}}),
        ("deepspeed.a=1\nb = 2", "deepspeed", {"a": "1\nb = 2"}),
    ],
)
def test_set_reaches_into_tables(places: Places, text: str, table: str, value: object) -> None:
    assert getattr(places.load("ddp", text).preset, table) == value


@for_each(
    ("override", "parts"),
    [
        (
            "strategy.kind=fsdp",
            ('takes "single", "ddp", "zero1", "fsdp1", "fsdp2" or "deepspeed"', 'not "fsdp"'),
        ),
        ("strategy.stage=2", ("has no effect in strategy ddp", "or take deepspeed")),
        ("mesh.tp=0", ("mesh.tp takes 1 or more, not 0",)),
        ("mesh.schedule=zigzag", ('takes "gpipe" or "1f1b"',)),
        ("batch.micro=half", ("batch.micro takes a whole number",)),
        ("strategy.kid=ddp", ("strategy.kid is not a field", "did you mean strategy.kind?")),
        ("strategy.bucket_cap_mb=much", ("strategy.bucket_cap_mb takes a whole number",)),
        ("strategy.bucket_cap_mb=0", ("takes 1 or more, not 0",)),
        ("strategy.reshard_after_forward=2", ("has no effect in strategy ddp", "or take fsdp2")),
        ("restart.limit=true", ("restart.limit takes a whole number, not true",)),
        ("restart.limit=-1", ("takes 0 or more",)),
        ("launcher.monitor_interval_s=0", ("takes 0.01 or more",)),
        ("restart.backoff_s=inf", ("takes a number",)),
        ("topology.nnodes=0", ("takes 1 or more",)),
        ("topology.nproc_per_node=all", ('a whole number, or "gpu", "cpu" or "auto"',)),
        ("hook=no", ("hook takes true or false",)),
        ("nccl.DEBUG=INFO", ("DEBUG is not a variable of NCCL", "did you mean NCCL_DEBUG?")),
        ("nccl.NCCL_DEBG=INFO", ("NCCL_DEBG", "did you mean NCCL_DEBUG?")),
        ("nccl.NCCL_P2P_DISABLE=yes", ("NCCL_P2P_DISABLE takes 0 or 1",)),
        ("base=ddp", ("base is not a field",)),
        ("env=1", ("env is not a field",)),
        ("hook", ("write it as FIELD.PATH=VALUE",)),
        ("=1", ("write it as FIELD.PATH=VALUE",)),
    ],
)
def test_a_bad_set_is_one_sentence(places: Places, override: str, parts: tuple[str, ...]) -> None:
    text = places.error("ddp", override)
    assert text.startswith("--set")
    for part in parts:
        assert part in text


@for_each(
    ("text", "parts"),
    [
        ('title = "a"\nhook = \n', ("line 2", "not valid TOML")),
        ('title = "open', ("line 1", "not valid TOML")),
        ("hook = 1\n", ("hook takes true or false, not 1",)),
        ("strateg = 1\n", ("strateg is not a key", "did you mean strategy?")),
        ("nproc_per_node = 2\n", ("nproc_per_node belongs in the table [topology]",)),
        ("strategy = 'ddp'\n", ("strategy is a table", "[strategy]")),
        ("[strategy]\nkind = ['ddp']\n", ("strategy.kind takes", "not a list")),
        ("[env]\nX = [1]\n", ("env.X takes a text or a number, not a list",)),
        ("[env.X]\ny = 1\n", ("env.X takes a text or a number, not a table",)),
        ('[env]\n"a\\u001b]0;x" = "1"\n', ("env.'a\\x1b]0;x' is not a valid name",)),
        ('[env]\n"A-B" = "1"\n', ("env.'A-B' is not a valid name", "NAME = VALUE")),
        ('[nccl]\n"NCCL X" = "1"\n', ("nccl.'NCCL X' is not a valid name",)),
        ('[hosts."n*"]\n"A\\nB" = "1"\n', ("'A\\nB' is not a valid name",)),
        ("[launcher]\nargs = [1]\n", ("launcher.args takes a list of texts",)),
        ("base = 3\n", ("write the name of a preset",)),
        ("base = 'dpd'\n", ("'dpd', which mine builds on", "did you mean ddp?")),
        ("base = 'mine'\n", ("is this preset itself: name another preset",)),
        ("[strategy]\nkind = 'fsdp2'\nreshard_after_forward = 0\n", ("takes 1 or more, not 0",)),
        (
            "[strategy]\nkind = 'fsdp2'\nstatic_graph = true\n",
            ("static_graph has no effect in strategy fsdp2",),
        ),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_it(
    places: Places, text: str, parts: tuple[str, ...]
) -> None:
    file = places.user("mine", text)
    found = places.error("mine")
    for part in parts:
        assert part in found
    if "builds on" not in found:
        assert str(file) in found


def test_bases_in_a_circle(places: Places) -> None:
    places.user("a", 'base = "b"')
    places.user("b", 'base = "c"')
    places.user("c", 'base = "b"')
    assert "b → c → b" in places.error("a")


def test_not_utf8_names_the_line(places: Places) -> None:
    (places.users / "mine.toml").write_bytes(b"hook = true\ntitle = '\xff'\n")
    assert "line 2: not UTF-8" in places.error("mine")


def test_one_broken_file_spoils_only_its_preset(places: Places) -> None:
    places.user("bad", "title = ")
    (places.users / "dir.toml").mkdir()
    places.user("-x", "")
    shelf = library(places.cwd, places.env)
    assert set(shelf.problems) == {"bad", "dir", "-x"}
    assert places.load("ddp").preset.name == "ddp"
    assert "bad.toml line 1" in places.error("bad")
    assert "cannot be read" in places.error("dir")
    assert "not a valid preset name" in places.error("-x")


@for_each(
    ("text", "part"),
    [
        ("[presets.x]\n", "presets has no meaning here"),
        ("preset = 1\n", "preset is a table"),
        ("[preset]\nx = 1\n", "preset.x is a table"),
        ("[preset.'a b']\n", "not a valid preset name"),
        ("[preset.x", "distui.toml line 1"),
        ("[preset.x]\nhok = true\n", "distui.toml [preset.x]: hok is not a key"),
    ],
)
def test_a_bad_project_file(places: Places, text: str, part: str) -> None:
    places.project_file.write_text(text)
    assert part in places.error("x")


def test_an_unknown_preset_names_the_nearest(places: Places) -> None:
    assert places.error("fsdp") == "There is no preset 'fsdp'; did you mean fsdp2?"
    assert places.error("qqq") == "There is no preset 'qqq'; `distui presets` lists them"
