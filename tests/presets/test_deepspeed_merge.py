"""A script's own configuration of DeepSpeed under a preset: what stays, what the preset decides, what the plan says."""

from __future__ import annotations

import json
from typing import Any

from each import for_each
from test_plan_making import plan, preset

from distui.presets import script_support
from distui.presets.lint import lint_plan
from distui.presets.plan import Plan
from distui.presets.request import Request

SCRIPT = """\
import argparse, deepspeed, torch
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
model = torch.nn.Linear(4, 4)
engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
"""
OWN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "fp16": {"enabled": True, "loss_scale": 0},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "reduce_bucket_size": 1000},
}
NAMED = ("--deepspeed", "--deepspeed_config", "own.json", "--epochs", "3")


def merged(*overrides: str, args: tuple[str, ...] = NAMED, own: object = OWN, source: str = SCRIPT) -> Plan:
    request = Request(script="ds.py", args=args)
    text = None if own is None else json.dumps(own)
    return plan("ds-zero2", *overrides, request=request, script_source=source, script_config=text)


def config(made: Plan) -> dict[str, Any]:
    return dict(json.loads(made.files["ds_config.json"]))


def test_what_the_preset_does_not_say_stays() -> None:
    made = config(merged())
    for key in ("optimizer", "scheduler", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert made[key] == OWN[key]
    assert made["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}
    assert made["fp16"]["enabled"] is False
    assert made["bf16"] == {"enabled": True}


def test_the_batch_is_the_presets_where_it_has_one() -> None:
    made = config(merged("batch.accumulation=5", own={**OWN, "train_batch_size": 12}))
    assert "train_batch_size" not in made
    assert (made["train_micro_batch_size_per_gpu"], made["gradient_accumulation_steps"]) == (1, 5)


def test_the_presets_own_table_wins() -> None:
    made = config(merged("deepspeed.optimizer.params.lr=0.5"))
    assert made["optimizer"] == {"type": "AdamW", "params": {"lr": 0.5}}


@for_each(
    ("args", "behind"),
    [
        (NAMED, ("--deepspeed", "--deepspeed_config", "/state/runs/r-1/ds_config.json", "--epochs", "3")),
        (("--deepspeed_config=own.json",), ("--deepspeed_config=/state/runs/r-1/ds_config.json",)),
    ],
)
def test_the_ranks_get_the_merged_file(args: tuple[str, ...], behind: tuple[str, ...]) -> None:
    made = merged(args=args)
    assert made.argv[-len(behind) :] == behind
    assert made.command == ("ds.py", *args)


def test_the_plan_shows_the_merge() -> None:
    made = merged()
    note = next(note for note in made.notes if note.startswith("DeepSpeed gets own.json"))
    assert "kept train_micro_batch_size_per_gpu, gradient_accumulation_steps, optimizer, scheduler" in note
    assert "zero_optimization.stage 3 → 2" in note
    assert "zero_optimization.offload_param {" in note
    assert "→ left out" in note
    assert "fp16.enabled true → false" in note
    assert "added bf16" in note
    assert "own.json merged with the preset" in str(made.obeys)
    assert not any("train_micro_batch_size_per_gpu 1" in note for note in made.notes)


def test_a_secret_in_the_file_is_told() -> None:
    own = {**OWN, "comet": {"enabled": True, "api_key": "k3y0123456789abcdef"}}
    assert any("own.json holds a secret" in note for note in merged(own=own).notes)
    assert not any("holds a secret" in note for note in merged().notes)


def test_a_default_of_the_option_is_merged_too() -> None:
    source = SCRIPT.replace(
        "deepspeed.add_config_arguments(argparse.ArgumentParser())", "argparse.ArgumentParser()"
    ).replace("args =", 'parser.add_argument("--deepspeed_config", default="own.json")\nargs =')
    assert script_support.own_config(source, ()) == "own.json"
    made = merged(args=("--epochs", "3"), source=source)
    assert config(made)["optimizer"] == OWN["optimizer"]
    assert made.argv[-4:] == ("--deepspeed_config", "/state/runs/r-1/ds_config.json", "--epochs", "3")


@for_each("own", [None, [1], "text"])
def test_a_file_that_is_not_there_is_told(own: object) -> None:
    made = merged(own=own)
    assert made.obeys is None
    assert any("cannot be read from here: the preset's is not used" in note for note in made.notes)
    assert made.argv[-4:] == ("--deepspeed_config", "own.json", "--epochs", "3")


def test_an_optimizer_in_the_merged_file_is_one() -> None:
    def ids(made: Plan) -> set[str]:
        return {finding.id for finding in lint_plan(made, preset("ds-zero2"), Request(), source=SCRIPT)}

    assert "L45" in ids(merged(args=(), own=None))
    assert "L45" not in ids(merged())


@for_each(
    ("source", "overrides", "told"),
    [
        (SCRIPT, (), True),
        (SCRIPT, ("precision.param=fp32",), False),
        (SCRIPT + "model(torch.ones(4).bfloat16())\n", (), False),
        ("from accelerate import Accelerator\nAccelerator()\n", (), True),
    ],
)
def test_inputs_are_not_cast(source: str, overrides: tuple[str, ...], told: bool) -> None:
    notes = merged(*overrides, args=(), own=None, source=source).notes
    assert any("not its inputs" in note for note in notes) is told
