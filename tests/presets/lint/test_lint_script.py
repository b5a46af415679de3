"""lint on training scripts: each rule by a script that breaks it, and by its twin that does not."""

from __future__ import annotations

from typing import Any

from each import for_each

from distui.presets.lint.script import ScriptFacts, check

DIST = "import os\nimport torch.distributed as dist\n"
INIT = f"{DIST}dist.init_process_group()\n"
END = "dist.destroy_process_group()\n"
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(model)\n"
SPAWN = "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(main, nprocs=8)\n"
ALONE = "import torch\noptimizer = torch.optim.AdamW(model.parameters())\n"
SETS = "import os\nos.environ"
TWO: dict[str, Any] = {"nproc": 2, "nnodes": 1}
NODES: dict[str, Any] = {"nproc": 8, "nnodes": 2}
CPU: dict[str, Any] = {"gpus": False}
SET = "import os\nimport torch\n{}torch.cuda.set_device({})\n"
LOCAL = 'int(os.environ["LOCAL_RANK"])'
GLOBAL = "import torch.distributed as dist\nrank = dist.get_rank()\n"
FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(model)\n"

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("L1", {}, f"{SETS}['NCCL_TIMEOUT'] = '60'\n", "import os\nx = os.environ['NCCL_TIMEOUT']\n"),
    ("L1", {}, "from os import environ\nenviron.setdefault('NCCL_TIMEOUT', '60')\n",
     f"{SETS}['NCCL_TIMEOUT'] = '60'\nlimit = os.getenv('NCCL_TIMEOUT')\n"),
    ("L42", {}, "from torch.distributed.fsdp import ShardingStrategy\nx = ShardingStrategy.NO_SHARD\n",
     "from torch.distributed.fsdp import ShardingStrategy\nx = ShardingStrategy.FULL_SHARD\n"),
    ("L14", {}, "from torch.distributed._composable.fsdp import fully_shard\n",
     "from torch.distributed.fsdp import fully_shard\n"),
    ("L15", {}, f"{SETS}.update(NCCL_DEBUGG='INFO')\n", f"{SETS}.update(NCCL_DEBUG='INFO')\n"),
    ("L16", {}, f"{SETS}.update({{'NCCL_DEBUG': 'LOUD'}})\n",
     f"{SETS}.update({{'NCCL_DEBUG': level}})\n"),
    ("L23", {}, f"{SETS}['MASTER_PORT'] = '12355'\n",
     f"{SETS}.setdefault('MASTER_PORT', '12355')\n"),
    ("L23", TWO, f"{SETS}['RANK'] = '0'\n",
     "import os\nif 'RANK' not in os.environ:\n    os.environ['RANK'] = '0'\n"),
    ("L23", NODES, f"{SETS}['MASTER_ADDR'] = 'localhost'\n",
     "import os\nos.putenv('X', 'localhost')\n"),
    ("L24", TWO, SPAWN, SPAWN.replace("if __name__ == '__main__'", "if args.spawn")),
    ("L25", {"strategy": "fsdp2", "preset": "mine"}, DDP,
     f"from distui.runners.inrank.parallelize import parallelize\nmodel = parallelize(model)\n{DDP}"),
    ("L25", {"strategy": "ddp"}, "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n", DDP),
    ("L26", TWO, ALONE, ALONE + DDP),
    ("L26", NODES, ALONE, f"from engine import train\n{ALONE}"),
    ("L27", {}, INIT, INIT + END),
    ("L36", {}, f"{SETS}['WANDB_API_KEY'] = '0123456789ab'\n", f"{SETS}['WANDB_API_KEY'] = key\n"),
    ("L40", {}, f"{SETS}['CUDA_LAUNCH_BLOCKING'] = '1'\n", f"{SETS}['CUDA_LAUNCH_BLOCKING'] = '0'\n"),
    ("L41", {}, "print 'x'\n", "print('x')\n"),
    ("L48", CPU, SET.format("", LOCAL), SET.format("if torch.cuda.is_available(): ", LOCAL)),
    ("L48", CPU, SET.format("if ddp: ", LOCAL), SET.format("if device_type == 'cuda': ", LOCAL)),
    ("L48", CPU, f"{DIST}dist.init_process_group('nccl')\n{END}", f"{DIST}dist.init_process_group('gloo')\n{END}"),
    ("L48", CPU, f"{DIST}dist.init_process_group(backend='nccl')\n{END}",
     f"{DIST}dist.init_process_group(backend='cpu:gloo,cuda:nccl')\n{END}"),
    ("L50", NODES, SET.format(GLOBAL, "rank"), SET.format(GLOBAL, "rank % torch.cuda.device_count()")),
    ("L50", NODES, SET.format("", 'int(os.environ["RANK"])'), SET.format("", LOCAL)),
    ("L50", {}, SET.format("", "mesh.get_rank()"), SET.format("", "mesh.get_local_rank()")),
    ("L50", {}, SET.format(GLOBAL, "rank"), SET.format(f"{GLOBAL}rank = 0\n", "rank")),
    ("L51", {}, FSDP1, "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n"),
    ("L52", {}, "model = DDP(model, device_mesh=mesh)\n", DDP),
    ("L52", {}, "import torch\nmodel = FSDP(model)\n", "from wrappers import *\nmodel = FSDP(model)\n"),
    ("L52", {}, "fully_shard(model)\n", "def fully_shard(module): pass\nfully_shard(model)\n"),
]  # fmt: skip


@for_each(("id", "facts", "bad", "good"), CASES)
def test_a_rule_and_its_twin(id: str, facts: dict[str, Any], bad: str, good: str) -> None:
    assert [one.id for one in check(bad, "t.py", ScriptFacts(**facts))] == [id]
    assert check(good, "t.py", ScriptFacts(**facts)) == []


def test_localhost_is_an_error_on_several_nodes_alone() -> None:
    source = "import os\n\nos.environ['MASTER_ADDR'] = '127.0.0.1'\n"
    (several,) = check(source, "t.py", ScriptFacts(**NODES))
    (one,) = check(source, "t.py", ScriptFacts(**TWO))
    assert (several.severity, one.severity) == ("error", "warning")
    assert (several.where, several.value) == ("t.py:3", "MASTER_ADDR")


def test_one_rank_spawns_and_trains_as_it_likes() -> None:
    assert check(SPAWN + ALONE, "t.py", ScriptFacts(nproc=1, nnodes=1)) == []


@for_each("source", [b"\xff\xfe", b"x = '\0'", "(" * 5000, "x" + "+x" * 20_000])
def test_what_is_no_script_is_said_and_no_more(source: str | bytes) -> None:
    found = check(source, "t.py", ScriptFacts(**TWO))
    assert all(one.id == "L41" and one.severity == "warning" for one in found)


@for_each(
    ("source", "severity"),
    [
        (SET.format("", LOCAL), "error"),
        (SET.format("if ddp: ", LOCAL), "warning"),
        (SET.format("print(torch.cuda.is_available())\n", LOCAL), "warning"),
        (SET.format("try: ", LOCAL) + "except RuntimeError: pass\n", ""),
    ],
)
def test_how_sure_it_is_that_a_gpu_is_needed(source: str, severity: str) -> None:
    assert [one.severity for one in check(source, "t.py", ScriptFacts(gpus=False)) if one.id == "L48"] == [
        *filter(None, [severity])
    ]
    for gpus in (None, True):
        assert "L48" not in [one.id for one in check(source, "t.py", ScriptFacts(gpus=gpus))]
