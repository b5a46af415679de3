"""`distui lint` by the real command line: what it prints, and with which exit code."""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from pathlib import Path

import pytest
from each import for_each

from distui.presets.load import BUILTIN
from distui.runners.launch.prepared import Prepared
from distui.tui.cli import main

ROOT = Path(__file__).resolve().parents[2]
TRAPS = "#!/bin/bash\nexport NCCL_TIMEOUT=3600\ntorchrun --nprocs-per-node 2 train.py\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of one's own to be in, with a script, and no GPU."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text((ROOT / "presets/examples/plain_ddp.py").read_text())
    (tmp_path / "train.sh").write_text(TRAPS)
    return tmp_path


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["lint", *shlex.split(words)])
    out, err = capsys.readouterr()
    return code, out, err


def found(words: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Ids and places, by --json; the exit code agrees."""
    code, out, err = run(f"--json {words}", capsys)
    findings = json.loads(out)["findings"]
    assert err == ""
    assert all(set(one) == {"id", "severity", "where", "value", "text", "remedy"} for one in findings)
    assert code == int(any(one["severity"] == "error" for one in findings))
    return [(one["id"], one["where"]) for one in findings]


def test_files_as_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("train.sh", capsys)
    assert (code, err) == (1, "")
    assert out.startswith(
        "error L1 train.sh:2 NCCL_TIMEOUT=3600\n    Neither NCCL nor torch reads NCCL_TIMEOUT"
    )
    assert out.endswith("\n    → Did you mean --nproc-per-node?\n\n2 errors\n")
    assert f"$ distui lint train.sh\n{out}```" in (ROOT / "docs/lint.md").read_text("utf-8")


def test_several_files_the_worst_first(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_machines: 1\nmain_process_port: 29500\n")
    (here / "sub").mkdir()
    (here / "sub" / "plain").write_text("#!/bin/sh\ndeepspeed other.py --deepspeed_config ds.json\n")
    (here / "sub" / "ds.json").write_text('{"zero_optimization": {"stage": 5}}')
    assert found("a.yaml sub/plain sub/ds.json train.sh", capsys) == [
        ("L30", "sub/ds.json:1"),
        ("L1", "train.sh:2"),
        ("L3", "train.sh:3"),
        ("L22", "a.yaml:3"),
    ]
    (here / "sub" / "ds.json").unlink()
    assert found("sub/plain", capsys) == [("L8", "sub/plain:2")]
    assert found("--task sub/plain", capsys) == [("L8", "sub/plain:2")]


def test_a_file_without_a_suffix_unless_a_preset_has_its_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("Dockerfile", "launch", "ddp"):
        (here / name).write_text("#!/bin/sh\ntorchrun --nprocs-per-node 2 train.py\n")
    assert found("launch", capsys) == [("L3", "launch:2")]
    assert run("Dockerfile", capsys)[2] == ""
    assert run("ddp", capsys)[2].startswith("distui: No script")


def test_nothing_found(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ddp --nproc-per-node 2 -- train.py", capsys) == (0, "no findings\n", "")


@for_each(
    ("words", "ids"),
    [
        ("ddp --env NCCL_TIMEOUT=3 -- train.py", [("L1", "NCCL_TIMEOUT")]),
        ("fsdp2 --nproc-per-node 2 -- train.py", [("L25", "train.py:37")]),
        ("ddp --set batch.micro=3 --set batch.total=7 --nproc-per-node 2 -- train.py", [("L17", "")]),
        ("tp --nproc-per-node 3 -- train.py", [("L18", "")]),
        ("ddp --nproc-per-node gpu -- train.py", [("L19", "")]),
        (
            "ddp --on aws --gpus H100:8 --nnodes 2 -- train.py",
            [("L21", "--network-tier"), ("L71", "topology.nnodes")],
        ),
        (
            "ddp --on aws --gpus H100:8 --nnodes 2 --network-tier best --managed -- train.py",
            [("L12", "--managed"), ("L71", "topology.nnodes")],
        ),
        ("ddp --on aws --gpus H100:8 --spot -- train.py", [("L37", "--spot")]),
        ("tp --on aws --gpus H100:3 -- train.py", [("L18", "")]),
        ("-- torchrun --nprocs-per-node 2 train.py", [("L3", "line 1")]),
        ("-- bash train.sh", [("L1", "train.sh:2"), ("L3", "train.sh:3")]),
    ],
)
def test_launches_and_commands(
    words: str, ids: list[tuple[str, str]], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(words, capsys) == ids


@for_each(
    ("words", "code", "sentence"),
    [
        ("", 2, "Nothing to check: `distui lint PRESET -- SCRIPT` checks a launch"),
        ("ddp", 2, "No script"),
        ("nope.yaml", 2, "nope.yaml cannot be read: No such file or directory"),
        (".", 2, "There is no preset '.'"),
        ("./", 2, "./ cannot be read: Is a directory"),
        ("train.sh -- train.py", 2, "Files and a launch are checked separately"),
        ("ddp --on nowhere -- train.py", 2, "--on nowhere: unknown place"),
        ("dpp -- train.py", 2, "did you mean ddp?"),
    ],
)
def test_wrong_usage(
    words: str, code: int, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = run(words, capsys)
    assert (got, out) == (code, "")
    assert err.startswith("distui: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_users_own_preset_and_what_it_builds_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "distui.toml").write_text('[preset.low]\nbase = "ddp"\n[preset.high]\nbase = "low"\n')
    assert found("distui.toml", capsys) == []
    (here / "distui.toml").write_text('[preset.low]\nbase = "high"\n[preset.high]\nbase = "low"\n')
    assert {id for id, _ in found("distui.toml", capsys)} == {"L19"}
    (here / "distui.toml").write_text("[preset.low\n")
    assert found("distui.toml", capsys) == [("L41", "distui.toml:1")]


def test_what_ships_is_clean_as_files(capsys: pytest.CaptureFixture[str]) -> None:
    presets = [ROOT / f"presets/builtin/{name}.toml" for name in BUILTIN]
    examples = sorted((ROOT / "presets/examples").rglob("*.py"))
    words = shlex.join(str(path) for path in (*presets, *examples))
    code, out, _ = run(f"--json {words}", capsys)
    assert (code, [one for one in json.loads(out)["findings"] if one["severity"] == "error"]) == (0, [])


@pytest.mark.torch
def test_a_launch_here_tells_errors_before_it_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script for GPUs on a machine without one; what is no error is left to `plan` and `lint`."""
    begun: list[str] = []

    def begin(ready: Prepared, options: Namespace) -> int:
        begun.append(capsys.readouterr().err)
        return 0

    monkeypatch.setattr("distui.tui.verbs.launch.begin", begin)
    (here / "gpu.py").write_text("import torch\ntorch.cuda.set_device(0)\n")
    for script, told in (("gpu.py", "L48 gpu.py:2: The ranks run on CPU"), ("train.py", "")):
        assert main(["launch", "ddp", "--nproc-per-node", "2", "--", script]) == 0
        assert told in begun[-1]
    assert begun[-1] == ""


def test_a_pipe_is_not_waited_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(here / "acc.yaml")
    assert found("-- accelerate launch --config_file acc.yaml train.py", capsys) == [("L8", "line 1")]
    (here / "ds.py").write_text("import deepspeed\ndeepspeed.initialize(args=args)\n")
    assert found("ds-zero1 --nproc-per-node 2 -- ds.py --deepspeed_config acc.yaml", capsys) == []
