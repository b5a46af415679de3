"""lint on plans: each rule by a plan that breaks it, and by its twin that does not."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets.finding import Finding, PlanError, failed
from distui.presets.lint import lint_plan, refusal
from distui.presets.load import BUILTIN, load
from distui.presets.plan import Place, make_plan
from distui.presets.request import Named, Request

OBEYING = "from distui.runners.inrank.parallelize import parallelize\nmodel = parallelize(model)\nsave('checkpoint')\n"
DEEPSPEED = (
    "import deepspeed, argparse\nargs = deepspeed.add_config_arguments(argparse.ArgumentParser()).parse_args()\n"
    "deepspeed.initialize({})\nsave('checkpoint')\n"
)
GPUS = 8
ALONE = ("single", "accumulate")
"""Presets of one process."""


def place(gpus: int = GPUS, source: str = OBEYING) -> Place:
    return Place(
        run="20260101-000000-train-0123abcd", run_dir="/r", port=20001, ras_port=20002, gpus=gpus, cores=8,
        cwd="/w", python="/p/python", script_source=source, nodes=None,
    )  # fmt: skip


def lint(
    preset: str = "ddp", *overrides: str, source: str = OBEYING, gpus: int = GPUS, **asked: Any
) -> list[Finding]:
    hosts = (Named("a"),) * asked.pop("hosts", 0)
    wish = replace(asked.pop("resources", Request()), managed=asked.pop("managed", False), hosts=hosts)
    loaded = load(preset, overrides, cwd=Path("/"), env={"HOME": "/nowhere"})
    plan = make_plan(loaded, Request(script="train.py", **asked), place(gpus, source))
    return lint_plan(plan, loaded, wish, source=source)


def ids(findings: list[Finding]) -> list[str]:
    return [one.id for one in findings]


H100 = Request(gpus="H100:8", on="aws", network_tier="best")


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("L1", {"env": {"NCCL_TIMEOUT": "3600"}}, {"env": {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600"}}),
    ("L9", {"env": {"NCCL_SOCKET_IFNAME": "eth0"}}, {"env": {"NCCL_SOCKET_IFNAME": "=eth0"}}),
    ("L9", {"env": {"NCCL_NET_GDR_LEVEL": "5"}}, {"env": {"NCCL_NET_GDR_LEVEL": "SYS"}}),
    ("L15", {"env": {"NCCL_DEBUGG": "INFO"}}, {"env": {"NCCL_DEBUG": "INFO"}}),
    ("L15", {"env": {"NCLL_DEBUG": "INFO"}}, {"env": {"NOTHING_DEBUG": "INFO"}}),
    ("L15", {"env": {"NCCL_BLOCKING_WAIT": "1"}}, {"env": {"TORCH_NCCL_BLOCKING_WAIT": "1"}}),
    ("L15", {"nccl": {"NCCL_FOOBAR": "1"}}, {"nccl": {"NCCL_INSPECTOR_ENABLE": "1"}}),
    ("L15", {"env": {"NCCL_RINGS": "0 1"}}, {"env": {"NCCL_TUNER_CONFIG_PATH": "/x"}}),
    ("L16", {"env": {"NCCL_IB_TIMEOUT": "999"}}, {"env": {"NCCL_IB_TIMEOUT": "22"}}),
    ("L16", {"env": {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "16"}},
     {"env": {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}}),
    ("L38", {"nnodes": 2, "env": {"NCCL_SOCKET_IFNAME": "lo"}}, {"env": {"NCCL_SOCKET_IFNAME": "lo"}}),
    ("L40", {"env": {"CUDA_LAUNCH_BLOCKING": "1"}}, {"env": {"CUDA_LAUNCH_BLOCKING": "0"}}),
    ("L40", {"nnodes": 2, "env": {"NCCL_IB_DISABLE": "1"}}, {"env": {"NCCL_IB_DISABLE": "1"}}),
    ("L11", {"preset": "hsdp"}, {"preset": "hsdp", "nnodes": 2}),
    ("L11", {"preset": "fsdp1-hybrid"}, {"preset": "fsdp1-hybrid", "nnodes": 2}),
    ("L12", {"managed": True, "resources": H100}, {"resources": H100}),
    ("L20", {"preset": "fsdp2-offload"}, {"preset": "fsdp2"}),
    ("L21", {"nnodes": 2, "resources": replace(H100, network_tier=None)}, {"nnodes": 2, "resources": H100}),
    ("L21", {"nnodes": 2, "resources": replace(H100, network_tier="standard")},
     {"nnodes": 2, "resources": replace(H100, on="slurm/lab", network_tier=None)}),
    ("L28", {"preset": "fsdp2", "nproc_per_node": 1}, {"preset": "single", "nproc_per_node": 1}),
    ("L35", {"nproc_per_node": 4, "resources": H100}, {"nproc_per_node": 8, "resources": H100}),
    ("L35", {"nnodes": 2, "hosts": 3}, {"nnodes": 2, "hosts": 2}),
    ("L37", {"resources": replace(H100, spot=True), "source": "print()"}, {"resources": replace(H100, spot=True)}),
    ("L42", {"preset": "fsdp1-no-shard"}, {"preset": "fsdp1"}),
    ("L45", {"preset": "ds-zero1", "source": DEEPSPEED.format("args=args")},
     {"preset": "ds-zero1", "source": DEEPSPEED.format("args=args, optimizer=optimizer")}),
    ("L44", {"preset": "tp", "source": f"{OBEYING}HEADS = 3"}, {"preset": "tp", "source": f"{OBEYING}HEADS = 4"}),
]  # fmt: skip


@for_each(("id", "bad", "good"), CASES)
def test_a_rule_and_its_twin(id: str, bad: dict[str, Any], good: dict[str, Any]) -> None:
    assert ids(lint(**bad)) == [id]
    assert lint(**good) == []


def test_where_says_which_field() -> None:
    (one,) = lint("ddp", "env.NCCL_TIMEOUT=30")
    assert (one.where, one.value, one.severity) == ("env.NCCL_TIMEOUT", "30", "error")
    (one,) = lint("ddp", env={"NCCL_DEBUGG": "INFO"})
    assert (one.where, one.remedy) == ("NCCL_DEBUGG", "Did you mean NCCL_DEBUG?")
    (one,) = lint("ddp", "nccl.NCCL_P2P_DISABLE=1")
    assert (one.where, one.id) == ("nccl.NCCL_P2P_DISABLE", "L40")


def test_only_a_typing_error_of_a_variable_is_an_error() -> None:
    names = ("NCCL_FOOBAR", "NCCL_P2P_LVL", "NCCL_LL_THRESHOLD", "NCCL_DEUBG")
    findings = [lint("ddp", env={name: "INFO"})[0] for name in names]
    assert [finding.severity for finding in findings] == ["warning", "warning", "warning", "error"]
    assert [finding.remedy for finding in findings] == [
        "Check its spelling: it is set as written.",
        "Did you mean NCCL_P2P_LEVEL?",
        "Write the right name, or leave it out.",
        "Did you mean NCCL_DEBUG?",
    ]


def test_the_variables_of_single_hosts() -> None:
    loaded = load("ddp", (), cwd=Path("/"), env={"HOME": "/nowhere"})
    request = Request(script="train.py", env_on={"a*": {"NCCL_FOOBAR": "1", "NCCL_DEBUG": "INFO"}})
    (finding,) = lint_plan(make_plan(loaded, request, place()), loaded, request, source=OBEYING)
    assert (finding.id, finding.where, finding.value) == ("L15", "hosts.a*.NCCL_FOOBAR", "1")


def test_what_the_script_reads_itself_is_its_own() -> None:
    source = f"import os\nlimit = os.environ['NCCL_TIMEOUT']\n{OBEYING}"
    assert lint("ddp", env={"NCCL_TIMEOUT": "30"}, source=source) == []


def test_tensor_parallelism_over_nodes() -> None:
    across = lint("tp", "mesh.tp=8", nnodes=2, gpus=4, nproc_per_node=4)
    assert [(one.id, one.where, one.value) for one in across] == [("L39", "mesh.tp", "8")]
    assert lint("tp", "mesh.tp=4", nnodes=2, gpus=4, nproc_per_node=4) == []


def test_an_unknown_option_of_the_launcher() -> None:
    (one,) = lint("ddp", 'launcher.args=["--role", "x", "--shutdown-time-out", "3"]')
    assert (one.id, one.where, one.remedy) == ("L3", "launcher.args", "Did you mean --shutdown-timeout?")
    assert lint("ddp", 'launcher.args=["--role", "x", "--shutdown-timeout", "3"]') == []


def test_a_secret_that_a_preset_holds() -> None:
    (one,) = lint("ddp", "env.HF_TOKEN=hf_abcdef")
    assert (one.id, one.value) == ("L36", "***")
    assert lint("ddp", env={"HF_TOKEN": "hf_abcdef"}) == []


@for_each(
    ("id", "words"),
    [
        ("L17", ["batch.micro=4", "batch.total=100"]),
        ("L18", ["strategy.kind=fsdp2", "mesh.tp=3"]),
        ("L19", ["topology.nproc_per_node=16"]),
    ],
)
def test_what_no_plan_can_be_made_of(id: str, words: list[str]) -> None:
    with pytest.raises(PlanError) as refused:
        lint("ddp", *words)
    one = refusal(str(refused.value))
    assert (one.id, one.severity, one.text) == (id, "error", f"{refused.value}.")


def test_deepspeeds_own_configuration() -> None:
    """The keys that a preset adds for DeepSpeed, and what is written for it."""
    found = lint("ds-zero2", "deepspeed.bf16.enabled=true", "deepspeed.fp16.enabled=true")
    assert "L33" in ids(found)
    assert [one for one in lint("ds-zero2") if one.severity == "error"] == []
    calls = "import deepspeed\nengine = deepspeed.initialize(model)\n'checkpoint'\n"
    auto = "deepspeed.gradient_clipping=auto"
    severities = [
        [one.severity for one in lint("ds-zero2", auto, source=text) if one.id == "L34"]
        for text in (
            calls,
            "from transformers import Trainer\n",
            "from accelerate import Accelerator\n",
            "import x\n",
        )
    ]
    assert severities == [["error"], [], [], ["note"]]


def test_a_strategy_in_an_imported_file() -> None:
    loaded = load("fsdp2", cwd=Path("/"), env={"HOME": "/nowhere"})
    beside = {
        "trainer.py": "from torch.nn.parallel import DistributedDataParallel as DDP\n\ndef wrap(m): return DDP(m)\n"
    }
    plan = make_plan(loaded, Request(script="train.py"), place(source="import trainer\n"))
    found = lint_plan(plan, loaded, Request(), source="import trainer\n", beside=beside)
    assert [(one.id, one.where) for one in found] == [("L25", "trainer.py:3")]
    broken = lint_plan(
        plan, loaded, Request(), source="import trainer\n", beside={"trainer.py": "broken ("}
    )
    assert [(one.id, one.where, one.severity) for one in broken] == [("L41", "trainer.py:1", "warning")]


PLAIN = "from torch.nn.parallel import DistributedDataParallel as DDP\n\nDDP(model)\n"
FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nFSDP(model)\n"
ACCELERATE = "from accelerate import Accelerator\nAccelerator()\n"


@for_each(
    ("preset", "override", "source", "where", "remedy"),
    [
        ("zero1", "restart.limit=3", PLAIN, "train.py:3", "Add --adopt, which applies zero1 there."),
        ("fsdp2", "restart.limit=3", PLAIN, "train.py:3", "Add --adopt, which applies fsdp2 there."),
        ("ddp", "strategy.bucket_cap_mb=7", PLAIN, "strategy.bucket_cap_mb", "Add --adopt, which applies ddp there."),
        ("ds-zero2", "restart.limit=3", PLAIN, "train.py:3", "--adopt cannot apply preset ds-zero2: strategy deepspeed"),
        ("tp", "restart.limit=3", PLAIN, "train.py:3", "--adopt cannot apply preset tp: mesh.tp 2 divides its layers"),
        ("fsdp2", "restart.limit=3", FSDP1, "train.py:3", "Take a preset of strategy fsdp1, or call parallelize()"),
        ("fsdp2", "restart.limit=3", "print(1)", "train.py", "or wrap its model in DistributedDataParallel and add"),
        ("moe", "restart.limit=3", "print(1)", "train.py", "Call parallelize() in the script."),
        ("zero1", "restart.limit=3", ACCELERATE, "train.py", "Take the preset of the script's own strategy"),
    ],
)  # fmt: skip
def test_a_preset_without_effect_comes_with_what_gives_it_one(
    preset: str, override: str, source: str, where: str, remedy: str
) -> None:
    found = [one for one in lint(preset, override, source=source) if one.id == "L25"]
    assert [(one.where, one.severity) for one in found] == [(where, "warning")]
    assert remedy in found[0].remedy


@for_each(
    ("preset", "source"),
    [("ddp", PLAIN), ("fsdp1", FSDP1), ("fsdp2", ACCELERATE), ("ddp", "print(1)"), ("single", "print(1)")],
)
def test_a_preset_that_changes_nothing_that_the_script_does_is_fine(preset: str, source: str) -> None:
    ranks = ("topology.nproc_per_node=1",) if preset == "single" else ()
    assert "L25" not in ids(lint(preset, *ranks, source=source))


def test_a_script_of_this_machine_for_nodes_of_a_cloud() -> None:
    loaded = load("ddp", cwd=Path("/"), env={"HOME": "/nowhere"})
    for script, expected in (("/data/me/train.py", ["L46"]), ("train.py", [])):
        plan = make_plan(loaded, Request(script=script), place())
        assert ids(lint_plan(plan, loaded, H100, source=OBEYING)) == expected
        assert lint_plan(plan, loaded, Request(), source=OBEYING) == []
    assert lint_plan(plan, loaded, H100) == []


@for_each(("gpus", "expected"), [("L4:8", []), ("a10g:8", []), ("H100:8", ["L21"])])
def test_a_network_tier_that_brings_nothing(gpus: str, expected: list[str]) -> None:
    wish = Request(gpus=gpus, on="aws")
    assert ids(lint(nnodes=2, resources=wish)) == expected
    several = Request(on="aws", any_of=({"gpus": gpus}, {"gpus": "T4:8"}))
    assert ids(lint(nnodes=2, resources=several)) == expected


def test_accelerators_of_other_makers() -> None:
    assert ids(lint(resources=replace(H100, gpus="MI300X:8"))) == ["L55"]


def test_an_old_torch_for_the_nodes() -> None:
    assert ids(lint(resources=replace(H100, setup="pip install torch==2.4.0"))) == ["L47"]
    assert lint(resources=replace(H100, setup="pip install torch==2.13.0")) == []


def test_a_script_for_gpus_where_there_are_none() -> None:
    source = f"import torch\ntorch.cuda.set_device(0)\n{OBEYING}"
    (one,) = lint(gpus=0, source=source)
    assert (one.id, one.severity, one.where) == ("L48", "error", "train.py:2")
    assert lint(source=source) == []


@for_each(
    ("main", "expected"),
    [("import setup\n", ["L48"]), ("import setup, torch\nif torch.cuda.is_available(): setup.gpu()\n", [])],
)
def test_a_gpu_that_an_imported_file_takes(main: str, expected: list[str]) -> None:
    loaded = load("ddp", cwd=Path("/"), env={"HOME": "/nowhere"})
    beside = {"setup.py": "import torch\ndef gpu(): torch.cuda.set_device(0)\n"}
    request = Request(script="train.py", nproc_per_node=2)
    for gpus, wanted in ((0, expected), (8, [])):
        plan = make_plan(loaded, request, place(gpus, main))
        found = lint_plan(plan, loaded, request, source=main, beside=beside)
        assert [(one.id, one.severity, one.where) for one in found] == [
            (id, "warning", "setup.py:2") for id in wanted
        ]


@for_each("preset", BUILTIN)
def test_every_preset_that_ships_is_clean_of_errors(preset: str) -> None:
    overrides = ["topology.nproc_per_node=1"] if preset in ALONE else []
    for nnodes in (1,) if preset in ALONE else (1, 2):
        assert not failed(lint(preset, *overrides, nnodes=nnodes)), preset


EXAMPLES = sorted(
    one.name
    for one in (resources.files("distui.presets") / "examples").iterdir()
    if one.name.endswith(".py")
)


@for_each("script", EXAMPLES)
def test_every_example_is_clean_of_errors(script: str) -> None:
    source = (resources.files("distui.presets") / "examples" / script).read_text("utf-8")
    assert not failed(lint("ddp", source=source))
