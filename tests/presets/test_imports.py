"""Files of other programs as presets: what becomes a field, what is kept, what is said, and what is refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets import imports
from distui.presets.finding import Finding, PlanError, PresetError
from distui.presets.imports import Imported, text
from distui.presets.launchers import accelerate, deepspeed
from distui.presets.load import Definition, Library, load
from distui.presets.model import Preset
from distui.presets.plan import Place, Plan, make_plan
from distui.presets.request import Request

pytest.importorskip("yaml", reason="PyYAML is not installed")

MULTI = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29500
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: false
"""
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_offload_params: false
  fsdp_sharding_strategy: 4
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer, Other
  fsdp_forward_prefetch: true
"""
ZERO = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "steps_per_print": None,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": 5e8,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/disk", "buffer_count": 4},
        "offload_param": {"device": "cpu", "pin_memory": True},
    },
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
}
TASK = """
name: train
num_nodes: 2
resources:
  accelerators: H100:8
  network_tier: best
envs:
  NCCL_DEBUG: INFO
  WANDB_PROJECT: p
  HF_TOKEN: hunter2
workdir: .
setup: pip install -e .
run: |
  torchrun --nproc-per-node 8 train.py
"""


def read(name: str, data: str | bytes) -> tuple[Imported, list[Finding]]:
    raw = data.encode() if isinstance(data, str) else data
    return imports.import_preset(name, raw)


def loaded(found: Imported) -> Preset:
    """The preset as it is loaded from the file that the import writes."""
    made = text("mine", "file", found)
    table = tomllib.loads(made)
    whole = Definition(name="mine", origin="x", where="mine.toml", table=table)
    return load("mine", presets=Library(definitions={"mine": (whole,)})).preset


def test_accelerates_total_is_divided_over_the_machines_and_named() -> None:
    found, problems = read("a.yaml", MULTI)
    made = loaded(found)
    assert (made.strategy.kind, made.precision.param, made.precision.reduce) == ("ddp", "bf16", "bf16")
    assert (made.topology.nnodes, made.topology.nproc_per_node) == (2, 4)
    assert any("num_processes" in one.text and "total" in one.text for one in problems), problems
    assert "num_processes 8 is the total of 2 machines: 4 ranks on each." in found.notes
    assert {note.split()[0] for note in found.notes} == {
        "num_processes",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
    }
    assert made.accelerate == {
        "debug": False,
        "downcast_bf16": "no",
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
    }


def test_accelerates_fsdp() -> None:
    made = loaded(read("a.yml", FSDP)[0])
    strategy = made.strategy
    assert (strategy.kind, strategy.sharding, strategy.cpu_offload) == ("fsdp1", "HYBRID_SHARD", False)
    assert strategy.wrap == ("LlamaDecoderLayer", "Other")
    assert made.accelerate == {
        "fsdp_config": {
            "fsdp_backward_prefetch": "NO_PREFETCH",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_forward_prefetch": True,
        }
    }
    second = FSDP.replace(
        "  fsdp_sharding_strategy: 4", "  fsdp_version: 2\n  fsdp_reshard_after_forward: 'false'"
    )
    assert loaded(read("a.yml", second)[0]).strategy.kind == "fsdp2"
    assert loaded(read("a.yml", second)[0]).strategy.reshard_after_forward is False


def test_accelerates_deepspeed_keys_become_fields_and_deepspeeds_own() -> None:
    source = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: fp16
num_processes: 4
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 8
  gradient_clipping: 0.5
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
"""
    made = loaded(read("a.yaml", source)[0])
    assert (made.strategy.kind, made.strategy.stage, made.batch.accumulation) == ("deepspeed", 3, 8)
    assert (made.strategy.offload_optimizer, made.strategy.offload_param) == ("cpu", "none")
    assert made.accelerate == {"deepspeed_config": {"zero3_init_flag": True}}
    assert made.deepspeed == {
        "gradient_clipping": 0.5,
        "zero_optimization": {
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }


def test_deepspeeds_configuration() -> None:
    made = loaded(read("ds.json", json.dumps(ZERO))[0])
    strategy = made.strategy
    assert (strategy.kind, strategy.stage, strategy.nvme_path) == ("deepspeed", 3, "/disk")
    assert (strategy.offload_optimizer, strategy.offload_param) == ("nvme", "cpu")
    assert (made.batch.micro, made.batch.accumulation) == (4, 2)
    assert (made.precision.param, made.precision.reduce) == ("bf16", "bf16")
    assert made.deepspeed == {
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": False,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
        "zero_optimization": {
            "overlap_comm": True,
            "reduce_bucket_size": 5e8,
            "offload_optimizer": {"buffer_count": 4},
            "offload_param": {"pin_memory": True},
        },
    }


def test_a_total_batch_stays_deepspeeds_to_divide() -> None:
    made = loaded(read("ds.json", '{"train_batch_size": 64, "zero_optimization": {"stage": 1}}')[0])
    assert made.deepspeed["train_batch_size"] == 64
    assert (made.batch.micro, made.batch.total) == (None, None)


def test_a_skypilot_task() -> None:
    found, _ = read("task.yaml", TASK)
    made = loaded(found)
    assert made.topology.nnodes == 2
    assert (dict(made.nccl.env), dict(made.env)) == ({"NCCL_DEBUG": "INFO"}, {"WANDB_PROJECT": "p"})
    assert made.sky == {
        "resources": {"accelerators": "H100:8", "network_tier": "best"},
        "workdir": ".",
        "setup": "pip install -e .",
    }
    assert "hunter2" not in text("mine", "file", found)
    assert any(note.startswith("HF_TOKEN is left out") for note in found.notes)
    assert any(note.startswith("Its run: is left out") for note in found.notes)


def test_a_task_whose_run_names_a_configuration_of_deepspeed() -> None:
    """Its stage, optimizer and precision are the preset's; a file that is not there is named."""
    config = (
        b'{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"}}'
    )
    task = "num_nodes: 2\nrun: deepspeed train.py --deepspeed ds_config.json\n"
    found, _ = imports.import_preset(
        "task.yaml", task.encode(), lambda name: config if name == "ds_config.json" else None
    )
    made = loaded(found)
    assert (made.strategy.kind, made.strategy.stage, made.precision.param) == ("deepspeed", 3, "bf16")
    assert made.deepspeed["optimizer"] == {"type": "AdamW"}
    assert made.topology.nnodes == 2
    assert any("strategy is that of ds_config.json" in note for note in found.notes)
    assert not any("is unknown here" in note for note in found.notes)
    found, _ = imports.import_preset("task.yaml", task.encode())
    assert loaded(found).strategy.kind == "ddp"
    assert any("(ds_config.json is not here)" in note for note in found.notes)


@for_each(
    ("name", "data", "words"),
    [
        ("x.yaml", b"a: \xff\xfe", "x.yaml line 1: is not UTF-8 text"),
        ("x.yaml", b"distributed_type: [", "x.yaml line 2: is not valid YAML"),
        ("x.yaml", b"a: &a [*a]", "x.yaml line 1"),
        ("x.json", b'{\n"zero_optimization": {,}}', "x.json line 2: is not valid JSON"),
        ("x.json", b"[1]", "it holds no mapping"),
        ("x.yaml", b"a: 1\nb: 2", "it holds keys a, b: accelerate's YAML, DeepSpeed's JSON or a SkyPilot task"),
        ("x.yaml", b"a: 1\n---\nb: 2", "2 documents where one is expected"),
        ("x.yaml", b"x" * ((1 << 20) + 1), "is larger than 1 MiB"),
        ("x.yaml", b"distributed_type: TP", "distributed_type is TP: one of NO, MULTI_GPU"),
        ("x.yaml", b"distributed_type: XLA", "XLA: distui starts ranks on GPUs and CPUs, not on TPUs"),
        ("x.yaml", b"distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: d}", "d cannot be read as"),
        ("x.yaml", b"compute_environment: AMAZON_SAGEMAKER", "only LOCAL_MACHINE can be a preset"),
        ("x.yaml", b"distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: X}", "strategy.sharding takes"),
        ("x.json", b'{"zero_optimization": true}', "a table with a stage is expected"),
        ("x.json", b'{"zero_optimization": {"stage": 7}}', "strategy.stage takes 0, 1, 2 or 3, not 7"),
        ("x.json", b'{"zero_optimization": {"stage": "two"}}', "stage is two: a whole number is expected"),
        ("x.yaml", b"distributed_type: MULTI_GPU\nnum_processes: many", "num_processes is many: a whole number"),
        ("x.yaml", b"distributed_type: MULTI_GPU\nnum_machines: 0", "topology.nnodes takes 1 or more, not 0"),
        ("x.yaml", b"zero_optimization: {stage: 1, x: .inf}", "deepspeed.zero_optimization"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_one_sentence(name: str, data: bytes, words: str) -> None:
    with pytest.raises(PresetError) as caught:
        loaded(read(name, data)[0])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bombs_of_aliases_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(PresetError, match="line"):
        read("x.yaml", "\n".join(lines))


def test_odd_texts_survive_the_file() -> None:
    odd: dict[str, Any] = {'a "b" c': ["x\ny", "\x7f", "ü", -1, True, {"k": 0.5}], "é": {}}
    found = Imported(values={"strategy.kind": "ddp"})
    found.keep("sky", odd)
    found.notes.append("two\nlines")
    assert loaded(found).sky == {'a "b" c': ["x\ny", "\x7f", "ü", -1, True, {"k": 0.5}]}


def plan_of(found: Imported, **place: Any) -> Plan:
    made = text("mine", "file", found)
    whole = Definition(name="mine", origin="x", where="mine.toml", table=tomllib.loads(made))
    preset = load("mine", presets=Library(definitions={"mine": (whole,)}))
    script = "from accelerate import Accelerator\nAccelerator()"
    where = Place(
        run="r",
        run_dir="/r",
        port=1,
        ras_port=2,
        gpus=8,
        cores=8,
        cwd="/work",
        python="python",
        script_source=script,
    )
    return make_plan(preset, Request(script="train.py"), replace(where, **place))


def test_the_mesh_of_an_import_is_the_same_in_every_part_of_the_plan() -> None:
    source = FSDP.replace("  fsdp_sharding_strategy: 4\n", "  fsdp_version: 2\n") + (
        "parallelism_config: {parallelism_config_tp_size: 2, parallelism_config_dp_shard_size: 4}\n"
    )
    plan = plan_of(read("a.yaml", source)[0])
    assert plan.mesh == {"dp_shard": 4, "tp": 2}
    assert json.loads(plan.env["DISTUI_MESH"])["tp"] == 2
    of_accelerate = {
        name: size for name, size in plan.env.items() if name.startswith("PARALLELISM_CONFIG_")
    }
    assert of_accelerate == {
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "1",
        "PARALLELISM_CONFIG_CP_SIZE": "1",
        "PARALLELISM_CONFIG_TP_SIZE": "2",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": "4",
    }


def test_megatron_through_accelerate_has_its_own_mesh() -> None:
    source = """
compute_environment: LOCAL_MACHINE
distributed_type: MEGATRON_LM
num_processes: 8
megatron_lm_config: {megatron_lm_tp_degree: 2, megatron_lm_pp_degree: 2, megatron_lm_use_distributed_optimizer: true}
"""
    plan = plan_of(read("a.yaml", source)[0])
    assert plan.mesh == {"pp": 2, "dp": 2, "tp": 2}
    assert "DISTUI_MESH" not in plan.env
    assert plan.obeys is not None
    assert "train.py, through [accelerate] megatron_lm_config, divides its model" in plan.obeys
    assert plan.env["ACCELERATE_USE_MEGATRON_LM"] == "true"
    assert plan.env["MEGATRON_LM_TP_DEGREE"] == "2"
    assert plan.env["MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER"] == "true"


@for_each(
    ("override", "sentence"),
    [
        ("accelerate.parallelism_config.parallelism_config_tp_size=2", "contradicts mesh.tp, which makes it 1: set"),
        ("accelerate.fsdp_config.fsdp_offload_params=true", "contradicts strategy.cpu_offload, which makes it false"),
        ("accelerate.mixed_precision=fp16", "contradicts precision.param, which makes it no"),
    ],
)  # fmt: skip
def test_further_keys_do_not_contradict_a_field(override: str, sentence: str) -> None:
    loaded = load("fsdp2", (override,), cwd=Path("/"), env={"HOME": "/nonexistent"})
    with pytest.raises(PlanError) as caught:
        accelerate.config(loaded.preset, 8, "nccl", "")
    assert sentence in str(caught.value)


def test_deepspeeds_further_keys_do_not_contradict_a_field() -> None:
    override = "deepspeed.zero_optimization.stage=3"
    loaded = load("ds-zero2", (override,), cwd=Path("/"), env={"HOME": "/nonexistent"})
    with pytest.raises(
        PlanError, match=r"contradicts strategy\.stage, which makes it 2: set strategy\.stage"
    ):
        deepspeed.config(loaded.preset, "deepspeed")


def test_ranks_that_share_a_sequence_below_deepspeed_are_noted() -> None:
    source = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config: {zero_stage: 3}
parallelism_config: {parallelism_config_sp_size: 4, parallelism_config_sp_backend: deepspeed}
"""
    plan = plan_of(read("a.yaml", source)[0])
    assert plan.env["PARALLELISM_CONFIG_SP_SIZE"] == "4"
    assert any("4 ranks share a sequence (sp_size)" in note for note in plan.notes)
