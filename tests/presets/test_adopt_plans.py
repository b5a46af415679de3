"""--adopt in a plan: what it says of a script, what it refuses, and that nothing of it is there unasked."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each

from distui.presets.adopt import VARIABLE
from distui.presets.finding import PlanError, PresetError
from distui.presets.lint import lint_plan
from distui.presets.load import load
from distui.presets.model import Loaded
from distui.presets.plan import Place, Plan, make_plan
from distui.presets.render import render
from distui.presets.request import Request

PLAIN = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\nmodel = DDP(net)\n"
PLACE = Place(
    run="r-1", run_dir="/state/r-1", port=29511, ras_port=28111, gpus=8, cores=8, cwd="/w", python="/p/python",
    script_source=PLAIN,
)  # fmt: skip


def preset(name: str, *overrides: str) -> Loaded:
    return load(name, overrides, cwd=Path("/"), env={"HOME": "/nowhere"})


def planned(
    name: str,
    *overrides: str,
    source: str | None = PLAIN,
    beside: dict[str, str | bytes] | None = None,
    **asked: Any,
) -> Plan:
    request = Request(script="train.py", **{"adopt": True, "nproc_per_node": 8, **asked})
    return make_plan(
        preset(name, *overrides), request, replace(PLACE, script_source=source, script_beside=beside or {})
    )


@for_each("name", ["ddp", "ddp-mesh", "zero1", "fsdp2", "fsdp2-offload", "hsdp"])
def test_the_plan_names_the_line_where_the_preset_is_applied(name: str) -> None:
    plan = planned(name)
    kind = plan.strategy
    assert plan.obeys == f"train.py calls DistributedDataParallel in line 4: --adopt applies {kind} there."
    assert plan.env[VARIABLE] == "1"
    assert f"script       {plan.obeys}" in render(plan, [])
    assert "L25" not in {finding.id for finding in lint_plan(plan, preset(name), Request(), source=PLAIN)}
    assert not [variable for variable in plan.env if variable.startswith(("ACCELERATE_", "FSDP_"))]


def test_the_plan_says_that_powersgd_sends_the_gradients() -> None:
    plan = planned("ddp", "strategy.powersgd_rank=2")
    assert plan.obeys == (
        "train.py calls DistributedDataParallel in line 4: --adopt applies ddp there, sends gradients by PowerSGD."
    )
    assert json.loads(plan.env["DISTUI_STRATEGY_OPTIONS"])["powersgd_rank"] == 2


@for_each(
    ("overrides", "words"),
    [
        (("strategy.powersgd_rank=2", "precision.reduce=bf16"), "take one of them"),
        (("strategy.powersgd_rank=2", "mesh.pp=2"), "set mesh.pp and mesh.ep to 1"),
        (("strategy.powersgd_rank=0",), "takes 1 or more"),
    ],
)
def test_powersgd_is_refused_where_it_would_do_nothing(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises((PlanError, PresetError), match=words):
        planned("ddp", *overrides, adopt=False)


@for_each("name", ["ddp", "zero1", "fsdp2"])
def test_without_it_a_plain_script_is_left_alone(name: str) -> None:
    plan = planned(name, adopt=False)
    assert (plan.obeys, VARIABLE in plan.env) == (None, False)


def test_a_call_in_a_file_beside_the_script_counts() -> None:
    plan = planned("zero1", source="import trainer\n", beside={"trainer.py": PLAIN})
    assert plan.obeys == (
        "train.py, through trainer.py, calls DistributedDataParallel in line 4: --adopt applies zero1 there."
    )


@for_each("source", ["import torch\n", "def broken(:\n", None])
def test_a_call_that_no_text_shows_is_left_to_the_ranks(source: str | None) -> None:
    for name in ("ddp", "zero1", "fsdp2"):
        obeys = planned(name, source=source).obeys
        assert obeys is not None
        assert obeys.endswith("without such a call the run stops at the first optimizer step.")


OWN = "class LARS(torch.optim.Optimizer): pass\n"
TEXTS = {
    "unused parameters": ("model = DDP(net, find_unused_parameters=True)\n", {"fsdp2"}, "gives find_unused"),
    "unknown": ("model = DDP(net, find_unused_parameters=args.unused)\n", set(), ""),
    "compiled before": ("net = torch.compile(net)\nmodel = DDP(net)\n", {"fsdp2"}, "compiles its model in line 3"),
    "another that is compiled": ("loss = torch.compile(loss)\nmodel = DDP(net)\n", set(), ""),
    "compiled in the call": ("model = DDP(torch.compile(net))\n", {"fsdp2"}, "compiles its model in line 3"),
    "perhaps compiled": ("if args.fast:\n    net = torch.compile(net)\nmodel = DDP(net)\n", set(), ""),
    "compiled after": ("model = DDP(net)\nmodel = torch.compile(model)\n", set(), ""),
    "LBFGS": ("model = DDP(net)\no = torch.optim.LBFGS(p)\n", {"zero1", "fsdp2"}, "makes a LBFGS in line 4, and"),
    "Adafactor": ("model = DDP(net)\no = torch.optim.Adafactor(p)\n", {"fsdp2"}, "takes optimizers of torch that"),
    "AdamW": ("model = DDP(net)\no = torch.optim.AdamW(p)\ns = torch.optim.lr_scheduler.StepLR(o, 1)\n", set(), ""),
    "its own": (f"{OWN}model = DDP(net)\no = LARS(p)\n", {"zero1", "fsdp2"}, "makes a LARS in line 5"),
    "torch's own shards": (
        "from torch.distributed.optim import ZeroRedundancyOptimizer\nmodel = DDP(net)\nZeroRedundancyOptimizer(p)\n",
        {"zero1", "fsdp2"}, "makes a ZeroRedundancyOptimizer in line 5",
    ),
}  # fmt: skip
"""What a script's text shows → the strategies that the plan refuses for it, with these words."""


