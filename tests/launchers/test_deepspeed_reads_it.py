"""DeepSpeed's own configuration class on what distui writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets.finding import PlanError
from distui.presets.lint import lint_file

from .hf import needs_hf
from .plans import DEEPSPEED, plan

READ = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
for path in sys.argv[1:]:
    made = DeepSpeedConfig(path)
    zero = made.zero_config
    device = lambda part: str(getattr(part.device, "value", part.device)) if part else "none"
    print("FOUND", json.dumps({
        "stage": zero.stage, "optimizer": device(zero.offload_optimizer), "param": device(zero.offload_param),
        "nvme": str(zero.offload_param.nvme_path) if zero.offload_param else "",
        "batch": [made.train_batch_size, made.train_micro_batch_size_per_gpu, made.gradient_accumulation_steps],
        "bf16": bool(made.bfloat16_config.enabled), "reduce": str(made.communication_data_type),
        "untested": made.zero_allow_untested_optimizer,
    }))
"""
CHECK = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
for config in json.loads(sys.argv[1]):
    try:
        DeepSpeedConfig(config)
        print("FOUND taken")
    except (AssertionError, TypeError, ValueError):
        print("FOUND refused")
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


def asked(code: str, *words: str) -> list[str]:
    """What a program says to DeepSpeed's classes, in an interpreter of its own; JSON texts."""
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "DS_IGNORE_CUDA_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]


@needs_hf
@pytest.mark.long
def test_its_class_reads_the_configuration_of_every_preset(tmp_path: Path) -> None:
    paths = []
    for name in DEEPSPEED:
        made = plan(name, "batch.micro=4", "batch.accumulation=2", script_source="print()")
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(made.files["ds_config.json"])
    found = [json.loads(line) for line in asked(READ, *map(str, paths))]
    assert [(one["stage"], one["optimizer"], one["param"]) for one in found] == [
        (1, "none", "none"),
        (2, "none", "none"),
        (3, "none", "none"),
        (3, "cpu", "cpu"),
        (3, "nvme", "nvme"),
    ]
    assert found[-1]["nvme"] == "/local_nvme"
    for one in found:
        assert one["batch"] == [4 * 2, 4, 2], "of one rank"
        assert (one["bf16"], one["reduce"], one["untested"]) == (True, "torch.float32", True)


@needs_hf
@pytest.mark.long
def test_what_it_refuses_is_an_error_of_lint_and_what_it_takes_is_none() -> None:
    configs = [{"train_micro_batch_size_per_gpu": 1, **one} for one in REFUSED + TAKEN]
    for config, answer in zip(REFUSED + TAKEN, asked(CHECK, json.dumps(configs)), strict=True):
        found = lint_file("ds.json", json.dumps(config).encode())
        assert [one.severity for one in found] == (["error"] if answer == "refused" else []), config


@for_each(
    ("overrides", "words"),
    [
        (
            ("strategy.stage=2", "strategy.offload_param=cpu"),
            'strategy.offload_param "cpu" needs strategy.stage 3, not 2',
        ),
        (("strategy.stage=0", "strategy.offload_optimizer=cpu"), "needs strategy.stage 1 or more, not 0"),
        (("strategy.stage=2", "strategy.offload_optimizer=nvme"), "needs strategy.stage 3, not 2"),
        (("strategy.stage=3", "strategy.offload_param=nvme", 'strategy.nvme_path=""'), "needs strategy.nvme_path"),
        (("accelerate.deepspeed_config.zero_stage=3",), "accelerate.deepspeed_config.zero_stage conflicts with"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan("ds-zero1", *overrides)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_of_the_table_win() -> None:
    made = plan(
        "ds-zero2", "deepspeed.gradient_clipping=0.7", "deepspeed.zero_optimization.overlap_comm=true"
    )
    config = json.loads(made.files["ds_config.json"])
    assert config["gradient_clipping"] == 0.7
    assert config["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert config["train_batch_size"] == "auto", "the script is on Accelerate, which knows"
