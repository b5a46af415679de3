"""`distui advise`: what it prints, and with which exit code."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from each import for_each

from distui.presets.estimate.workload import Counted
from distui.runners.launch import advice
from distui.tui.cli import main

EXAMPLE = Path(__file__).resolve().parents[2] / "presets/examples/chargpt.py"


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["advise", *shlex.split(words)])
    out, err = capsys.readouterr()
    return code, out, err


def rows_of(out: str) -> dict[str, list[str]]:
    """Title of a strategy → its cells."""
    table = out.partition("GB on each GPU")[2].partition("\n\n")[0].splitlines()[2:]
    found = [re.split(r"  +", line) for line in table]
    return {cells[0]: cells[1:] for cells in found if len(cells) > 2}


def test_the_simplest_that_fits_and_how_to_launch_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--params 7B --gpus 8xA100-80GB", capsys)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "7 B parameters, about 33 layers of 4096, on 8 × A100-80GB (85 GB)"
    rows = rows_of(out)
    assert [rows[name][3] for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP2)")] == [
        *("112.00", "63.00", "24.50", "14.00")
    ]
    assert [rows[name][-1] for name in ("DDP", "ZeRO-2", "FSDP2, host")] == [
        *("bf16 fits", "fits", "fits with 112 GB of host memory per node")
    ]
    assert rows["DeepSpeed, NVMe"][-1] == "fits with 126 GB of disk per node"
    for cells in rows.values():
        weights, gradients, optimizer, states, activations, buffers, total = map(float, cells[:7])
        assert states == pytest.approx(weights + gradients + optimizer, abs=0.02)
        assert total == pytest.approx(states + activations + buffers, abs=0.02)
    assert "ZeRO-2 is the simplest that fits, with 36.8 of 85 GB per GPU: gradients in shards, too" in out
    command = "fsdp2-zero2 --set precision.param=bf16 --set batch.micro=1 --nproc-per-node 8 -- train.py"
    assert f"    distui launch {command}" in lines
    assert "If the script's weights are bf16, DDP fits, with 71.5 of 85 GB." in lines
    docs = Path(__file__).resolve().parents[2] / "docs/memory.md"
    assert f"$ distui advise --params 7B --gpus 8xA100-80GB\n{out}```" in docs.read_text()


def test_what_it_says_to_launch_can_be_launched(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--params 13B --gpus 8xA100-80GB --nodes 2 --json", capsys)
    found = json.loads(out)
    assert (code, found["first"], found["ranks"], found["kind"]) == (0, "zero2", 16, "unknown")
    assert "--on sky --gpus A100-80GB:8 --nnodes 2 --network-tier best -- train.py" in found["next"]
    assert [one["key"] for one in found["strategies"]][3] == "hsdp"
    assert found["ranked"][0]["command"] == found["next"]
    for one in found["strategies"]:
        assert one["total_bytes"] == sum(
            one[f"{part}_bytes"] for part in ("weights", "gradients", "optimizer", "activations", "buffers")
        )
        assert one["kept_bytes"] >= one["activations_bytes"]
    zero3 = next(one for one in found["strategies"] if one["key"] == "zero3")
    assert zero3["bf16_weights_total_bytes"] < zero3["total_bytes"]


def test_where_only_host_memory_helps(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--params 70B --gpus 8xA100-80GB"
    code, out, _ = run(words, capsys)
    assert code == 0
    assert "FSDP2, host is the simplest that fits, with " in out
    assert "It takes 1,120 GB of host memory per node." in out
    assert (
        "To have everything on the GPUs take 2 nodes (16 GPUs): FSDP2 + TP 8 fits, with 76.4 of 85 GB"
        in out
    )
    code, out, _ = run(f"{words} --host-memory 500", capsys)
    assert rows_of(out)["FSDP2, host"][-1] == "needs 1,120 GB of host memory per node"
    assert "DeepSpeed, NVMe is the simplest that fits" in out
    code, out, _ = run(f"{words} --host-memory 500 --json", capsys)
    offload = next(one for one in json.loads(out)["strategies"] if one["key"] == "offload")
    assert (offload["fits"], offload["host_bytes_per_node"]) == (False, 1120e9)


@for_each(
    ("words", "sentences"),
    [
        ("--params 8B --gpus 8xH100 --seq 131072", ["FSDP2 + CP 2 with recomputed layers", "train.py has to number"]),
        ("--params 7B --gpus 8xA100-40GB --seq 8192 --micro-batch 8", ["4 passes per step", "batch.accumulation=4"]),
        ("--params 3.8B --gpus 2xA40 --kind ddp", ["launch fsdp2 --adopt --nproc-per-node 2"]),
        ("--params 3.8B --gpus 2xA40 --format bf16", ["DDP is the simplest", "with 39.5 of 48 GB"]),
        ("--params 7B --gpus 1xT4 --qlora 16 --kind trainer", ["a frozen base in 4 bits", "--fp16 true"]),
        ("--params 47B --gpus 8xH100 --nodes 2 --experts 8 --active 13B", ["47 B parameters in mixtures of 8 experts"]),
        ("--params 175B --gpus 8xH100 --nodes 16 --kind megatron", ["Megatron TP 8 × PP 4 is the simplest that fits"]),
        ("--params 7B --gpus 8xH20 --kind deepspeed --format fp32", ["(101 GB)", "weights are fp32 changes nothing\n"]),
        ("--params 30B --gpus 8xH100 --hosts a,b", ["--hosts a,b --nproc-per-node 8"]),
        ("--params 7B --gpus 1xH100 --on slurm/lab", ["--on slurm/lab --gpus H100:1"]),
    ],
)  # fmt: skip
def test_every_assumption_is_in_the_answer(
    words: str, sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(words, capsys)
    assert code == 0
    for sentence in sentences:
        assert sentence in out


def test_nothing_fits_and_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--params 7B --gpus 1xA100-40GB --seq 262144", capsys)
    assert code == 1
    assert "\nNothing fits: 92% of 42 GB are usable.\n" in out
    assert re.search(r"^\d+ .*GPUs\)? are enough: FSDP2 \+ CP ", out, re.MULTILINE)
    code, out, _ = run("--params 500B --gpus 1xT4 --seq 65536 --layers 1", capsys)
    assert code == 1
    assert out.endswith("\nTake a smaller model, or GPUs with more memory.\n")
    assert rows_of(out)["One GPU"][3] == "8,000"


def test_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has letters, and long remarks are below it."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    words = "--params 70B --gpus 8xH100 --nodes 2 --kind trainer"
    code, out, _ = run(words, capsys)
    lines = (
        out.partition("if the script's weights are fp32:\n")[2].partition("The activations")[0].splitlines()
    )
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["W", "G", "O", "A", "B", "total"]
    assert "W weights, G gradients, O optimizer, A activations, B buffers." in lines
    assert "ZeRO-3 (FSDP2) *: bf16 fits in 46.6 with recomputed layers." in lines
    assert lines[-1] == "* If train.py calls distui's parallelize()."
    assert rows_of(out)["FSDP2 + TP 8 *"][-1] == "fits"
    monkeypatch.setenv("COLUMNS", "90")
    _, out, _ = run(words, capsys)
    assert rows_of(out)["FSDP2 + TP 8 *"][-2:] == ["48.07", "fits"]
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(words, capsys)
    assert rows_of(out)["ZeRO-3 (FSDP2) *"][-1] == "bf16 fits in 46.6 with recomputed layers"


def test_a_script_is_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = Counted(
        name="CharGPT", parameters=366_560, trainable=366_560, layers=3, hidden=96, vocab=128, largest=36_864,
        largest_layer=111_840, embedding=18_432, blocks=335_520, head=12_608,
    )  # fmt: skip
    asked: list[tuple[object, ...]] = []

    def count(*words: object) -> Counted:
        asked.append(words)
        return found

    monkeypatch.setattr(advice, "count", count)
    words = f"--script {EXAMPLE}:CharGPT --model-args layers=3,width=96 --gpus 2xT4 --python /p"
    code, out, _ = run(words, capsys)
    assert (code, asked) == (0, [("/p", str(EXAMPLE), "CharGPT", {"layers": 3, "width": 96})])
    lines = out.splitlines()
    assert lines[:2] == [found.text, "3 layers of 96, on 2 × T4 (16 GB)"]
    command = f"distui launch ddp --set batch.micro=1 --nproc-per-node 2 -- {EXAMPLE}"
    assert f"    {command}" in lines  # a T4 has no bf16, and fp16 would need a scaler in the script
    code, out, _ = run(f"{words} --json", capsys)
    document = json.loads(out)
    assert (document["parameters"], document["layers"], document["vocab"]) == (366_560, 3, 128)
    assert document["counted"]["embedding"] == 18_432


@for_each(
    ("words", "sentence"),
    [
        ("--params lots --gpus 8xH100", "--params lots: write a number of parameters"),
        ("--params 7B --gpus 8xH1O0", "did you mean H100?"),
        ("--params 7B --gpus 8xH100 --nodes 0", "--nodes 0: a number from 1 on"),
        ("--params 7B --gpus 8xH100 --micro-batch 0", "--micro-batch 0: a number from 1 on"),
        ("--params 7B --gpus 8xH100 --experts 8 --top-k 8", "--top-k 8: write fewer experts per token"),
        ("--params 7B --gpus 8xH100 --active 2B", "--active needs --experts"),
        ("--params 7B --gpus 8xH100 --top-k 2", "--top-k needs --experts"),
        ("--params 7B --gpus 8xH100 --format bf16 --precision fp16", "GradScaler refuses"),
        ("--params 7B --gpus 8xH100 --hosts a,b --nodes 3", "--nodes 3 with 2 hosts: leave out --nodes"),
        ("--params 7B --gpus 8xH100 --model-args a=1", "--model-args and --python need --script"),
        (
            "--script nowhere.py --gpus 8xH100",
            "--script nowhere.py cannot be read: No such file or directory; give the path",
        ),
        ("--script a.py:3x --gpus 8xH100", "--script a.py:3x: write PATH, or PATH:NAME"),
        (f"--script {EXAMPLE} --model-args 3 --gpus 8xH100", "--model-args 3: write NAME=VALUE"),
    ],
)
def test_what_is_refused(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert code in (1, 2)
    assert out == ""
    assert err.startswith("distui: ")
    assert sentence in err
    assert err.count("\n") == 1


@for_each("words", ["--gpus 8xH100", "--params 7B --script a.py --gpus 8xH100"])
def test_one_of_parameters_and_script(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(words, capsys)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--params" in err
    assert "--script" in err
