"""The keys and values that lint knows of accelerate, DeepSpeed and SkyPilot, against the programs themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from distui.presets.lint import config_files, lint_file

ACCELERATE = """
import dataclasses, json
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
names = [name for action in launch_command_parser()._actions for name in action.option_strings]
print(json.dumps({
    "keys": [field.name for field in dataclasses.fields(ClusterConfig)],
    "types": [one.value for one in DistributedType],
    "fsdp": [name[2:] for name in names if name.startswith("--fsdp_")],
}))
"""
DEEPSPEED = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
answers = []
for config in json.load(sys.stdin):
    try:
        DeepSpeedConfig(config)
        answers.append("")
    except (AssertionError, TypeError, ValueError) as error:
        answers.append(type(error).__name__)
print(json.dumps(answers))
"""
SKYPILOT = """
import json
from sky.utils import resources_utils, schemas
print(json.dumps({
    "keys": list(schemas.get_task_schema()["properties"]),
    "resources": list(schemas.get_resources_schema()["properties"]),
    "tiers": [one.value for one in resources_utils.NetworkTier],
}))
"""
REFUSED: list[dict[str, Any]] = [
    {"bf16": {"enabled": True}, "fp16": {"enabled": True}},
    {"zero_optimization": {"stage": 4}},
    {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
    {"train_batch_size": "8", "train_micro_batch_size_per_gpu": 1},
    {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "ssd"}}},
]
TAKEN: list[dict[str, Any]] = [
    {"bf16": {"enabled": True}, "fp16": {"enabled": False}},
    {"zero_optimization": {"stage": 3}, "gradient_clipping": 1.0},
    {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
]


def ask(python: str, code: str, given: object = None, **env: str) -> Any:
    """What a program of the other package prints."""
    done = subprocess.run(
        [python, "-c", code], input=json.dumps(given), capture_output=True, text=True, check=False,
        timeout=HANG_S, env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.skipif(
    find_spec("accelerate") is None, reason="there is no accelerate: pip install --group hf"
)
def test_accelerates_keys_and_types() -> None:
    theirs = ask(sys.executable, ACCELERATE)
    assert (
        set(config_files.ACCELERATE_KEYS) - {"fp16", "dynamo_backend", "ipex_config", "tp_config"}
        <= set(theirs["keys"])
        <= set(config_files.ACCELERATE_KEYS)
    )
    assert set(theirs["types"]) <= set(config_files.TYPES)
    assert set(theirs["fsdp"]) <= set(config_files.FSDP_KEYS)


@pytest.mark.long
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="there is no DeepSpeed: pip install --group hf")
def test_what_deepspeed_refuses_is_an_error_and_what_it_takes_is_none() -> None:
    answers = ask(sys.executable, DEEPSPEED, [{"train_micro_batch_size_per_gpu": 1, **one} for one in REFUSED + TAKEN],
                  DS_ACCELERATOR="cpu")  # fmt: skip
    for config, answer in zip(REFUSED + TAKEN, answers, strict=True):
        found = lint_file("ds.json", json.dumps(config).encode())
        assert [one.severity for one in found] == (["error"] if answer else []), config


@pytest.mark.long
def test_skypilots_keys_and_tiers() -> None:
    cache = os.environ.get("DISTUI_RIG_CACHE") or Path.home() / ".cache/distui-rig"
    python = os.environ.get("DISTUI_SKY_PYTHON") or str(Path(cache, "venv/bin/python"))
    if not Path(python).exists():
        pytest.skip("no SkyPilot here: DISTUI_SKY_PYTHON names a Python that has it")
    theirs = ask(python, SKYPILOT, SKYPILOT_DISABLE_USAGE_COLLECTION="1")
    assert set(theirs["keys"]) <= set(config_files.SKYPILOT_KEYS)
    assert {name for name in theirs["resources"] if not name.startswith("_")} <= set(
        config_files.SKYPILOT_RESOURCES
    )
    assert set(theirs["tiers"]) == set(config_files.TIERS)
