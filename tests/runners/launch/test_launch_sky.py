"""From the command line to a run on nodes that SkyPilot brings: what is refused, what is printed, what is written."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from each import for_each

from distui.presets.plan_json import plan_from_json
from distui.presets.request import Request
from distui.presets.task_summary import summary
from distui.runners.hub import launch_order
from distui.runners.hub.launch_order import SkyRequest
from distui.runners.hub.sky_process import Sky
from distui.runners.launch.prepare import prepare
from distui.runners.launch.prepared import REQUEST_FILE, Prepared, request_text
from distui.runners.launch.rerun import LaunchChanges, again
from distui.runners.node.job_document import HUB_FILE, Document
from distui.runners.run import run_directories
from distui.runners.run.errors import RunError
from distui.tui.cli import main


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script in it, and a user without runs."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def made(request: Request | None = None, **about: Any) -> Prepared:
    request = request or Request(script="train.py", nnodes=2)
    return prepare(replace(request, **{"preset": "ddp", "on": "sky", "gpus": "H100:8", **about}))


def order_of(made: Prepared) -> SkyRequest:
    assert isinstance(made.order, SkyRequest)
    return made.order


def test_the_plan_and_the_task_are_of_one_run(code: Path) -> None:
    found = made()
    run = found.record.run
    assert (found.record.kind, found.record.nnodes, found.plan.nnodes) == ("hub", 2, 2)
    assert found.plan.nproc_per_node == 8, "one rank a GPU"
    assert "{head}" in " ".join(found.plan.argv)
    assert order_of(found).task["num_nodes"] == 2
    assert order_of(found).task["workdir"] == str(code)
    assert order_of(found).task["run"] == f"exec sh {order_of(found).bundle}/node.sh job {run}\n"
    assert order_of(found).task["file_mounts"] == {"~/.distui": f"{run_directories.runs_dir()}/{run}/cargo"}
    assert order_of(found).cluster == f"train-{found.record.run8}"


def test_secrets_are_nowhere_but_in_the_hubs_environment() -> None:
    found = made(Request(script="train.py", nnodes=2, env={"HF_TOKEN": "hf_geheim", "LR": "1"}))
    everything = found.text() + json.dumps(found.json()) + msgspec.json.encode(order_of(found)).decode()
    assert "hf_geheim" not in everything
    assert found.hidden["HF_TOKEN"] == "hf_geheim"
    assert order_of(found).task["envs"] == {"LR": "1"}


def test_whoever_hands_a_secret_to_slurm_is_warned() -> None:
    words = {"script": "train.py", "nnodes": 2}
    warned = made(Request(**words, env={"HF_TOKEN": "x"}), on="slurm/lab").plan.notes  # type: ignore[arg-type]
    assert any("shows HF_TOKEN to every user of the nodes" in note for note in warned)
    for quiet in (
        made(Request(**words, env={"HF_TOKEN": "x"}), on="aws"),  # type: ignore[arg-type]
        made(Request(**words, env={"LR": "1"}), on="slurm/lab"),  # type: ignore[arg-type]
    ):
        assert not any("every user" in note for note in quiet.plan.notes)


async def installed() -> None:
    """SkyPilot is not among what the tests install; tests/cluster has the real one."""


def test_all_that_distui_brings_travels_in_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay's key, too: in a file of its own, and not among the secrets."""
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr("distui.runners.launch.prepared.check_installed", installed)
    monkeypatch.setattr("distui.runners.node.local_agent.start", lambda *words: started.append(words))
    found = made()
    found.start()
    run, files = found.record.run, started[0][2]
    assert order_of(found).task["file_mounts"] == {
        "~/.distui": str(run_directories.runs_dir() / run / "cargo")
    }
    assert files[f"cargo/jobs/{run}.json"] == files[HUB_FILE]
    assert files[f"cargo/jobs/{run}.key"] == files["relay.key"]
    assert len(bytes.fromhex(files["relay.key"])) == 32
    assert not found.hidden
    assert "secrets" not in order_of(found).task


