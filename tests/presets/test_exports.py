"""Files of accelerate and DeepSpeed, imported and written again: every key is there again, or a sentence names it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from each import for_each

from distui.presets import imports, model
from distui.presets.exports import exported
from distui.presets.finding import PresetError
from distui.presets.load import BUILTIN, load
from distui.presets.model import Preset

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

COMMON: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "downcast_bf16": "no",
    "enable_cpu_affinity": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 8,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}
"""What `accelerate config` writes into every file."""
FSDP1 = {
    "fsdp_activation_checkpointing": True,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_forward_prefetch": False,
    "fsdp_offload_params": True,
    "fsdp_sharding_strategy": "HYBRID_SHARD",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer,Other",
    "fsdp_use_orig_params": False,
}
FSDP2 = {
    "fsdp_activation_checkpointing": False,
    "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
    "fsdp_cpu_ram_efficient_loading": False,
    "fsdp_min_num_params": 1000,
    "fsdp_offload_params": False,
    "fsdp_reshard_after_forward": False,
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_version": 2,
}


def sizes(**given: object) -> dict[str, object]:
    return {f"parallelism_config_{name}": value for name, value in given.items()}


ACCELERATES: dict[str, dict[str, Any]] = {
    "one process": {"distributed_type": "NO", "num_processes": 1},
    "one process on CPU": {"distributed_type": "NO", "num_processes": 1, "use_cpu": True},
    "DDP": {"distributed_type": "MULTI_GPU", "gpu_ids": "all"},
    "DDP on some GPUs": {"distributed_type": "MULTI_GPU", "gpu_ids": "0,1,4", "num_processes": 3},
    "CPU": {"distributed_type": "MULTI_CPU", "use_cpu": True, "mpirun_config": {"mpirun_hostfile": "h"}},
    "NPU": {"distributed_type": "MULTI_NPU"},
    "two machines": {
        "distributed_type": "MULTI_GPU",
        "num_machines": 2,
        "num_processes": 16,
        "machine_rank": 1,
        "main_process_ip": "10.0.0.1",
        "main_process_port": 29500,
    },
    "compiled": {
        "distributed_type": "MULTI_GPU",
        "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": "max-autotune"},
    },
    "compiled layers": {
        "distributed_type": "MULTI_GPU",
        "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True},
    },
    "fp8": {
        "distributed_type": "MULTI_GPU",
        "mixed_precision": "fp8",
        "fp8_config": {"fp8_backend": "TE", "fp8_amax_history_len": 1024},
    },
    "FSDP1": {"distributed_type": "FSDP", "fsdp_config": FSDP1},
    "FSDP1 by number": {"distributed_type": "FSDP", "fsdp_config": {**FSDP1, "fsdp_sharding_strategy": 2}},
    "FSDP2": {"distributed_type": "FSDP", "fsdp_config": FSDP2},
    "HSDP": {
        "distributed_type": "FSDP",
        "fsdp_config": FSDP2,
        "parallelism_config": sizes(dp_replicate_size=2, dp_shard_size=4, tp_size=1, cp_size=1),
    },
    "FSDP2 with TP and CP": {
        "distributed_type": "FSDP",
        "fsdp_config": FSDP2,
        "parallelism_config": sizes(
            dp_shard_size=2, tp_size=2, cp_size=2, cp_backend="torch", cp_comm_strategy="alltoall"
        ),
    },
    "sizes that do not fit": {
        "distributed_type": "FSDP",
        "fsdp_config": FSDP2,
        "parallelism_config": sizes(dp_shard_size=16, tp_size=2),
    },
    "TP without FSDP": {"distributed_type": "MULTI_GPU", "parallelism_config": sizes(tp_size=8)},
    "ZeRO": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "deepspeed_multinode_launcher": "standard",
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 0.5,
            "offload_optimizer_device": "nvme",
            "offload_optimizer_nvme_path": "/disk",
            "offload_param_device": "cpu",
            "zero3_init_flag": True,
            "zero3_save_16bit_model": True,
            "zero_stage": 3,
        },
    },
    "ALST": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3, "deepspeed_moe_layer_cls_names": "A,B"},
        "parallelism_config": sizes(sp_size=4, sp_backend="deepspeed", sp_seq_length_is_variable=True),
    },
    "Megatron-LM": {
        "distributed_type": "MEGATRON_LM",
        "megatron_lm_config": {
            "megatron_lm_tp_degree": 2,
            "megatron_lm_pp_degree": 2,
            "megatron_lm_num_micro_batches": 4,
            "megatron_lm_sequence_parallelism": True,
            "megatron_lm_gradient_clipping": 1.0,
        },
    },
}
ZERO: dict[str, dict[str, Any]] = {
    "auto": {
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "allgather_bucket_size": 2e8,
        },
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": None,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "wall_clock_breakdown": False,
    },
    "numbers": {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "fp16": {"enabled": False},
        "bf16": {"enabled": True},
        "communication_data_type": "bf16",
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "nvme", "nvme_path": "/a", "buffer_count": 6},
            "offload_optimizer": {"device": "nvme", "nvme_path": "/b"},
        },
    },
    "micro": {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 1, "offload_param": {"device": "none", "pin_memory": True}},
        "amp": {"enabled": False},
    },
    "none": {"train_batch_size": 8},
}


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", value


def same(before: object, after: object) -> bool:
    sharding = {2: "SHARD_GRAD_OP"}.get(before) if isinstance(before, int) else None
    return before == after or sharding == after


def lost(document: dict[str, Any], written: Mapping[str, Any], notes: str) -> list[str]:
    """The keys that are neither there again nor named."""
    after = dict(leaves(written))
    return [
        path
        for path, value in leaves(document)
        if not same(value, after.get(path)) and path.rpartition(".")[2] not in notes
    ]


def fields(preset: Preset) -> dict[str, object]:
    """The preset without the tables that hold the program's keys as they are."""
    own = ("accelerate.", "deepspeed.")
    return {path: value for path, value in model.flat(preset).items() if not path.startswith(own)}


