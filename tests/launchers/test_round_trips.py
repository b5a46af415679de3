"""A file of another program's, imported as a preset and written again from it, means the same to its own program."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets import imports
from distui.presets.exports import exported
from distui.presets.imports import text
from distui.presets.load import Definition, Library, load
from distui.presets.model import Loaded
from distui.presets.plan import make_plan
from distui.presets.request import Request

from .hf import needs_hf
from .plans import PLACE
from .test_accelerate_reads_it import their_environment
from .test_deepspeed_reads_it import asked

pytestmark = [needs_hf, pytest.mark.long, pytest.mark.filterwarnings("ignore")]

COMMON = """
compute_environment: LOCAL_MACHINE
debug: false
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: false
"""
ACCELERATES = {
    "ddp": "distributed_type: MULTI_GPU\n",
    "fsdp1": """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_use_orig_params: false
""",
    "least": "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
    "fsdp2": """
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: SIZE_BASED_WRAP
  fsdp_min_num_params: 1000
  fsdp_activation_checkpointing: true
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
""",
    "divided 2": """
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_state_dict_type: SHARDED_STATE_DICT}
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 2
  parallelism_config_cp_backend: torch
""",
    "megatron": """
distributed_type: MEGATRON_LM
megatron_lm_config: {megatron_lm_tp_degree: 2, megatron_lm_pp_degree: 2, megatron_lm_sequence_parallelism: true}
""",
    "zero": """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, gradient_accumulation_steps: 4, zero3_init_flag: true}
""",
    "dynamo": """
distributed_type: MULTI_GPU
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: max-autotune, dynamo_use_dynamic: true}
""",
}
MEANS_NOTHING = ("FSDP_MIN_NUM_PARAMS", "FSDP_RESHARD_AFTER_FORWARD", "FSDP_SHARDING_STRATEGY",
                 "FSDP_SYNC_MODULE_STATES", "FSDP_USE_ORIG_PARAMS")  # fmt: skip
"""Variables that the launcher sets also where the FSDP of that version does not read them."""
DEEPSPEEDS: dict[str, dict[str, Any]] = {
    "second": {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 2e8},
        "wall_clock_breakdown": True,
    },
    "third": {
        "train_batch_size": 64,
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12},
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "nvme", "nvme_path": "/disk", "buffer_count": 6},
            "stage3_param_persistence_threshold": 1000,
        },
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "activation_checkpointing": {"partition_activations": True},
    },
    "none": {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 7},
}
MEANING = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
left = {"param_dict", "_param_dict"}
for path in sys.argv[1:]:
    made = DeepSpeedConfig(path)
    print("FOUND", json.dumps({name: repr(value) for name, value in sorted(vars(made).items())
                               if name not in left and " at 0x" not in repr(value)}))
"""


def preset(name: str, data: str) -> Loaded:
    found, _ = imports.import_preset(name, data.encode())
    table = tomllib.loads(text("mine", name, found))
    whole = Definition(name="mine", origin="x", where="mine.toml", table=table)
    return load("mine", presets=Library(definitions={"mine": (whole,)}))


@for_each("name", ACCELERATES)
def test_accelerate(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = COMMON + ACCELERATES[name]
    loaded = preset("a.yaml", source)
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(source)
    after.write_text(exported(loaded.preset, "accelerate").text)
    with monkeypatch.context() as inner:
        theirs = their_environment(["--config_file", str(before), "t.py"], inner)
    with monkeypatch.context() as inner:
        ours = their_environment(["--config_file", str(after), "t.py"], inner)
    read = {key for key in theirs if key not in MEANS_NOTHING or "2" not in name}
    assert {key: ours.get(key) for key in read} == {key: theirs[key] for key in read}
    under_torchrun = make_plan(loaded, Request(script="t.py"), PLACE).env
    kept = {key: value for key, value in under_torchrun.items() if key in theirs}
    assert {key: value.lower() for key, value in kept.items()} == {key: theirs[key].lower() for key in kept}


def test_deepspeed(tmp_path: Path) -> None:
    paths = []
    for name, source in DEEPSPEEDS.items():
        place = replace(PLACE, script_source="import deepspeed")
        made = make_plan(preset("ds.json", json.dumps(source)), Request(script="t.py"), place)
        for which, config in (("before", json.dumps(source)), ("after", made.files["ds_config.json"])):
            paths.append(tmp_path / f"{name}-{which}.json")
            paths[-1].write_text(config)
    meanings = [json.loads(line) for line in asked(MEANING, *map(str, paths))]
    for name, theirs, ours in zip(DEEPSPEEDS, meanings[::2], meanings[1::2], strict=True):
        assert len(theirs) > 40
        assert ours == theirs, name
