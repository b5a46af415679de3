"""What a look at a script says: found calls, and never an exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.presets import script_support

WHOLE = "distui.runners.inrank.parallelize"
EXAMPLES = Path(script_support.__file__).parent / "examples"


@for_each(
    "source",
    [
        f"from {WHOLE} import parallelize\nparallelize(m)",
        f"from {WHOLE} import parallelize as p\nm, o = p(m, A, lr=1)",
        f"from {WHOLE} import *\nparallelize(m)",
        f"import {WHOLE}\n{WHOLE}.parallelize(m)",
        f"import {WHOLE} as x\nx.parallelize(m)",
        "from distui.runners.inrank import parallelize\nparallelize.parallelize(m)",
        "from distui.runners import inrank\ninrank.parallelize.parallelize(m)",
        f"def main():\n    from {WHOLE} import parallelize\n    return parallelize(m)",
        f"try:\n  from {WHOLE} import parallelize\nexcept OSError:\n  parallelize = 0\nparallelize(m)",
    ],
)
def test_any_form_of_the_one_call_obeys(source: str) -> None:
    look = script_support.inspect("train.py", source)
    assert look.how is not None
    assert look.how.startswith("train.py calls parallelize() in line ")
    assert "if the" not in look.how


def test_a_copied_file_obeys_with_a_doubt() -> None:
    look = script_support.inspect("train.py", "from parallelize import parallelize\nparallelize(m)")
    assert look.how is not None
    assert "if the parallelize beside it is distui's" in look.how


@for_each(
    ("source", "what", "line"),
    [
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\n\nDDP(m)",
            "DistributedDataParallel",
            3,
        ),
        ("import torch\ntorch.nn.parallel.DistributedDataParallel(m)", "DistributedDataParallel", 2),
        ("import torch.nn as nn\nnn.parallel.DistributedDataParallel(m)", "DistributedDataParallel", 2),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(m)", "fully_shard", 2),
        ("from torch.distributed._composable.fsdp import fully_shard\nfully_shard(m)", "fully_shard", 2),
        (
            "from torch.distributed.fsdp import *\nFullyShardedDataParallel(m)",
            "FullyShardedDataParallel",
            2,
        ),
        (
            "from torch.distributed.optim import ZeroRedundancyOptimizer as Z\nZ()",
            "ZeroRedundancyOptimizer",
            2,
        ),
        ("import lightning as L\nL.Trainer()", "Lightning", 2),
        ("from pytorch_lightning import Trainer\nTrainer()", "Lightning", 2),
    ],
)
def test_a_script_with_its_own_strategy_is_named(source: str, what: str, line: int) -> None:
    look = script_support.inspect("train.py", source)
    assert look.how is None
    assert what in look.why
    assert f"in line {line}: the preset's strategy does not change that." in look.why


ACCELERATE = "import accelerate\naccelerate.Accelerator()"
TRAINER = "from transformers import Trainer\nTrainer()"
ARGPARSE = "import argparse, deepspeed\np = argparse.ArgumentParser()\n"
OPTIONS = (
    f"{ARGPARSE}args = deepspeed.add_config_arguments(p).parse_args()\ndeepspeed.initialize(args=args)"
)


def asked(kind: str, backend: str = "nccl", mesh: str = "", args: str = "") -> script_support.Requirements:
    return script_support.Requirements(kind=kind, backend=backend, mesh=mesh.split(), args=args.split())  # type: ignore[arg-type]


@for_each(
    ("source", "mesh", "condition"),
    [
        (ACCELERATE, "dp_shard tp", "mesh.tp only if it loads its model with a tp_plan."),
        (
            ACCELERATE,
            "dp_shard cp",
            "mesh.cp only if its steps run in accelerator.maybe_context_parallel().",
        ),
        (f"{ACCELERATE}\nAutoModel.from_pretrained(name, tp_plan='auto')", "dp_shard tp", ""),
        (f"{ACCELERATE}\nwith accelerator.maybe_context_parallel(buffers=b):\n  pass", "dp_shard cp", ""),
        (TRAINER, "dp_shard cp", ""),
    ],
)
def test_dimensions_of_accelerate_in_which_the_script_takes_part(
    source: str, mesh: str, condition: str
) -> None:
    look = script_support.inspect("train.py", source, asked("fsdp2", mesh=mesh))
    assert look.how is not None
    assert look.how.endswith(f"; {condition}" if condition else "precision through the environment.")


@for_each("kind", ["single", "ddp", "fsdp1", "fsdp2", "deepspeed"])
@for_each(
    ("source", "reader", "what"),
    [
        (ACCELERATE, "accelerate", "Accelerate (Accelerator) in line 2"),
        ("from accelerate import *\nAccelerator(cpu=False, fsdp_plugin=None)", "accelerate", "line 2"),
        (TRAINER, "trainer", "the transformers Trainer in line 2"),
        ("from transformers import Seq2SeqTrainer as S\nS()", "trainer", "Seq2SeqTrainer in line 2"),
        ("import trl\ntrl.DPOTrainer()", "trainer", "the trl DPOTrainer in line 2"),
        ("from transformers import Trainer\nclass T(Trainer):\n  pass\nT()", "trainer", "in line 4"),
    ],
)
def test_accelerate_and_trainers_obey_through_the_environment(
    kind: str, source: str, reader: str, what: str
) -> None:
    look = script_support.inspect("train.py", source, asked(kind))
    assert look.how is not None
    assert what in look.how
    if (reader, kind) == ("trainer", "deepspeed"):
        assert "the precision is its own (under DeepSpeed the Trainer takes" in look.how
    else:
        assert look.how.endswith("it obeys strategy and precision through the environment.")
    assert (look.why, look.reader) == (look.how, reader)


@for_each(
    ("source", "wanted", "why"),
    [
        (ACCELERATE, asked("zero1"), "has no ZeroRedundancyOptimizer and trains as DDP"),
        (ACCELERATE, asked("fsdp2", "gloo"), "knows no FSDP on CPU and trains as DDP there"),
        (TRAINER, asked("fsdp1", "gloo"), "knows no FSDP on CPU"),
        (ACCELERATE, asked("fsdp2", mesh="pp dp_shard"), "does not divide a model by mesh.pp"),
        (ACCELERATE, asked("fsdp2", mesh="tp"), "needs ranks to shard over besides mesh.tp"),
        (ACCELERATE, asked("ddp", mesh="dp cp"), "divides sequences only under fsdp2: take preset context"),
        (
            "from accelerate import Accelerator\nAccelerator(fsdp_plugin=p)",
            asked("fsdp2"),
            "fsdp_plugin (line 2)",
        ),
        ("from accelerate import Accelerator\nAccelerator(cpu=True)", asked("ddp"), "its own cpu (line 2)"),
        (
            "from transformers import *\na = TrainingArguments(deepspeed='x')\nTrainer(a)",
            asked("ddp"),
            "its own deepspeed (line 2)",
        ),
        (TRAINER, asked("ddp", args="--fsdp full_shard"), "its arguments say --fsdp"),
        (OPTIONS, asked("ddp"), "obeys only strategy deepspeed"),
        (OPTIONS, asked("deepspeed", args="--deepspeed_config=own.json"), "name a configuration"),
        ("import deepspeed\ndeepspeed.initialize(config={})", asked("deepspeed"), "a config of its own"),
        (
            "import deepspeed\ndeepspeed.initialize(args)",
            asked("deepspeed"),
            "call deepspeed.add_config_arguments",
        ),
        (f"from {WHOLE} import parallelize\nparallelize(m)", asked("deepspeed"), "which is not DeepSpeed"),
    ],
)
def test_what_does_not_obey_is_told_why(source: str, wanted: script_support.Requirements, why: str) -> None:
    look = script_support.inspect("train.py", source, wanted)
    assert look.how is None
    assert why in look.why
    assert look.why.endswith(".")
    assert "\n" not in look.why


CANONICAL = """import argparse
from accelerate import Accelerator
p = argparse.ArgumentParser()
p.add_argument("--cpu", action="store_true")
p.add_argument("--mixed_precision", type=str, default=None, choices=["no", "fp16", "bf16"])
args = p.parse_args()
acc = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
"""
BARE = "from accelerate import Accelerator\n"


@for_each("kind", ["ddp", "fsdp2", "deepspeed"])
def test_the_form_of_accelerates_own_examples_obeys_unless_its_options_are_given(kind: str) -> None:
    look = script_support.inspect("t.py", CANONICAL, asked(kind))
    assert look.how is not None
    assert "it obeys strategy and precision through the environment, unless --cpu is given" in look.how
    assert look.how.endswith("; the precision is its own if --mixed_precision is given.")
    look = script_support.inspect("t.py", CANONICAL, asked(kind, args="--cpu"))
    assert (look.how, "with its own cpu (line 7)" in look.why) == (None, True)
    for args in ("--mixed_precision fp16", "--mixed_precision=no", "--mixed bf16"):
        how = script_support.inspect("t.py", CANONICAL, asked(kind, args=args)).how
        assert how is not None
        assert how.endswith("the precision is its own (mixed_precision in line 7).")


def test_on_cpu_an_accelerator_that_is_told_so_trains_as_it_would() -> None:
    look = script_support.inspect("t.py", CANONICAL, asked("ddp", "gloo", args="--cpu"))
    assert look.how is not None
    assert "cpu" not in look.how.replace("t.py", "")


@for_each(
    ("source", "args", "how"),
    [
        (f"{BARE}def f(config):\n  Accelerator(cpu=config['cpu'])", "", "unless config['cpu'] is set."),
        (f"{BARE}Accelerator(cpu=not torch.cuda.is_available())", "", "comes to something."),
        (f"{BARE}Accelerator(**options)", "", "unless options holds fsdp_plugin or "),
        (f"{BARE}p = None\nif x:\n  p = Plugin()\nAccelerator(fsdp_plugin=p)", "", "unless p is set."),
        (f"{BARE}cpu = False\nAccelerator(cpu=cpu)", "", "environment."),
        (f"{BARE}cpu = True\nAccelerator(cpu=cpu)", "", None),
        (f"{BARE}p = Plugin()\nAccelerator(deepspeed_plugin=p)", "", None),
        (f"{BARE}Accelerator(deepspeed_plugin=Plugin() if x else Plugin())", "", None),
        (f"{BARE}Accelerator(deepspeed_plugin=Plugin() if x else None)", "", "comes to something."),
        (f"{BARE}a = add_argument('--gpu', dest='cpu', action='store_false')\nAccelerator(cpu=a.cpu)", "", None),
        (f"{BARE}a = add_argument('--gpu', dest='cpu', action='store_false')\nAccelerator(cpu=a.cpu)", "--gpu",
         "unless --gpu is given."),
        (f"{BARE}cpu = cpu\nAccelerator(cpu=cpu)", "", "unless cpu is set."),
        ("from transformers import *\na = TrainingArguments(fsdp='', deepspeed=x.deepspeed)\nTrainer(a)", "",
         "unless x.deepspeed is set."),
        ("from transformers import *\nHfArgumentParser(TrainingArguments)\nTrainer(a)", "--bf16 False",
         "obeys strategy and precision through the environment."),
        ("from transformers import *\nHfArgumentParser(TrainingArguments)\nTrainer(a)", "--bf16",
         "the precision is its own (--bf16 among its arguments)."),
    ],
)  # fmt: skip
def test_a_claim_is_what_is_given_and_a_condition_what_may_be(
    source: str, args: str, how: str | None
) -> None:
    found = script_support.inspect("t.py", source, asked("ddp", args=args)).how
    assert (found is None) == (how is None), found
    if found is not None and how is not None:
        assert how in found


def test_a_precision_of_the_scripts_own_is_said() -> None:
    source = "from accelerate import Accelerator\nAccelerator(mixed_precision='fp16')"
    how = script_support.inspect("t.py", source).how
    assert how is not None
    assert how.endswith("the precision is its own (mixed_precision in line 2).")
    trainer = "from transformers import *\na = TrainingArguments(bf16=True)\nTrainer(a)"
    assert "(bf16 in line 2)" in script_support.inspect("t.py", trainer).why


@for_each(
    ("source", "options"),
    [
        (OPTIONS, ("--deepspeed", "--deepspeed_config")),
        (f"{ARGPARSE}p.add_argument('--deepspeed_config')\ndeepspeed.initialize()", ("--deepspeed_config",)),
        (f"{ARGPARSE}p.add_argument('--deepspeed_config')\ndeepspeed.initialize(config=a.deepspeed_config)",
         ("--deepspeed_config",)),
        ("import os, deepspeed\ndeepspeed.initialize(config=os.environ['DISTUI_DEEPSPEED_CONFIG'])", ()),
    ],
)  # fmt: skip
def test_deepspeed_scripts_obey_through_the_configuration(source: str, options: tuple[str, ...]) -> None:
    look = script_support.inspect("train.py", source, asked("deepspeed"))
    assert look.how is not None
    assert "hands its model to DeepSpeed" in look.how
    assert (look.reader, look.options) == ("deepspeed", options)


@for_each(
    "source",
    [
        "",
        "print('hello')",
        f"from {WHOLE} import parallelize",
        "def parallelize(m): pass\nparallelize(m)",
        "from mine import Trainer, DistributedDataParallel\nTrainer(); DistributedDataParallel(m)",
        "import argparse\nargparse.initialize()",
        "# parallelize(model)\n'parallelize(model)'",
    ],
)
def test_anything_else_obeys_nothing(source: str) -> None:
    assert script_support.inspect("t.py", source) == script_support.Obeys(
        None, "t.py ignores the preset, which sets only launcher flags and environment."
    )


@for_each(
    ("source", "part"),
    [
        (None, "could not be read"),
        ("print 3", "Python 2: print without parentheses (line 1)"),
        ("x = 1\ny = (", "line 2"),
        (b"\x7fELF\0\0", "not text"),
        ("\0", "not text"),
        (b"# -*- coding: klingon -*-\n", "klingon"),
        (b"x = '\x80'", "is not valid Python"),
        ("(" * 400, "is not valid Python"),
        ("x" + ".x" * 20_000, "t.py"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(source: str | bytes | None, part: str) -> None:
    look = script_support.inspect("t.py", source)
    assert look.how is None
    assert part in look.why
    assert "\n" not in look.why


def test_marks_of_editors_do_not_matter() -> None:
    assert script_support.inspect("t.py", "\ufeffprint(1)\r\n").why.startswith("t.py ignores the preset")
    assert script_support.inspect("t.py", b"\xef\xbb\xbfprint(1)").why.startswith("t.py ignores the preset")


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=60), st.binary(max_size=60)))
def test_no_text_makes_it_raise(source: str | bytes) -> None:
    assert script_support.inspect("t.py", source).why


def test_the_shipped_examples_are_told_apart() -> None:
    obeying = script_support.inspect("chargpt.py", (EXAMPLES / "chargpt.py").read_bytes())
    assert obeying.how is not None
    assert "if the" not in obeying.how
    plain = script_support.inspect("plain_ddp.py", (EXAMPLES / "plain_ddp.py").read_bytes())
    assert plain.how is None
    assert "DistributedDataParallel" in plain.why


def test_a_pipeline_and_accumulation_need_forward_backward() -> None:
    without = f"from {WHOLE} import parallelize\nparallelize(m)"
    with_it = (
        f"from {WHOLE} import forward_backward, parallelize\nparallelize(m)\nforward_backward(m, x, y)"
    )
    copied = "import parallelize as p\np.parallelize(m)\np.forward_backward(m, x, y)"
    pipeline = script_support.Requirements(mesh=("pp", "dp"))
    look = script_support.inspect("train.py", without, pipeline)
    assert look.how is None
    assert (
        look.why
        == "train.py calls parallelize() in line 2 and never forward_backward(), by which a pipeline runs."
    )
    passes = script_support.Requirements(mesh=("dp",), accumulation=4)
    how = script_support.inspect("train.py", without, passes).how
    assert how is not None
    assert how.endswith("but not batch.accumulation, which acts in forward_backward().")
    starred = f"from {WHOLE} import *\nparallelize(m)\nforward_backward(m, x, y)"
    for source in (with_it, copied, starred):
        for asked in (pipeline, passes):
            found = script_support.inspect("train.py", source, asked).how
            assert found is not None
            assert "but not" not in found


@for_each(
    ("kind", "option", "obeyed"),
    [
        ("fsdp2", "activation_checkpointing", True),
        ("ddp", "activation_checkpointing", False),
        ("ddp", "compile", True),
        ("ddp", "powersgd_rank", False),
    ],
)
def test_what_accelerate_cannot_be_asked_for_is_named(kind: Any, option: str, obeyed: bool) -> None:
    asked = script_support.Requirements(kind=kind, options=(option,))
    look = script_support.inspect("train.py", "from accelerate import Accelerator\nAccelerator()\n", asked)
    assert look.how is not None
    assert (f"but not strategy.{option}" in look.how) is not obeyed


def test_files_beside_the_script_are_looked_at_where_it_does_nothing_itself() -> None:
    beside = {
        "other.py": "print()",
        "trainer.py": "from torch.nn.parallel import DistributedDataParallel as D\nD(m)",
    }
    look = script_support.inspect(
        "main.py", "import trainer, other", script_support.Requirements(kind="fsdp2", beside=beside)
    )
    assert look.how is None
    assert look.why.startswith(
        "main.py, through trainer.py, wraps its model in DistributedDataParallel in line 2"
    )
    moe = (EXAMPLES / "chargpt_moe.py").read_bytes()
    example = {"chargpt.py": (EXAMPLES / "chargpt.py").read_bytes()}
    how = script_support.inspect("chargpt_moe.py", moe, script_support.Requirements(beside=example)).how
    assert how is not None
    assert "through chargpt.py, calls parallelize() in line" in how
    own = f"from {WHOLE} import parallelize\nparallelize(m)"
    assert (
        "through"
        not in script_support.inspect("main.py", own, script_support.Requirements(beside=beside)).why
    )