def imported(name: str, document: dict[str, Any]) -> tuple[Preset, str]:
    text = json.dumps(document) if name.endswith(".json") else yaml.safe_dump(document)
    found, _ = imports.import_preset(name, text.encode())
    return imports.preset_of(found, name), " ".join(found.notes)


@for_each("kind", ACCELERATES)
def test_every_key_of_accelerate_is_there_again_or_named(kind: str) -> None:
    document = {**COMMON, **ACCELERATES[kind]}
    preset, notes = imported("a.yaml", document)
    written = yaml.safe_load(exported(preset, "accelerate").text)
    assert lost(document, written, notes) == []
    again, _ = imported("a.yaml", written)
    assert fields(again) == fields(preset)


@for_each("kind", ZERO)
def test_every_key_of_deepspeed_is_there_again_or_named(kind: str) -> None:
    preset, notes = imported("ds.json", ZERO[kind])
    written = json.loads(exported(preset, "deepspeed").text)
    assert lost(ZERO[kind], written, notes) == []


def test_what_a_preset_cannot_hold_is_named_once_and_nothing_else_is() -> None:
    named = {}
    for kind, more in ACCELERATES.items():
        _, notes = imported("a.yaml", {**COMMON, **more})
        if notes:
            named[kind] = notes
    assert set(named) == {"two machines", "fp8", "sizes that do not fit", "TP without FSDP"}
    assert "parallelism_config_dp_shard_size 16 is not kept" in named["sizes that do not fit"]
    assert (
        "tp_size 8 is left out: a preset has mesh.tp only with fsdp_version 2" in named["TP without FSDP"]
    )


def test_accelerates_file_of_deepspeed_is_the_presets() -> None:
    document = {
        **COMMON,
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "z.json"},
    }
    files = {"z.json": json.dumps(ZERO["numbers"]).encode()}
    found, _ = imports.import_preset("a.yaml", yaml.safe_dump(document).encode(), files.get)
    preset = imports.preset_of(found, "a.yaml")
    assert (preset.strategy.stage, preset.precision.param) == (3, "bf16")
    assert "The preset has the values of z.json" in " ".join(found.notes)
    made = exported(preset, "accelerate")
    assert "deepspeed_config_file: ds_config.json" in made.text
    assert "mixed_precision" not in made.text
    assert any("--format deepspeed" in note and "--mixed_precision bf16" in note for note in made.notes)


BEYOND = ("zero1", "pp-gpipe", "pp-1f1b", "3d", "moe")
"""Presets whose strategy Accelerate does not have."""


@for_each("name", BUILTIN)
def test_a_shipped_preset_is_written_or_refused_in_one_sentence(name: str) -> None:
    ranks = () if name in ("single", "accumulate") else ("topology.nproc_per_node=8",)
    preset = load(name, ranks).preset
    if name in BEYOND:
        with pytest.raises(PresetError, match=r"^preset .*: (take|add) .*$"):
            exported(preset, "accelerate")
    else:
        assert "distributed_type: " in exported(preset, "accelerate").text
    if name.startswith("ds-"):
        assert "zero_optimization" in exported(preset, "deepspeed").text
    else:
        with pytest.raises(PresetError, match="is not DeepSpeed's: take ds-zero2"):
            exported(preset, "deepspeed")


def test_what_the_file_cannot_hold_is_named() -> None:
    words = ("strategy.bucket_cap_mb=7", "nccl.NCCL_ALGO=Ring", "env.A=1", "restart.limit=9")
    notes = " ".join(exported(load("ddp", words).preset, "accelerate").notes)
    assert "The file has no place for strategy.bucket_cap_mb, strategy.gradient_as_bucket_view" in notes
    assert "nccl.NCCL_ALGO, env.A" in notes
    assert "restart" not in notes


def test_gradients_that_accelerate_sums_in_another_format_are_named() -> None:
    words = ("precision.param=bf16", "precision.reduce=fp32", "topology.nproc_per_node=2")
    notes = exported(load("fsdp2", words).preset, "accelerate").notes
    assert notes == ("The file has no place for precision.reduce.",)
