"""`distui advise`: what it prints, and with which exit code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from distui.presets.load import load
from distui.tui.cli import main


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["advise", *shlex.split(words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_simplest_that_fits_and_how_to_launch_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--params 7B --gpus 8xA100-80GB", capsys)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "7 B parameters, about 33 layers of 4096, on 8 × A100-80GB (80 GB)"
    rows = {line[:6].strip(): line.split() for line in lines if line.endswith(("fits", "too much"))}
    assert [rows[name][4] for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")] == [
        *("84.00", "35.00", "22.75", "10.50")
    ]
    assert rows["DDP"][-1] == "much"
    assert "ZeRO-1 is the simplest that fits: DDP with the optimizer's states in shards" in out
    assert lines[-1] == "    distui launch zero1 --nproc-per-node 8 -- train.py"
    docs = Path(__file__).resolve().parents[2] / "docs/presets.md"
    assert f"$ distui advise --params 7B --gpus 8xA100-80GB\n{out}```" in docs.read_text()


def test_what_it_says_to_launch_can_be_launched(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--params 13B --gpus 8xA100-80GB --nodes 2 --json", capsys)
    found = json.loads(out)
    assert (code, found["first"], found["ranks"]) == (0, "zero2", 16)
    for one in found["strategies"]:
        words = one["launch"].split()
        assert load(words[0], words[2::2]).preset.name == words[0]
        assert one["total_bytes"] == sum(
            one[f"{part}_bytes"] for part in ("weights", "gradients", "optimizer", "activations", "buffers")
        )


def test_nothing_fits_and_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--params 70B --gpus 8xA100-40GB --recompute", capsys)
    assert code == 1
    assert "Nothing fits (92% of 40 GB are usable): ZeRO-3 needs " in out
    code, out, _ = run("--params 7B --gpus 8xT4 --seq 65536", capsys)
    assert code == 1
    assert "activations alone are too much. Try --recompute, a shorter --seq." in out
    code, out, _ = run("--params 7B --gpus 8xT4 --seq 65536 --micro-batch 4 --recompute", capsys)
    assert "activations alone are too much. Try a smaller --micro-batch." in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--params lots --gpus 8xH100", "--params lots: write a number of parameters"),
        ("--params 7B --gpus 8xH1O0", "did you mean H100?"),
        ("--params 7B --gpus 8xH100 --nodes 0", "--nodes 0: a number from 1 on"),
        ("--params 7B --gpus 8xH100 --micro-batch 0", "--micro-batch 0: a number from 1 on"),
    ],
)
def test_what_is_refused(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert code in (1, 2)
    assert out == ""
    assert err.startswith("distui: ")
    assert sentence in err
    assert err.count("\n") == 1