@for_each(("text", "refused", "words"), list(TEXTS.values()))
def test_what_the_text_shows_is_refused_before_anything_starts(
    text: str, refused: set[str], words: str
) -> None:
    source = f"import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n{text}"
    for name in ("ddp", "zero1", "fsdp2"):
        if name in refused:
            with pytest.raises(PlanError, match=re.escape(words)):
                planned(name, source=source)
        else:
            assert planned(name, source=source).obeys is not None


@for_each(
    ("source", "words"),
    [
        (
            "from accelerate import Accelerator\nAccelerator()\n",
            "leaves it to Accelerate (Accelerator) in line 2",
        ),
        (
            "from torch.distributed.fsdp import fully_shard\nfully_shard(m)\n",
            "shards its model with fully_shard in line 2",
        ),
        ("import lightning\nlightning.Trainer()\n", "leaves it to Lightning (Trainer) in line 2"),
        (
            "from distui.runners.inrank.parallelize import parallelize\nparallelize(m)\n",
            "calls parallelize() in line 2, where --adopt does nothing: leave it out",
        ),
    ],
)
def test_a_script_that_leaves_it_to_something_else_is_refused(source: str, words: str) -> None:
    with pytest.raises(PlanError) as raised:
        planned("zero1", source=source)
    assert words in str(raised.value)


def test_a_script_that_also_shards_by_itself_is_taken_for_its_own_call() -> None:
    source = f"from torch.distributed.fsdp import fully_shard\nif sharded:\n    fully_shard(net)\n{PLAIN}"
    assert planned("zero1", source=source).obeys is not None


@for_each(
    ("name", "overrides", "asked", "words"),
    [
        ("fsdp2-tp", (), {}, "--adopt cannot apply preset fsdp2-tp: mesh.tp 2 divides its layers"),
        ("fsdp1", (), {}, "strategy fsdp1 is deprecated in torch; take ddp, zero1 or fsdp2"),
        ("ds-zero2", (), {}, "strategy deepspeed needs deepspeed.initialize() in the script"),
        ("single", (), {"nproc_per_node": 1}, "strategy single is one process"),
        (
            "pp-1f1b",
            (),
            {},
            "mesh.pp 2 cuts the model into stages over ranks that have to see the same samples",
        ),
        ("context", (), {}, "mesh.cp 2 divides its sequences"),
        ("moe", (), {}, "mesh.ep 2 divides its experts"),
        (
            "ddp",
            ("batch.micro=4",),
            {},
            "the script's loop makes the batches; leave batch.micro out",
        ),
        ("ddp", ("batch.accumulation=4",), {}, "leave batch.accumulation out"),
        ("fsdp2", ("strategy.compile=true",), {}, "strategy.compile acts on single layers"),
        (
            "ddp",
            ("strategy.activation_checkpointing=true",),
            {},
            "add --set strategy.activation_checkpointing=false",
        ),
        ("fsdp2-zero2", (), {}, "strategy.reshard_after_forward=false leaves whole parameters"),
        ("ddp", (), {"hook": False}, "works through distui's hook, which is left out"),
        ("ddp", (), {"no_python": True}, "works in Python, which --no-python leaves out"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_the_reason(
    name: str, overrides: tuple[str, ...], asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlanError) as raised:
        planned(name, *overrides, **asked)
    assert words in str(raised.value)
