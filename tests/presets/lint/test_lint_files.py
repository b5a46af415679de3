"""lint on files: each rule by a file that breaks it, and by its twin that does not."""

from __future__ import annotations

import re
from pathlib import Path

from each import for_each

from distui.presets.finding import Finding
from distui.presets.lint import lint_file
from distui.presets.lint.lint_rules import MOST
from distui.presets.load import library
from distui.presets.text_formats import MOST_BYTES

SHELF = library(Path("/"), {"HOME": "/nowhere"})

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_offload_params: false
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
"""
ALONE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
DEEPSPEED = """\
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "fp16": {"enabled": false},
  "zero_optimization": {
    "stage": 3
  }
}
"""
TASK = """\
num_nodes: 2
resources:
  accelerators: H100:8
  network_tier: best
envs:
  NCCL_DEBUG: WARN
run: |
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)

  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 /app/train.py --resume
"""
PRESET = """\
base = "ddp"

[topology]
nproc_per_node = "gpu"

[env]
OMP_NUM_THREADS = 4

[nccl]
NCCL_DEBUG = "WARN"
"""


def accelerate(*changes: tuple[str, str], base: str = ACCELERATE) -> tuple[str, str]:
    return "accelerate.yaml", changed(base, *changes)


def deepspeed(*changes: tuple[str, str]) -> tuple[str, str]:
    return "ds.json", changed(DEEPSPEED, *changes)


def task(*changes: tuple[str, str]) -> tuple[str, str]:
    return "task.yaml", changed(TASK, *changes)


def preset(*changes: tuple[str, str]) -> tuple[str, str]:
    return "night.toml", changed(PRESET, *changes)


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def check(name: str, text: str) -> list[Finding]:
    return lint_file(name, text.encode(), presets=SHELF)


STAGE = '"stage": 3'
PARAM_2 = "zero_stage: 2, offload_param_device: cpu"
ONE_GPU = ("node=8", "node=gpu")
EFA = (
    "{kubernetes: {pod_config: {spec: {containers: [{resources: {limits: {vpc.amazonaws.com/efa: 4}}}]}}}}"
)
GROUP = ("group.yaml", f"name: group\nexecution: parallel\n---\n{task()[1]}---\nrun: echo\n")
TASKS = len(task()[1].splitlines()) + 5
"""Line of the second task behind a header."""
CASES: list[tuple[str, tuple[str, str], int]] = [
    ("L2", accelerate(("num_processes: 16", "num_processes: 8")), 12),
    ("L2", accelerate(("num_processes: 16", "num_processes: 17")), 12),
    ("L11", accelerate(("FULL_SHARD", "HYBRID_SHARD"), base=ALONE), 3),
    ("L11", accelerate(("FULL_SHARD", "4"), base=ALONE), 3),
    ("L20", accelerate(("fsdp_offload_params: false", "fsdp_offload_params: true")), 6),
    ("L22", accelerate(("num_machines: 1", "num_machines: 1\nmain_process_port: 29500"), base=ALONE), 6),
    ("L28", accelerate(("num_processes: 8", "num_processes: 1"), base=ALONE), 6),
    ("L29", accelerate(("machine_rank: 0\n", "")), 10),
    ("L29", accelerate(("main_process_ip: 10.0.0.1\n", "")), 10),
    ("L30", accelerate(("bf16", "float16")), 10),
    ("L30", accelerate(("bf16", "no")), 10),
    ("L30", accelerate(("FULL_SHARD", "FULL_SHARDS")), 5),
    ("L31", accelerate(("mixed_precision", "mixed_precison")), 10),
    ("L32", accelerate(("FSDP", "DEEPSPEED"), ("rdzv_backend", f"deepspeed_config: {{{PARAM_2}}}\nrdzv_backend")), 13),
    ("L38", accelerate(("10.0.0.1", "127.0.0.1")), 8),
    ("L42", accelerate(("FULL_SHARD", "NO_SHARD")), 5),
    ("L17", deepspeed(("64", "63")), 2),
    ("L20", deepspeed((STAGE, '"stage": 2, "offload_optimizer": {"device": "cpu"}')), 8),
    ("L30", deepspeed((STAGE, '"stage": 4')), 8),
    ("L30", deepspeed((STAGE, '"stage": 2, "offload_optimizer": {"device": "ssd"}')), 8),
    ("L30", deepspeed(('"train_micro_batch_size_per_gpu": 4', '"train_micro_batch_size_per_gpu": "4"')), 3),
    ("L31", deepspeed(('"train_batch_size"', '"train_batchsize"')), 2),
    ("L32", deepspeed((STAGE, '"stage": 2,\n    "offload_param": {"device": "cpu"}')), 9),
    ("L32", deepspeed((STAGE, '"stage": 3, "offload_optimizer": {"device": "nvme"}')), 8),
    ("L33", deepspeed(("false", "true")), 6),
    ("L34", deepspeed(("64", '"auto"')), 2),
    ("L41", deepspeed(("64,", "64")), 3),
    ("L7", task(("best", "premium")), 4),
    ("L10", task(("accelerators: H100:8", "cpus: 8"), ("  network_tier: best\n", ""), ONE_GPU), 9),
    ("L12", task(("best", "best\n  job_recovery: FAILOVER")), 5),
    ("L13", task(("best", "best\n  ports: 6006")), 5),
    ("L16", task(("WARN", "LOUD")), 6),
    ("L21", task(("  network_tier: best\n", "")), 2),
    ("L21", task(("best", "standard")), 4),
    ("L30", task(("num_nodes: 2", "num_nodes: two"), ("nnodes=2", "nnodes=${N:-2}")), 1),
    ("L31", task(("envs:", "env:")), 5),
    ("L31", task(("network_tier: best", "network_tier: best\n  use_spots: true")), 5),
    ("L35", task(("H100:8", "H100:4")), 10),
    ("L35", task(("num_nodes: 2", "num_nodes: 4")), 10),
    ("L35", task(("H100:8", "{H100: 16}")), 10),
    ("L36", task(("NCCL_DEBUG: WARN", "HF_TOKEN: hf_abcdef")), 6),
    ("L37", task(("best", "best\n  use_spot: true"), (" --resume", "")), 5),
    ("L38", task(("NCCL_DEBUG: WARN", "NCCL_SOCKET_IFNAME: lo")), 6),
    ("L38", task(("$HEAD:", "localhost:")), 10),
    ("L3", task(("--nnodes=2", "--nnode=2 --nnodes=2 --nproc_pernode 8")), 10),
    ("L41", task(("best", "best\n - x")), 5),
    ("L47", task(("run: |", "setup: pip install torch==1.13.1 numpy\nrun: |")), 7),
    ("L47", task(("run: |", "setup: |\n  set -e\n  uv pip install 'torch<2.6'\nrun: |")), 9),
    ("L49", GROUP, TASKS),
    ("L55", task(("H100:8", "MI300:8")), 3),
    ("L41", task(("run: |", "setup: *nothing\nrun: |")), 7),
    ("L10", preset(("OMP_NUM_THREADS = 4", 'CUDA_VISIBLE_DEVICES = ""')), 4),
    ("L1", preset(("OMP_NUM_THREADS = 4", "NCCL_TIMEOUT = 4")), 7),
    ("L15", preset(("NCCL_DEBUG =", "NCCL_DEBUGG =")), 10),
    ("L16", preset(("WARN", "LOUD")), 10),
    ("L19", preset(('base = "ddp"', 'base = "dpp"')), 0),
    ("L19", preset(("[topology]", "[strategy]\nstage = 3\n[topology]")), 0),
    ("L30", preset(('"gpu"', '"all"')), 4),
    ("L31", preset(("nproc_per_node", "nprocs")), 4),
    ("L31", preset(("[topology]", "[topolgy]")), 3),
    ("L36", preset(("OMP_NUM_THREADS = 4", 'HF_TOKEN = "hf_abcdef"')), 7),
    ("L41", preset(('"gpu"', "gpu")), 4),
    ("L43", ("compose.yaml", "services: {web: {image: nginx}}\n"), 0),
    ("L43", ("pyproject.toml", "[project]\nname = 'x'\n"), 0),
    ("L43", ("notes.txt", "nothing\n"), 0),
    ("L43", ("empty.yaml", ""), 0),
]  # fmt: skip


@for_each(("id", "file", "line"), CASES)
def test_a_rule_and_its_line(id: str, file: tuple[str, str], line: int) -> None:
    name, text = file
    found = check(name, text)
    if (id, line) == ("L3", 10):  # --nnode is a beginning of --nnodes alone
        assert [one.value for one in found] == ["--nproc_pernode"]
    assert [(one.id, one.where) for one in found] == [(id, f"{name}:{line}" if line else name)]


@for_each(
    "file",
    [
        accelerate(),
        accelerate(base=ALONE),
        accelerate(("machine_rank: 0\n", ""), ("static", "c10d")),
        deepspeed(),
        deepspeed(('"train_micro_batch_size_per_gpu": 4,', "")),
        task(),
        task(("NCCL_DEBUG: WARN", "HF_TOKEN: null")),
        task(("best", "best\n  use_spot: true")),
        task(("accelerators: H100:8", "cpus: 8"), ("  network_tier: best\n", "")),
        task(("accelerators: H100:8", "any_of: [{accelerators: H100:8}, {accelerators: A100:8}]")),
        task(("accelerators: H100:8", "accelerators: [H100:8, A100:4]"), ("node=8", "node=6")),
        task(("  network_tier: best\n", "  infra: slurm/lab\n")),
        task(("run: |", "setup: pip install 'torch>=2.1' torch~=2.7 torchvision==0.14\nrun: |")),
        task(("accelerators: H100:8", "accelerators: A10G:8"), ("  network_tier: best\n", "")),
        task(("  network_tier: best\n", ""), ("run: |", f"config: {EFA}\nrun: |")),
        preset(),
        ("distui.toml", '[preset.night]\nbase = "ddp"\n[preset.night.restart]\nlimit = 9\n'),
    ],
)  # fmt: skip
def test_the_twins_are_clean(file: tuple[str, str]) -> None:
    assert check(*file) == []


def test_a_projects_presets() -> None:
    text = '[preset.night]\nbase = "ddp"\n\n[preset.night.restart]\nlimits = 9\n\n[other]\nx = 1\n'
    assert [(one.id, one.where) for one in check("distui.toml", text)] == [
        ("L31", "distui.toml:7"),
        ("L31", "distui.toml:5"),
    ]


def test_a_preset_with_keys_for_deepspeed() -> None:
    text = "[strategy]\nkind = 'deepspeed'\n[deepspeed]\nfp16.enabled = true\nbf16.enabled = true\n"
    assert [(one.id, one.where) for one in check("z.toml", text)] == [
        ("L33", "z.toml deepspeed.fp16.enabled")
    ]


def test_yaml_that_repeats_itself_without_end() -> None:
    deep = "levels inside each other|nesting depth"  # of ours | of libyaml, since PyYAML 6.0.4
    laughs = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    laughs += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 8)}]" for at in range(1, 12)]
    for text, why in (
        ("\n".join(laughs), "counting what its aliases stand for"),
        ("run: &a [*a]", "more than 60 levels inside each other"),
        ("run: " + "[" * 5000, deep),
        ("- " * 3000 + "x", deep),
        ("- " * 100 + "x", "more than 60 levels inside each other"),
        ("x: 1\n" * 60_000, "holds more than 50,000 values"),
        ("---\nrun: x\n" * 200, "more than 100 documents"),
    ):
        (one,) = check("bomb.yaml", text)
        assert (one.id, one.severity) == ("L41", "error")
        assert re.search(why, one.text)
        assert "\n" not in one.text


@for_each(
    ("data", "why"),
    [
        (b"run: \xff\xfe\n", "is not UTF-8 text"),
        (b"a: b\nrun: \0\n", "holds NUL bytes"),
        (b"#" * (MOST_BYTES + 1), "is larger than 1 MiB"),
        (b"a: [\n", "is not valid YAML: "),
        (b"a: \x07\n", "is not valid YAML: "),
        (b"a: !!python/object/apply:os.system [x]\n", "has the tag !!python/object/apply:os.system"),
        (b"a: 'x\n", "is not valid YAML: "),
        (b"\t- a\n", "is not valid YAML: "),
    ],
)
def test_what_cannot_be_read(data: bytes, why: str) -> None:
    (one,) = lint_file("task.yaml", data)
    assert one.id == "L41"
    assert why in one.text


def test_settings_of_deepspeed_count_only_under_deepspeed() -> None:
    assert check(*accelerate(("rdzv_backend", f"deepspeed_config: {{{PARAM_2}}}\nrdzv_backend"))) == []


def test_a_number_that_cannot_be_printed_is_no_crash() -> None:
    (one,) = check("mine.toml", "[env]\nX = 0x" + "f" * 5000)
    assert (one.id, one.where) == ("L41", "mine.toml:1")
    assert "more than 64 bits" in one.text
    assert [one.id for one in check("task.yaml", "distributed_type: 0x" + "f" * 5000)] == ["L30"]


def test_an_empty_text_that_is_tagged_a_number_is_no_crash() -> None:
    (one,) = check("task.yaml", "run: echo\nnum_nodes: !!int ''\n")
    assert (one.id, one.where) == ("L30", "task.yaml:2")


@for_each(
    ("name", "text", "value"),
    [
        ("ds.json", '{"zero_optimization": {"stage": [3]}, "train_batch_size": 8}', "stage: [3]"),
        (
            "ds.json",
            '{"zero_optimization": {"stage": {"a": [1]}}, "train_batch_size": 8}',
            "stage: {'a': [1]}",
        ),
        ("task.yaml", "run: echo\nnum_nodes: [2]\n", "num_nodes: [2]"),
        ("task.yaml", "run: echo\nresources:\n  network_tier: {a: b}\n", "network_tier: {'a': 'b'}"),
        ("task.yaml", f"run: echo\nnum_nodes: {'x' * 900_000}\n", f"num_nodes: {'x' * 200}…"),
        ("acc.yaml", "distributed_type: [FSDP, DDP]\n", "distributed_type: ['FSDP', 'DDP']"),
    ],
)
def test_a_value_is_quoted_as_it_is_written_and_no_longer_than_a_line(
    name: str, text: str, value: str
) -> None:
    found = check(name, text)
    assert value in [one.value for one in found]
    assert not [one for one in found if "MarkupNode" in f"{one}" or len(one.text) > 1000]


def test_a_number_as_long_as_a_file_is_a_text() -> None:
    """As a number of base 60 it took 42 s of CPU."""
    (one,) = check("task.yaml", f"run: echo\nnum_nodes: 1{':1' * 400_000}\n")
    assert (one.id, one.where) == ("L30", "task.yaml:2")


def test_findings_on_thousands_of_presets_are_cut() -> None:
    text = "".join(f"[preset.a{number}]\nenv.NCCL_TIMEOUT = '{number}'\n" for number in range(MOST + 100))
    assert len(check("distui.toml", text)) == MOST


def test_aliases_and_merged_keys_are_followed() -> None:
    text = (
        "base: &base\n  network_tier: premium\n  accelerators: H100:8\nresources:\n  <<: *base\nrun: echo\n"
    )
    found = check("task.yaml", text)
    assert ("L7", "task.yaml:2") in [(one.id, one.where) for one in found]
    assert [one.value for one in found if one.id == "L31"] == ["base"]


@for_each(
    ("name", "text", "ids"),
    [
        ("train.slurm", "#!/bin/bash\n#SBATCH -N 1\nsrun torchrun --nope t.py\n", ["L3"]),
        ("launch", "#!/usr/bin/env bash\ntorchrun --nope t.py\n", ["L3"]),
        ("launch", "torchrun --nope t.py\n", ["L3"]),
        ("config", '{"zero_optimization": {"stage": 9}}', ["L30"]),
        ("tool", "#!/usr/bin/python3\nimport os\nos.environ['NCCL_TIMEOUT'] = '3'\n", ["L1"]),
        ("t.py", "import os\nos.environ['NCCL_TIMEOUT'] = '3'\n", ["L1"]),
        ("t.py", "print 'x'\n", ["L41"]),
        ("accelerate.json", '{"distributed_type": "NO", "mixed_precision": "fp33"}', ["L30"]),
        ("x.yaml", "zero_optimization: {stage: 9}\n", ["L30"]),
        ("axolotl.yaml", "bf16: auto\ngradient_accumulation_steps: 2\nlr_scheduler: cosine\n", ["L43"]),
        (
            "oumi.yaml",
            "working_dir: .\nresources: {accelerators: A100:4}\nrun: oumi distributed torchrun -m oumi\n",
            [],
        ),
        (
            "mpi.yaml",
            ACCELERATE.replace("FSDP", "MULTI_CPU").replace("10.0.0.1", "localhost")
            + "mpirun_config: {mpirun_ccl: 1}\n",
            [],
        ),
    ],
)
def test_a_file_is_told_by_its_content(name: str, text: str, ids: list[str]) -> None:
    assert [one.id for one in check(name, text)] == ids
