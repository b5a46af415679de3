"""Megatron-LM's and NeMo's parallel sizes among a script's arguments: mesh, notes, and what does not fit."""

from __future__ import annotations

from each import for_each
from test_plan_making import PLACE, plan, preset

from distui.presets.finding import Finding
from distui.presets.launchers import megatron
from distui.presets.lint import lint_plan
from distui.presets.lint.launches import check_text
from distui.presets.lint.surroundings import Surroundings
from distui.presets.plan import Plan, command_plan
from distui.presets.rank_mesh import coordinates
from distui.presets.render import render
from distui.presets.request import Request
from distui.presets.task_summary import own_mesh
from distui.runners.diagnosis.mesh import short, sizes
from distui.runners.run.model import PlanSummary
from distui.runners.run.state import Attempt, RunState

MEGATRON = "from megatron.training import pretrain\npretrain()\n"


def made(args: str, ranks: int = 8, source: str = MEGATRON) -> Plan:
    request = Request(script="pretrain_gpt.py", args=tuple(args.split()), nproc_per_node=ranks)
    return plan("ddp", request=request, script_source=source, gpus=ranks)


def lint(args: str, ranks: int = 8) -> list[Finding]:
    found = lint_plan(made(args, ranks), preset("ddp"), Request(), source=MEGATRON)
    return [one for one in found if one.id == "L54"]


@for_each(
    ("args", "mesh"),
    [
        ("--tensor-model-parallel-size 2", {"dp": 4, "tp": 2}),
        ("--tensor_model_parallel_size=4 --lr 1e-3", {"dp": 2, "tp": 4}),
        ("--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2", {"pp": 2, "dp": 2, "tp": 2}),
        (
            "--context-parallel-size 2 --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2",
            {"pp": 2, "dp": 1, "cp": 2, "tp": 2},
        ),
        (
            "--use-tp-pp-dp-mapping --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2",
            {"dp": 2, "pp": 2, "tp": 2},
        ),
        ("--expert-model-parallel-size 4 --tensor-model-parallel-size 2", {"dp": 1, "ep": 4, "tp": 2}),
        ("trainer.strategy.tensor_model_parallel_size=2", {"dp": 4, "tp": 2}),
        ("++model.pipeline_model_parallel_size=2 trainer.devices=8", {"pp": 2, "dp": 4}),
        ("--tensor-model-parallel-size 3", {"dp": 8}),
        ("--lr 2", {"dp": 8}),
    ],
)
def test_the_mesh_is_the_scripts(args: str, mesh: dict[str, int]) -> None:
    found = made(args)
    assert list(found.mesh.items()) == list(mesh.items())
    assert found.obeys is None


def test_ranks_are_numbered_as_megatron_does() -> None:
    """Neighbours share tensors, pipeline stages lie farthest apart: tp-cp-ep-dp-pp, the first runs fastest."""
    sizes = made("--pipeline-model-parallel-size 4 --tensor-model-parallel-size 2", 16).mesh
    assert [coordinates(sizes, rank)["tp"] for rank in range(4)] == [0, 1, 0, 1]
    assert [
        rank for rank in range(16) if coordinates(sizes, rank) | {"pp": 0} == coordinates(sizes, 0)
    ] == [0, 4, 8, 12]


@for_each(
    ("args", "words"),
    [
        (
            "--tensor-model-parallel-size 2",
            "divides its model by its own arguments (tp 2): the preset's strategy does",
        ),
        ("--tensor-model-parallel-size 3", "its mesh is not known, because they do not divide the ranks."),
        (
            "--expert-model-parallel-size 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
            "its groups of experts lie across the dimensions of the mesh",
        ),
        ("--tensor-model-parallel-size 2 --yaml-cfg a.yaml", "--yaml-cfg may give further sizes"),
        ("--lr 2", "it uses megatron, and its arguments name no parallel sizes."),
    ],
)
def test_what_is_known_and_what_is_not(args: str, words: str) -> None:
    assert any(words in note for note in made(args).notes)


