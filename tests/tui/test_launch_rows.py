"""The launch screen's rows and fields without a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from each import for_each

from distui.presets import model
from distui.presets.estimate.advice import advise
from distui.presets.estimate.advice_case import AdviceCase
from distui.presets.estimate.launch_command import LaunchPlace
from distui.presets.estimate.workload import GB, USABLE, NodeGpus, name_of_gpu, shape
from distui.presets.finding import Finding
from distui.presets.load import BUILTIN, Library, PassedOverFile, library, load
from distui.runners.launch.estimate_inputs import hardware_here, kind_of_file
from distui.runners.launch.launch_form import LaunchForm, LaunchPreview, request_without_script
from distui.runners.launch.preset_library import PresetEntry, listed
from distui.runners.launch.preset_of_request import overrides_of
from distui.runners.run.errors import RunError
from distui.tui.rows import advice, form_estimate
from distui.tui.rows.form import form_rows, keys_row
from distui.tui.rows.form_fields import KIND, SET, begun_with, fields, launch_form, override, stepped
from distui.tui.rows.glyphs import Row, row_width
from distui.tui.rows.plan_preview import broken, check_title, finding_rows, plan_rows
from distui.tui.rows.preset_list import matching, preset_rows, title_row, why_rows


def text(rows: list[Row]) -> list[str]:
    return ["".join(part for part, _ in row) for row in rows]


@for_each("name", BUILTIN)
def test_the_form_of_every_preset_changes_nothing_and_fits(name: str) -> None:
    loaded = load(name)
    known = fields(loaded, loaded.preset.strategy.kind)
    assert len({one.name for one in known}) == len(known)
    assert launch_form(name, known, {}) == LaunchForm(preset=name)
    for width in (52, 90):
        for at in range(len(known)):
            look = form_rows(known, {}, at, 0, width, True)
            assert max(map(row_width, look.rows)) <= width
            assert known[at].label in text(look.rows)[look.at[at]]


@for_each("name", ["single", "ddp", "fsdp1", "fsdp2", "ds-zero3-nvme"])
def test_only_options_that_act_have_a_row(name: str) -> None:
    loaded = load(name)
    shown = {one.name.removeprefix(SET) for one in fields(loaded) if one.name.startswith(SET)}
    kind = loaded.preset.strategy.kind
    assert model.options_of(kind) <= shown
    assert not shown & (model.options_of(None) - model.options_of(kind))


def test_what_is_typed_loads_as_it_was_meant() -> None:
    for path, typed, value in (
        ("strategy.wrap", "Block 'My Layer'", ("Block", "My Layer")),
        ("strategy.wrap", '["A"]', ("A",)),
        ("strategy.reshard_after_forward", "false", False),
        ("strategy.reshard_after_forward", "4", 4),
        ("restart.backoff_s", "2", 2.0),
        ("precision.param", "bf16", "bf16"),
        ("hook", "false", False),
    ):
        found = model.flat(load("fsdp2", [override(path, typed)]).preset)[path]
        assert (found, type(found)) == (value, type(value)), path
    assert model.flat(load("ds-zero3-nvme", [override("strategy.nvme_path", "/mnt/a b")]).preset)[
        "strategy.nvme_path"
    ] == ("/mnt/a b")
    with pytest.raises(RunError, match=r"strategy\.wrap: a quote is open"):
        override("strategy.wrap", "'A")


def test_choices_go_round_and_the_presets_own_is_no_change() -> None:
    kind = next(one for one in fields(load("ddp"), "ddp") if one.name == KIND)
    assert (stepped(kind, "", 1), stepped(kind, "", -1)) == ("zero1", "single")
    assert stepped(kind, "zero1", -1) == ""
    assert stepped(kind, "deepspeed", 1) == "single"
    assert begun_with(kind, "", "f") == "fsdp1"
    assert begun_with(kind, "fsdp1", "F") == "fsdp2"
    assert begun_with(kind, "fsdp1", "q") == "fsdp1"
    assert begun_with(kind, "fsdp1", "d") == "deepspeed"
    assert begun_with(kind, "deepspeed", "d") == ""


def test_a_secret_of_a_preset_is_not_shown() -> None:
    loaded = load("ddp", ["env.HF_TOKEN=hf_abc", "nccl.NCCL_ALGO=Ring"])
    values = {one.name: one.value for one in fields(loaded)}
    assert values[f"{SET}env.HF_TOKEN"] == "***"
    assert values[f"{SET}nccl.NCCL_ALGO"] == "Ring"


def test_the_caret_of_a_long_text_stays_in_sight() -> None:
    known = fields(load("ddp"))
    typed = {"script": "a" * 30 + "b" * 30}
    for caret in (0, 20, 30, 59, 60):
        (row, *_) = text(form_rows(known, typed, 0, caret, 52, True).rows)[1:]
        before, _, after = row.partition("▏")
        assert len(row) <= 52
        assert before.endswith(typed["script"][max(0, caret - 5) : caret])
        assert after.startswith(typed["script"][caret : caret + 1])


@for_each("words", ["tensor parallel", "PARALLEL tensor", "tp sequence", "no-such-word"])
def test_a_search_finds_what_holds_every_word(words: str) -> None:
    shelf = listed(library())
    found = {one.name for one in matching(shelf, words)}
    wanted = {
        "tensor parallel": {"tp", "tp-sp", "fsdp2-tp"},
        "PARALLEL tensor": {"tp", "tp-sp", "fsdp2-tp"},
        "tp sequence": {"tp-sp"},
        "no-such-word": set(),
    }
    assert found == wanted[words]
    assert {one.name for one in matching(shelf, "zero1")} >= {"zero1", "ds-zero1"}  # by strategy, too


def test_where_a_preset_comes_from_is_marked_and_said() -> None:
    kinds = [
        PresetEntry(name="ddp", title="Data", summary="S."),
        PresetEntry(name="mine", title="Mine", summary="S.", origin="yours"),
        PresetEntry(name="lab", title="Lab", summary="S.", origin="project"),
        PresetEntry(name="bad", title="", summary="", origin="yours", problem="bad.toml line 1: no."),
    ]
    assert [row[-1] for row in text(preset_rows(kinds, 20))] == [" ", "y", "p", "✖"]
    assert [text([title_row(one, 80)])[0].count("(your own)") for one in kinds] == [0, 1, 0, 1]
    assert "bad.toml line 1: no." in text(why_rows(kinds[3], 80, 2))[0]


def test_an_ignored_file_has_its_whole_name_in_the_list() -> None:
    ignored = PassedOverFile(Path("/srv/my presets/my ddp.toml"), "It is passed over: it belongs to eve.")
    (entry,) = listed(Library(definitions={}, passed_over=(ignored,)))
    assert (entry.name, entry.origin, entry.problem) == ("my ddp.toml", "passed over", ignored.note)


@for_each("width", [80, 120])
def test_title_and_summary_of_every_shipped_preset_are_not_cut(width: int) -> None:
    shipped = Library(definitions={name: library().definitions[name] for name in BUILTIN})
    for one in listed(shipped):
        assert one.title in text([title_row(one, width)])[0]
        assert " ".join(" ".join(text(why_rows(one, width, 2))).split()) == one.summary


def test_the_title_of_the_check_counts_what_its_pane_shows() -> None:
    found = (Finding(id="L2", severity="warning", where="", text="InfiniBand is off."),)
    made = LaunchPreview(text="torchrun train.py", findings=found)
    assert check_title(made) == "lint: 1 warning"
    assert "    InfiniBand is off." in text(finding_rows(made, 60))
    broken_script = LaunchPreview(text="torchrun train.py", findings=found, problems=("a syntax error",))
    assert check_title(broken_script) == "lint"
    assert text(finding_rows(broken_script, 60)) == [" There is no plan yet that could be checked."]


def test_a_long_line_goes_on_below_and_loses_nothing() -> None:
    line = "  python -m torch.distributed.run " + " ".join(
        f"--option-{number} {number}" for number in range(30)
    )
    parts = broken(line, 60)
    assert max(map(len, parts)) <= 60
    assert " ".join(" ".join(parts).split()) == " ".join(line.split())
    assert parts[0].startswith("  python")
    assert all(part.startswith("      ") for part in parts[1:])
    path = "/" + "x" * 200
    assert "".join(part.strip() for part in broken(path, 60)) == path
    rows = text(plan_rows(LaunchPreview(text=line, problems=("no.",)), 60))
    assert rows[0] == " ✖ no."


def test_a_form_says_all_that_a_preset_can_hold() -> None:
    form = LaunchForm(
        preset="ddp", nproc="2", options={"nnodes": "1:4", "env": "A=1 B='x y'"}, nccl_debug="INFO",
        nccl_presets=("no-p2p",), overrides=("batch.micro=4",),
    )  # fmt: skip
    assert set(overrides_of(request_without_script(form))) == {
        "batch.micro=4", "topology.nproc_per_node=2", "topology.nnodes=4", "topology.nnodes_min=1",
        "nccl.NCCL_P2P_DISABLE=1", "nccl.NCCL_DEBUG=INFO", "env.A=1", "env.B=x y",
    }  # fmt: skip
    load("ddp", overrides_of(request_without_script(form)))


@for_each("count", [1, 8, 64])
def test_the_bar_is_as_long_as_the_gpu_or_the_training(count: int) -> None:
    place = LaunchPlace(
        gpus=NodeGpus(name="A", count=min(count, 8), memory_gb=80), nodes=max(1, count // 8)
    )
    for option in advise(AdviceCase(model=shape(7 * GB), place=place)).rows:
        one = option.estimate
        row = advice.bar_row(one, 100)
        line = text([row])[0]
        cells = line.strip("[]").replace("|", "")
        assert len(cells) == 97
        whole = max(one.limit, one.total)
        for part, letter, _ in advice.BAR:
            assert abs(cells.count(letter) - 97 * getattr(one, part) / whole) <= 1, part
        assert ("|" in line) == (one.total > one.limit)
        if "|" in line:
            assert abs(line.index("|") - 1 - 97 * one.limit / whole) <= 1
        assert option.fits == (one.total <= USABLE * one.limit)


@for_each("width", [77, 90, 118])
def test_memory_rows_fit(width: int) -> None:
    for name in BUILTIN:
        preset = load(name).preset
        form = LaunchForm(preset=name, params="7B", hardware="8xA100-80GB", options={"nnodes": "2"})
        asked = form_estimate.asked(form, preset)
        assert asked is not None
        rows = advice.memory_rows(asked, preset, [], width)
        assert all(row_width(row) <= width for row in rows)


@for_each(
    ("args", "words"),
    [
        (
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2",
            "ddp 22.36 of 85 GB on each GPU",
        ),
        (
            "--tensor-model-parallel-size 16 --bf16",
            "ddp: n/a, --tensor-model-parallel-size 16: tp 16 does not divide",
        ),
        ("--name 'open", "ddp 14"),
    ],
)
def test_an_estimate_counts_megatrons_sizes(args: str, words: str) -> None:
    preset = load("ddp").preset
    form = LaunchForm(preset="ddp", params="7B", hardware="8xA100-80GB", args=args)
    asked = form_estimate.asked(form, preset)
    assert asked is not None
    rows = advice.memory_rows(asked, preset, form_estimate.arguments(form), 118)
    assert words in " ".join(" ".join(text(rows)).split())
    assert ("Megatron" in " ".join(text(rows))) == ("parallel-size" in args)


@for_each(
    ("source", "preset", "kind"),
    [
        ("from accelerate import Accelerator\nAccelerator()\n", "ddp", "accelerate"),
        (
            "from torch.nn.parallel import DistributedDataParallel\nDistributedDataParallel(net)\n",
            "ddp",
            "ddp",
        ),
        ("print(1)\n", "ds-zero2", "deepspeed"),
        ("print(1)\n", "fsdp2", "unknown"),
    ],
)
def test_an_estimate_is_for_the_kind_of_the_script(
    source: str, preset: str, kind: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    form = LaunchForm(preset=preset, script=str(script), params="7B", hardware="8xH100")
    asked = form_estimate.asked(form, load(preset).preset, "", kind_of_file(form.script))
    assert asked is not None
    assert asked.case.kind == kind
    assert kind_of_file(str(tmp_path / "nowhere.py")) == "unknown"


@for_each(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H200", "H200"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA A100 64GB", ""),
        ("NVIDIA Thing 9000", ""),
    ],
)
def test_what_the_driver_calls_a_gpu(model: str, name: str) -> None:
    assert name_of_gpu(model) == name


def test_the_gpus_of_this_machine(tmp_path: Path) -> None:
    root = f"{tmp_path}/"
    assert hardware_here(root) == ""
    for number, name in enumerate(("NVIDIA H200", "NVIDIA H200")):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ: 12\n")
    assert hardware_here(root) == "2xH200"
    (folder / "information").write_text("Model: \t\t NVIDIA T1000\n")
    assert hardware_here(root) == ""


@for_each("width", [40, 80, 100, 120, 132, 200])
def test_no_key_of_the_form_is_cut_and_the_way_back_is_always_named(width: int) -> None:
    row = keys_row(width)
    text = "".join(cell for cell, _ in row)
    assert row_width(row) <= width
    assert "esc back" in text
    assert text.count("   ") == sum(style == "key" for _, style in row) - 1
    assert width < 120 or ("guide" in text and "/ search" in text)
    assert "/" not in "".join(cell for cell, _ in keys_row(width, typing=True))
