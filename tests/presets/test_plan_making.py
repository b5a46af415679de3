"""Preset + request + place → Plan: what stands in it, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets import rank_env
from distui.presets.finding import PlanError
from distui.presets.load import load
from distui.presets.model import Loaded
from distui.presets.plan import Place, Plan, command_plan, make_plan
from distui.presets.request import Request

PLACE = Place(
    run="r-1",
    run_dir="/state/runs/r-1",
    port=29511,
    ras_port=28111,
    gpus=0,
    cores=2,
    cwd="/work",
    python="/env/bin/python",
    script_source="print('hello')",
)
TRAIN = Request(script="train.py")
OBEYS = "from distui.runners.inrank.parallelize import parallelize\nparallelize(model)"


def preset(name: str, *overrides: str) -> Loaded:
    return load(name, overrides, cwd=Path("/"), env={"HOME": "/nonexistent"})


def plan(name: str = "ddp", *overrides: str, request: Request = TRAIN, **place: Any) -> Plan:
    return make_plan(preset(name, *overrides), request, replace(PLACE, **place))


def refused(name: str = "ddp", *overrides: str, request: Request = TRAIN, **place: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(name, *overrides, request=request, **place)
    text = str(caught.value)
    assert "\n" not in text
    assert not text.endswith(".")
    return text


def test_the_environment_that_every_rank_needs() -> None:
    made = plan()
    expected = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",
        "NCCL_DEBUG": "WARN",
        "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV",
        "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "NCCL_RAS_ADDR": "localhost:28111",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": "1",
        "DISTUI_RUN_ID": "r-1",
        "DISTUI_STRATEGY": "ddp",
        "DISTUI_BACKEND": "gloo",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "30",
    }
    assert expected.items() <= made.env.items()
    assert json.loads(made.env["DISTUI_PRECISION"]) == {"param": "fp32", "reduce": "fp32"}
    assert "NCCL_DEBUG_FILE" not in made.env
    assert "TORCHELASTIC_ERROR_FILE" not in made.env


@for_each(
    ("name", "overrides", "options"),
    [
        ("single", (), {}),
        (
            "ddp",
            ("strategy.bucket_cap_mb=50",),
            {
                "bucket_cap_mb": 50,
                "find_unused_parameters": False,
                "gradient_as_bucket_view": True,
                "static_graph": False,
                "device_mesh": False,
            },
        ),
        (
            "fsdp2",
            ("strategy.reshard_after_forward=false",),
            {"reshard_after_forward": False, "wrap": [], "cpu_offload": False},
        ),
        (
            "zero1",
            (),
            {
                "find_unused_parameters": False,
                "gradient_as_bucket_view": True,
                "static_graph": False,
                "device_mesh": False,
            },
        ),
    ],
)
def test_what_parallelize_reads(
    name: str, overrides: tuple[str, ...], options: Mapping[str, object]
) -> None:
    made = plan(name, *overrides)
    assert made.env["DISTUI_STRATEGY"] == name
    assert json.loads(made.env["DISTUI_STRATEGY_OPTIONS"]) == options


@for_each(
    ("asked", "gpus", "env", "ranks", "backend"),
    [
        (None, 0, {}, 2, "gloo"),
        (None, 8, {}, 8, "nccl"),
        ("gpu", 8, {}, 8, "nccl"),
        ("cpu", 8, {}, 2, "gloo"),
        (4, 8, {}, 4, "nccl"),
        ("3", 0, {}, 3, "gloo"),
        (16, 0, {}, 16, "gloo"),
        (None, 8, {"CUDA_VISIBLE_DEVICES": "0,2"}, 2, "nccl"),
        (None, 8, {"CUDA_VISIBLE_DEVICES": ""}, 2, "gloo"),
        (None, 8, {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb,GPU-cc"}, 3, "nccl"),
        (None, 8, {"CUDA_VISIBLE_DEVICES": "1,-1,2"}, 1, "nccl"),
        (3, 1, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, 3, "nccl"),
    ],
)
def test_ranks_and_backend(
    asked: int | str | None, gpus: int, env: dict[str, str], ranks: int, backend: str
) -> None:
    made = plan(request=replace(TRAIN, nproc_per_node=asked, env=env), gpus=gpus)
    assert (made.nproc_per_node, made.backend) == (ranks, backend)
    assert made.env["DISTUI_BACKEND"] == backend
    assert made.argv[made.argv.index("--nproc-per-node") + 1] == str(ranks)


def test_a_visible_list_in_the_users_shell_counts_too() -> None:
    assert plan(gpus=8, user_env={"CUDA_VISIBLE_DEVICES": "3"}).nproc_per_node == 1


@for_each(
    ("asked", "gpus", "part"),
    [
        (9, 8, "nproc_per_node 9 > 8 GPUs"),
        (2, 1, "nproc_per_node 2 > 1 GPU:"),
        (17, 0, "nproc_per_node 17 > 2 cores × 8 = 16"),
        ("gpu", 0, "no GPU is visible"),
        (0, 0, "starts no rank"),
        (-1, 8, "starts no rank"),
        ("all", 8, "write a number, gpu, cpu or auto"),
    ],
)
def test_impossible_numbers_of_ranks(asked: int | str, gpus: int, part: str) -> None:
    assert part in refused(request=replace(TRAIN, nproc_per_node=asked), gpus=gpus)


def test_ranks_share_a_gpu_only_where_nccl_is_asked_to_let_them() -> None:
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}
    words = refused(request=replace(TRAIN, nproc_per_node=2, env=env), gpus=1)
    assert "--env NCCL_MULTI_RANK_GPU_ENABLE=1" in words


@for_each(
    ("request_", "place", "part"),
    [
        (Request(), {}, "No script was given"),
        (TRAIN, {"script_exists": False}, "script not found: train.py (looked in /work)"),
        (Request(script="a.b", module=True), {"script_exists": False}, "module not found: a.b"),
        (Request(script="x", module=True, no_python=True), {}, "exclude each other"),
        (replace(TRAIN, nnodes=2), {}, "nnodes 2 needs more machines than this one"),
        (replace(TRAIN, nnodes=0), {}, "nnodes 0 is too few"),
        (replace(TRAIN, nccl={"NCCL_DEBG": "INFO"}), {}, "did you mean NCCL_DEBUG?"),
        (replace(TRAIN, nccl={"NCCL_P2P_DISABLE": "yes"}), {}, "takes 0 or 1"),
        (replace(TRAIN, env={"RANK": "1"}), {}, "RANK is computed for each rank"),
        (replace(TRAIN, env={"DISTUI_RUN_ID": "x"}), {}, "DISTUI_RUN_ID is distui's own"),
        (replace(TRAIN, env={"": "x"}), {}, "is not a valid name of an environment variable"),
        (replace(TRAIN, env={"A": "\0"}), {}, "holds a NUL"),
    ],
)
def test_refusals(request_: Request, place: dict[str, Any], part: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(preset("ddp"), request_, replace(PLACE, **place))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_single_is_one_rank() -> None:
    assert plan("single", gpus=8).nproc_per_node == 1
    assert "strategy single is one rank" in refused("single", request=replace(TRAIN, nproc_per_node=2))


def test_extra_launcher_arguments_may_not_undo_distuis() -> None:
    made = plan("ddp", 'launcher.args=["--virtual-local-rank"]')
    assert "--virtual-local-rank" in made.argv[: made.argv.index("train.py")]
    for bad in ("--nnodes=3", "--rdzv_backend", "--standalone", "-m", "--log-dir"):
        assert bad.split("=")[0] in refused("ddp", f'launcher.args=["{bad}"]')


def test_the_later_wish_wins() -> None:
    loaded = preset("ddp", "env.A=preset", "env.B=preset", "nccl.NCCL_DEBUG=INFO")
    request = replace(TRAIN, env={"A": "asked"}, nccl={"NCCL_IB_TIMEOUT": "22"})
    user = {"NCCL_DEBUG": "TRACE", "TORCH_FR_BUFFER_SIZE": "9", "B": "shell"}
    env = make_plan(loaded, request, replace(PLACE, user_env=user)).env
    assert (env["A"], env["B"], env["NCCL_DEBUG"]) == ("asked", "preset", "INFO")
    assert (env["NCCL_IB_TIMEOUT"], env["TORCH_FR_BUFFER_SIZE"]) == ("22", "9")


def test_what_the_users_shell_says_is_kept_and_told() -> None:
    made = plan(user_env={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1"})
    assert made.env["NCCL_DEBUG"] == "INFO"
    assert "OMP_NUM_THREADS" not in made.env
    told = [note for note in made.notes if "comes from your environment" in note]
    assert told == ["NCCL_DEBUG=INFO comes from your environment."]


def test_variables_of_a_rank_are_not_taken() -> None:
    made = plan(request=replace(TRAIN, env={"NCCL_DEBUG_FILE": "/tmp/x"}))
    assert "NCCL_DEBUG_FILE" not in made.env
    assert "NCCL_DEBUG_FILE is set by the runner for each rank; your value is not used." in made.notes


def test_a_wish_wins_over_what_accelerate_is_told() -> None:
    source = "from accelerate import Accelerator\nAccelerator()\n"
    name = "ACCELERATE_MIXED_PRECISION"
    assert plan(script_source=source).env[name] == "no"
    assert plan(request=replace(TRAIN, env={name: "fp16"}), script_source=source).env[name] == "fp16"


def test_a_dangerous_wish_is_told() -> None:
    made = plan(request=replace(TRAIN, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}))
    assert any("restarted worker group can hang" in note for note in made.notes)
    assert not any("can hang" in note for note in plan().notes)


def test_omp_threads_only_with_several_ranks() -> None:
    assert "OMP_NUM_THREADS" not in plan("single").env
    assert plan("ddp", "env.OMP_NUM_THREADS=3").env["OMP_NUM_THREADS"] == "3"


def test_notes_say_what_the_machine_lacks_and_what_obeys() -> None:
    made = plan()
    assert made.obeys is None
    assert made.notes[0] == "No GPU is visible on this machine: backend gloo, 2 ranks (one per core)."
    assert made.notes[-1] == "train.py ignores the preset, which sets only launcher flags and environment."
    obeying = plan(script_source=OBEYS, gpus=2)
    assert obeying.obeys == "train.py calls parallelize() in line 2: it obeys strategy and precision."
    assert obeying.notes[-1] == obeying.obeys


def test_the_request_changes_the_preset() -> None:
    request = replace(TRAIN, hook=False, grace_s=5, restart_limit=0, name="night", python="/other/python")
    made = plan(request=request)
    assert (made.hook, made.grace_s, made.restart.limit) == (False, 5, 0)
    assert (made.name, made.python, made.preset) == ("night", "/other/python", "ddp")
    assert made.restart.backoff_s == 1.0
    assert made.env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "5"


@for_each(
    ("request_", "name", "command", "tail"),
    [
        (Request(script="a/train.py", args=("-x",)), "train", ("a/train.py", "-x"), ("a/train.py", "-x")),
        (
            Request(script="pkg.train", module=True, args=("--", "y")),
            "train",
            ("-m", "pkg.train", "--", "y"),
            ("-m", "--", "pkg.train", "--", "y"),
        ),
        (Request(script="./prog", no_python=True), "prog", ("./prog",), ("--no-python", "./prog")),
    ],
)
def test_forms_of_a_command(
    request_: Request, name: str, command: tuple[str, ...], tail: tuple[str, ...]
) -> None:
    made = plan(request=request_)
    assert made.name == name
    assert made.command == command
    assert made.argv[-len(tail) :] == tail


def test_a_command_is_supervised_as_it_is() -> None:
    request = Request(env={"A": "1"}, nccl={"NCCL_DEBUG": "INFO"})
    made = command_plan(("bash", "train all.sh"), request, replace(PLACE, gpus=8))
    assert (made.launcher, made.argv, made.command) == (
        "command",
        ("bash", "train all.sh"),
        ("bash", "train all.sh"),
    )
    assert (made.nproc_per_node, made.backend, made.obeys, made.python) == (None, None, None, "")
    assert made.restart.limit == 0
    assert {"A": "1", "NCCL_DEBUG": "INFO", "DISTUI_RUN_ID": "r-1", "PYTHONUNBUFFERED": "1"}.items() <= (
        made.env.items()
    )
    assert "DISTUI_STRATEGY" not in made.env
    assert "OMP_NUM_THREADS" not in made.env
    with pytest.raises(PlanError, match="No command was given"):
        command_plan((), request, PLACE)
    with pytest.raises(PlanError, match="RANK is computed"):
        command_plan(("x",), Request(env={"RANK": "1"}), PLACE)


def test_everything_inherited_is_what_the_layers_look_at() -> None:
    shell = dict.fromkeys((*rank_env.WATCHED, "HOME", "OMP_NUM_THREADS"), "7")
    seen = rank_env.inherited_env(shell)
    assert "HOME" not in seen
    made = plan(user_env=seen)
    assert "OMP_NUM_THREADS" not in made.env
    assert all(made.env[name] == "7" for name in rank_env.WATCHED)


def test_a_module_that_is_not_here_says_where_it_was_looked_for() -> None:
    there = Request(script="pkg.train", module=True)
    assert (
        plan(request=there, script_source=None)
        .notes[-1]
        .startswith("Module pkg.train is none below /work:")
    )
    assert "parallelize() in line 2" in plan(request=there, script_source=OBEYS).notes[-1]
