"""Accelerate's own loader and launcher on distui's settings: each key is known, and each variable is what they set."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets.known_names import known_names
from distui.presets.launchers import accelerate
from distui.presets.load import load
from distui.presets.model import Preset
from distui.presets.text_formats import write_yaml

from .hf import needs_hf
from .plans import OF_ACCELERATE, PLACE, plan

pytestmark = [needs_hf, pytest.mark.long, pytest.mark.filterwarnings("ignore")]

OURS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


def words_of(tmp_path: Path, preset: str, *overrides: str) -> list[str]:
    """The arguments of `accelerate launch` with the same settings."""
    words = ["--config_file", str(yaml_of(tmp_path, preset, *overrides))]
    if preset.startswith("ds-"):  # with DeepSpeed's file Accelerate takes it only as an option
        words += [
            "--mixed_precision",
            load(preset, overrides, cwd=Path("/"), env={}).preset.precision.param,
        ]
    return [*words, "train.py"]


def yaml_of(tmp_path: Path, preset: str, *overrides: str, **place: Any) -> Path:
    made = plan(preset, *overrides, **place)
    loaded = load(preset, overrides, cwd=Path("/"), env={"HOME": "/nonexistent"})
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml_text(loaded.preset, made.nproc_per_node or 1, made.backend or "nccl"))
    return path


def yaml_text(preset: Preset, world: int, backend: str) -> str:
    """Accelerate's file with distui's settings."""
    config = accelerate.config(preset, world, backend, f"{PLACE.run_dir}/ds_config.json")
    if config["distributed_type"] == "DEEPSPEED":
        del config["mixed_precision"]
    machine = {
        "compute_environment": "LOCAL_MACHINE",
        "machine_rank": 0,
        "num_machines": 1,
        "num_processes": world,
    }
    return write_yaml({**machine, **config})


def validated(words: list[str]) -> tuple[Any, bool]:
    """The arguments of `accelerate launch` as it completes them, and whether the precision is its file's."""
    from accelerate.commands import launch

    args = launch.launch_command_parser().parse_args(words)
    args, _, precision_from_file = launch._validate_launch_command(args)
    return args, precision_from_file


def their_environment(words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `accelerate launch` gives its ranks."""
    from accelerate.utils import launch

    args, from_file = validated(words)
    args.deepspeed_fields_from_accelerate_config = ""
    has_file = args.use_deepspeed and args.deepspeed_config_file is not None
    assert not from_file or not has_file, "Accelerate refuses a precision beside DeepSpeed's file"
    args.main_process_port = 0
    monkeypatch.setattr("os.environ", {"PATH": "/usr/bin", "HOME": "/nonexistent"})
    made = (
        launch.prepare_deepspeed_cmd_env(args)[1]
        if args.use_deepspeed
        else launch.prepare_multi_gpu_env(args)
    )
    return {name: value for name, value in made.items() if name.startswith(OURS)}


@for_each("gpus", [8, 0])
@for_each("preset", OF_ACCELERATE)
def test_its_loader_knows_every_key(tmp_path: Path, preset: str, gpus: int) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    if preset in ("fsdp2-offload", "fsdp1-offload", "ds-zero3-cpu", "ds-zero3-nvme") and not gpus:
        pytest.skip("for GPUs alone")
    path = yaml_of(tmp_path, preset, gpus=gpus, cores=2)
    found = load_config_from_file(str(path))
    assert found.use_cpu is (not gpus)
    kinds = {"single": "NO", "ddp": "MULTI_GPU"} if gpus else {"single": "NO"}
    wanted = "DEEPSPEED" if preset.startswith("ds-") else kinds.get(preset, "FSDP" if gpus else "MULTI_GPU")
    assert found.distributed_type.value == wanted


@for_each("preset", [name for name in OF_ACCELERATE if name != "single"])
def test_its_launcher_sets_what_distui_sets(
    tmp_path: Path, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {name: value for name, value in plan(preset).env.items() if name.startswith(OURS)}
    theirs = their_environment(words_of(tmp_path, preset), monkeypatch)
    assert theirs["ACCELERATE_MIXED_PRECISION"] == ours["ACCELERATE_MIXED_PRECISION"]
    assert {name: theirs.get(name) for name in ours} == ours


LAYERS = ("strategy.compile=true", "strategy.activation_checkpointing=true")


def test_layers_are_compiled_and_checkpointed_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {name: value for name, value in plan("fsdp2", *LAYERS).env.items() if name.startswith(OURS)}
    assert ours["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"
    assert ours["FSDP_ACTIVATION_CHECKPOINTING"] == "true"
    theirs = their_environment(words_of(tmp_path, "fsdp2", *LAYERS), monkeypatch)
    assert {name: theirs[name].lower() for name in ours} == {name: ours[name].lower() for name in ours}


def test_the_table_of_further_keys_wins_in_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (
        "accelerate.fsdp_config.fsdp_state_dict_type=FULL_STATE_DICT",
        "accelerate.parallelism_config.parallelism_config_cp_backend=torch",
        "accelerate.dynamo_config.dynamo_backend=INDUCTOR",
        "accelerate.dynamo_config.dynamo_use_fullgraph=true",
    )
    ours = plan("fsdp2", *more).env
    assert ours["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"
    assert ours["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"
    theirs = their_environment(
        ["--config_file", str(yaml_of(tmp_path, "fsdp2", *more)), "train.py"], monkeypatch
    )
    mine = {name: value for name, value in ours.items() if name.startswith(OURS)}
    assert {name: str(theirs.get(name)).lower() for name in mine} == {
        name: value.lower() for name, value in mine.items()
    }
    assert sys.modules["accelerate"].__version__ >= "1.10"


@for_each("preset", ["fsdp2", "fsdp2-zero2", "fsdp1", "fsdp1-grad-op", "fsdp1-hybrid-zero2"])
def test_its_plugin_takes_the_environment(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What every rank's Accelerator makes of the variables, as far as a machine without GPUs can."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    env = plan(preset, 'strategy.wrap=["Block"]').env
    for name, value in env.items():
        if name.startswith(OURS):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("FSDP_SYNC_MODULE_STATES", "false")  # which asks for a GPU at once
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")
    made = FullyShardedDataParallelPlugin()
    assert made.fsdp_version == (2 if preset.startswith("fsdp2") else 1)
    assert made.transformer_cls_names_to_wrap == ["Block"]
    if made.fsdp_version == 2:
        assert made.reshard_after_forward is (preset == "fsdp2")
    else:
        wanted = {"fsdp1": "FULL_SHARD", "fsdp1-grad-op": "SHARD_GRAD_OP"}
        assert made.sharding_strategy.name == wanted.get(preset, "_HYBRID_SHARD_ZERO2")
        assert made.use_orig_params is True


def test_lint_knows_its_keys_and_types() -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import DistributedType

    keys, known = (
        {field.name for field in dataclasses.fields(ClusterConfig)},
        set(known_names("accelerate")["keys"]),
    )
    assert known - {"fp16", "dynamo_backend", "ipex_config", "tp_config"} <= keys <= known
    assert {kind.value for kind in DistributedType} <= set(known_names("accelerate")["distributed_type"])
    names = [name for action in launch_command_parser()._actions for name in action.option_strings]
    assert {name[2:] for name in names if name.startswith("--fsdp_")} <= set(
        known_names("accelerate")["fsdp_keys"]
    )