def test_dry_run_prints_plan_and_task(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", "ddp", "--on", "aws", "--gpus", "8xH100", "--nnodes", "2", "--dry-run"]
    assert main([*words, "--", "train.py"]) == 0
    text = capsys.readouterr().out
    assert "nnodes 2 × nproc_per_node 8" in text
    assert "resources:\n  infra: aws\n  accelerators: H100:8\n" in text
    assert "\n  ~/.distui: /" in text
    assert "stays up, and is billed, until `distui down`" in text
    assert main([*words, "--json", "--", "train.py"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["task"]["num_nodes"] == 2
    assert plan_from_json(document["plan"]).nnodes == 2
    assert run_directories.entries() == []


@for_each(
    ("words", "sentence"),
    [
        (["--gpus", "H100:8", "--", "train.py"], "--gpus is for nodes through SkyPilot: add --on sky"),
        (["--on", "sky", "--", "train.py"], "give --gpus, --cpus or --nproc-per-node"),
        (
            ["--on", "sky", "--gpus", "H100:8", "--any-of", "gpus=A100:4", "--", "train.py"],
            "depends on what SkyPilot takes (8 on H100:8, 4 on A100:4): give --nproc-per-node",
        ),
        (["--on", "sky", "--gpus", "H100:8"], "No script"),
        (["--on", "sky", "--gpus", "H100:8", "--", "no.py"], "Script not found: no.py"),
        (
            ["--on", "sky", "--gpus", "H100", "--workdir", "gone", "--", "train.py"],
            "there is no such directory",
        ),
        (["--on", "sky", "--gpus", "H100", "--cluster", "-x", "--", "train.py"], "expected one argument"),
        (
            ["--on", "sky", "--gpus", "H100", "--cluster", "x_", "--", "train.py"],
            "--cluster x_: use a letter",
        ),
        (
            ["--on", "sky", "--gpus", "H100", "--mount", "x", "--", "train.py"],
            "--mount x: write it as NAME=VALUE",
        ),
        (
            ["--on", "sky", "--gpus", "H100", "--autostop", "soon", "--", "train.py"],
            "not a number of minutes",
        ),
        (["--task", "x.yaml", "--", "train.py"], "replaces PRESET and SCRIPT"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["launch", "ddp", *words])
    except SystemExit as left:
        code = int(str(left.code))
    said = capsys.readouterr().err
    assert code == 2
    assert sentence in said
    assert said.count("\n") == 1


def test_a_home_directory_is_not_copied_to_the_nodes(monkeypatch: pytest.MonkeyPatch, code: Path) -> None:
    monkeypatch.setenv("HOME", str(code))
    with pytest.raises(
        RunError, match="would be copied to the nodes: cd to your code, or give --workdir DIR"
    ):
        made()


def test_a_script_that_is_there_already_needs_no_copy() -> None:
    found = made(Request(script="/shared/train.py", nnodes=2))
    assert "workdir" not in order_of(found).task


def test_a_rerun_is_the_same_launch_on_the_same_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(Request(script="train.py", nnodes=2, env={"HF_TOKEN": "x"}), setup="pip install x")
    assert first.asked is not None
    files = {REQUEST_FILE: request_text(first.asked, os.getcwd())}
    path = run_directories.create(first.record, json.dumps(first.json()["plan"]).encode(), files)
    launch_order.write(path, order_of(first))
    entry = run_directories.at(path)
    assert entry is not None
    monkeypatch.setenv("HF_TOKEN", "y")
    second = again(entry, LaunchChanges())
    before, after = first.record.run, second.record.run
    assert before != after
    assert before not in json.dumps([list(second.plan.argv), dict(second.plan.env), order_of(second).task])
    assert order_of(second).cluster == order_of(first).cluster
    assert order_of(second).fast
    assert second.hidden["HF_TOKEN"] == "y"
    assert order_of(second).task["secrets"] == {"HF_TOKEN": "***"}
    assert order_of(second).task["file_mounts"]["~/.distui"].endswith(f"{after}/cargo")
    assert order_of(second).task["setup"] == "pip install x"


def test_the_nodes_are_told_exactly_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr("distui.runners.launch.prepared.check_installed", installed)
    monkeypatch.setattr("distui.runners.node.local_agent.start", lambda *words: started.append(words))
    found = made()
    found.start()
    _, record, files, hidden = started[0]
    assert isinstance(files, dict)
    told = msgspec.json.decode(files[HUB_FILE], type=Document)
    assert (told.run, told.run8, told.nnodes) == (found.record.run, found.record.run8, 2)
    assert told.whole().argv == found.plan.argv
    assert record is found.record
    assert hidden is found.hidden


@for_each(("script", "workdir"), [("../train.py", None), ("sub/../../x.py", None), ("../train.py", "sub")])
def test_a_script_outside_of_what_is_copied_is_refused(
    code: Path, script: str, workdir: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (code / "sub").mkdir(exist_ok=True)
    for folder in (code.parent, code):
        (folder / "train.py").write_text("import torch\n")
    (code / "sub" / "inner.py").write_text("import torch\n")
    words = ["plan", "ddp", "--on", "sky", "--gpus", "H100:8", *(["--workdir", workdir] if workdir else [])]
    assert main([*words, "--", script]) == 2
    where = code / (workdir or "")
    assert f"Script {script} lies outside {where}, and only that directory" in capsys.readouterr().err
    hosts = ["plan", "ddp", "--hosts", "a.invalid", "--workdir", workdir or "."]
    assert main([*hosts, "--", script]) == 2
    assert "lies outside" in capsys.readouterr().err
    assert main([*words, "--", "sub/../sub/inner.py" if workdir is None else "./inner.py"]) == 0


TASK = """\
name: mine
num_nodes: 2
resources:
  accelerators: H100:8
setup: pip install torch==2.4.1
run: |
  torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=H --rdzv-backend=c10d --rdzv-endpoint=$H:29501 x.py
"""


def task_file(code: Path, text: str = TASK) -> str:
    (code / "task.yaml").write_text(text)
    return "task.yaml"


def no_skypilot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTUI_SKY_PYTHON", "/nowhere/python")


def test_a_task_is_printed_without_skypilot(
    code: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes, ranks and launcher, and what lint finds in the file: with what the command line says of the nodes."""
    no_skypilot(monkeypatch)
    file = task_file(code)
    assert main(["plan", "--task", file]) == 0
    text = capsys.readouterr().out
    assert "\nnodes        2, each H100:8 = 16 in all\n" in text
    assert "\nlauncher     torchrun (run: line 1): 16 ranks\n" in text
    assert "`distui candidates --task task.yaml` asks SkyPilot" in text
    assert main(["plan", "--task", file, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"] == {
        "nnodes": 2,
        "accelerators": "H100:8",
        "gpus": 8,
        "launchers": [{"name": "torchrun", "line": 1, "known": True, "ranks": 16}],
    }
    assert [(one["id"], one["where"]) for one in document["findings"]] == [
        ("L47", "task.yaml:5"), ("L69", "task.yaml:7"), ("L21", "task.yaml:3"), ("L4", "task.yaml:7"),
    ]  # fmt: skip
    words = ["--network-tier", "best", "--nnodes", "3", "--env", "NCCL_TIMEOUT=3", "--managed"]
    assert main(["plan", "--task", file, "--json", *words]) == 0
    found = [one["id"] for one in json.loads(capsys.readouterr().out)["findings"]]
    assert sorted(found) == ["L1", "L12", "L35", "L4", "L47", "L69"]


def test_candidates_are_those_of_the_task(
    code: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SkyPilot is asked about the task's own nodes, and what the command line says of them wins."""
    asked: list[dict[str, Any]] = []

    async def call(sky: Sky, verb: str, **about: Any) -> dict[str, str]:
        asked.append(about["config"])
        return {"text": ""}

    monkeypatch.setattr(Sky, "call", call)
    file = task_file(code)
    assert main(["candidates", "--task", file]) == 1
    assert main(["candidates", "--task", file, "--nnodes", "3", "--on", "aws"]) == 1
    assert [(config["num_nodes"], config["resources"]) for config in asked] == [
        (2, {"accelerators": "H100:8"}),
        (3, {"accelerators": "H100:8", "infra": "aws"}),
    ]
    assert main(["candidates", "--task", "gone.yaml"]) == 2
    assert "--task gone.yaml cannot be read" in capsys.readouterr().err


@pytest.mark.real
def test_a_launch_of_a_task_tells_its_errors(
    code: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_skypilot(monkeypatch)
    assert main(["launch", "--task", task_file(code), "--detach"]) != 0
    err = capsys.readouterr().err
    assert "L47 task.yaml:5: torch==2.4.1 is too old" in err
    assert "/nowhere/python" in err


@for_each(
    ("run", "row"),
    [
        ("mpirun -np 16 python t.py", "mpirun (run: line 1), unknown to distui: each process that"),
        ("cd x\n  torchrun --nproc-per-node gpu t.py", "torchrun (run: line 2): 16 ranks"),
        ("torchrun --nproc-per-node $SKYPILOT_NUM_GPUS_PER_NODE t.py", "torchrun (run: line 1): 16 ranks"),
        ("torchrun --nproc-per-node $N t.py", "torchrun (run: line 1): ranks as it finds them"),
        ("conda activate deepspeed", "none seen in run"),
        ("uv pip install deepspeed", "none seen in run"),
        ("srun --job-name deepspeed python t.py", "srun (run: line 1), unknown to distui"),
        ("srun torchrun t.py", "torchrun (run: line 1): 2 ranks"),
        ("conda run -n deepspeed torchrun t.py", "torchrun (run: line 1): "),
        ("accelerate launch t.py", "accelerate (run: line 1), as it is: each process that"),
        ("bash train.sh", "none seen in run:"),
    ],
)
def test_the_launcher_of_a_task_is_named(
    code: Path, run: str, row: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_skypilot(monkeypatch)
    text = f"num_nodes: 2\nresources: {{accelerators: {{A100: 8}}}}\nrun: |\n  {run}\n"
    assert main(["plan", "--task", task_file(code, text)]) == 0
    assert f"launcher     {row}" in capsys.readouterr().out


def test_ranks_of_a_task_without_gpus_are_unknown() -> None:
    (launcher,) = summary({"run": "oumi distributed torchrun t.py"}, 2).launchers
    assert launcher.row == "torchrun (run: line 1): ranks as it finds them"


@for_each(
    ("text", "sentence"),
    [
        (
            f"name: g\nexecution: parallel\n---\n{TASK}---\n{TASK}",
            "`sky jobs launch task.yaml` launches a group",
        ),
        ("a: [1, 2\nb: }", "--task task.yaml: line 2 is not valid YAML"),
        ("", "task.yaml holds no task"),
    ],
)
def test_a_file_that_is_no_single_task_is_refused(
    code: Path,
    text: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    no_skypilot(monkeypatch)
    assert main(["plan", "--task", task_file(code, text)]) == 2
    assert sentence in capsys.readouterr().err


def test_the_script_that_is_checked_is_the_one_that_is_copied(
    code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code / "sub").mkdir(exist_ok=True)
    (code / "sub" / "train.py").write_text("import os\nos.environ['NCCL_TIMEOUT'] = '3'\n")
    words = ["--on", "aws", "--gpus", "H100:8", "--workdir", "sub", "--json", "--", "train.py"]
    assert main(["plan", "ddp", *words]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["findings"]] == ["L1"]
    assert main(["lint", "ddp", *words]) == 1
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["findings"]] == ["L1"]