@for_each(
    ("args", "text"),
    [
        ("--tensor-model-parallel-size 3", "tp 3 does not divide the 8 ranks."),
        (
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4",
            "tp 4 × pp 4 = 16 does not divide the 8 ranks.",
        ),
        ("--expert-model-parallel-size 3", "ep 3 does not divide the 8 ranks."),
    ],
)
def test_sizes_that_do_not_fit(args: str, text: str) -> None:
    (one,) = lint(args)
    assert (one.severity, one.text) == ("error", text)


@for_each(
    "args",
    [
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-attention-heads 32 --num-experts 6",
        "--tensor-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 16",
        "--tensor-model-parallel-size $TP",
        "--expert-model-parallel-size 4 --num-experts 8",
    ],
)
def test_sizes_that_fit(args: str) -> None:
    assert lint(args) == []


def test_a_script_that_obeys_has_the_presets_mesh() -> None:
    source = "from distui.runners.inrank.parallelize import parallelize\nparallelize(model)\n"
    assert made("--tensor-model-parallel-size 2", source=source).mesh == {"dp": 8}
    assert (
        lint_plan(
            made("--tensor-model-parallel-size 3", source=source), preset("ddp"), Request(), source=source
        )
        == []
    )


@for_each(
    ("text", "count"),
    [
        ("torchrun --nproc-per-node 8 p.py --tensor-model-parallel-size 3", 1),
        ("torchrun --nproc-per-node 8 p.py --tensor-model-parallel-size 2", 0),
        ("torchrun --nproc-per-node 8 --nnodes $N p.py --tensor-model-parallel-size 3", 0),
        ("torchrun --nproc-per-node $G p.py --tensor-model-parallel-size 3", 0),
        ("torchrun ${ARGS[@]} p.py --tensor-model-parallel-size 3", 0),
    ],
)
def test_a_command_line(text: str, count: int) -> None:
    assert [one.id for one in check_text(text, Surroundings()) if one.id == "L54"] == ["L54"] * count


@for_each(
    ("args", "mesh", "ranks", "shown"),
    [
        (
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
            {"pp": 2, "dp": 2, "tp": 2},
            8,
            "pp1 dp1 tp1",
        ),
        ("--expert-model-parallel-size 2", {"dp": 4, "ep": 2}, 8, "dp3 ep1"),
        ("--tensor-model-parallel-size 2", {"dp": 1, "tp": 2}, 3, ""),
        ("--tensor-model-parallel-size $TP", {}, 8, ""),
        ("--lr 3", {}, 8, ""),
    ],
)
def test_a_command_has_the_mesh_of_its_arguments(
    args: str, mesh: dict[str, int], ranks: int, shown: str
) -> None:
    """Its ranks are those that it starts: data parallelism takes what is left of them."""
    words = ("torchrun", "--nproc-per-node", str(ranks), "pretrain_gpt.py", *args.split())
    found = command_plan(words, Request(), PLACE)
    assert list(found.mesh.items()) == list(mesh.items())
    by_variables = ("torchrun", "--nproc-per-node", "$GPUS", *words[3:])
    for command in (words, by_variables):
        task = {"run": f"cd x && {' '.join(command)}", "resources": {"accelerators": f"H100:{ranks}"}}
        assert own_mesh(task, 1) == mesh
    state = RunState()
    state.plan = PlanSummary(preset="", strategy="", launcher="command", command="torchrun", mesh=mesh)
    state.attempts.append(
        Attempt(number=1, began=0.0, cause="launch", world_size=ranks, env_diff={}, ranks=())
    )
    assert short(sizes(state), ranks - 1) == shown
    assert ("by the command's own arguments" in render(found)) == bool(mesh)


def test_arguments_of_other_programs_are_not_megatrons() -> None:
    assert megatron.read(("--tensor-parallel-size", "2", "--size=3", "a.b=c")) is None
