"""What does not run on this machine: the programs that read it are asked about the text of every preset and launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launchers.hf import needs_hf
from launchers.plans import plan

from distui.presets.load import BUILTIN

ASK = {
    "torchrun": """
from torch.distributed.run import parse_args
for words in asked:
    found = parse_args(words)
    assert found.training_script == "train.py" and found.training_script_args == ["--lr", "1"], found
""",
    "accelerate": """
from accelerate.commands import launch
from accelerate.commands.config.config_args import load_config_from_file
for words in asked:
    load_config_from_file(words[words.index("--config_file") + 1])
    found, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    assert found.training_script == "train.py" and found.training_script_args == ["--lr", "1"], found
""",
    "deepspeed": """
from deepspeed.launcher.runner import parse_args
for words in asked:
    found = parse_args(words)
    assert found.user_script == "train.py" and found.user_args == ["--lr", "1"], found
""",
}
"""A program that reads every command line as its launcher does. In an interpreter of its own: these import a lot."""


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("torchrun", marks=pytest.mark.real),
        pytest.param("accelerate", marks=[needs_hf, pytest.mark.long]),
        pytest.param("deepspeed", marks=[needs_hf, pytest.mark.long]),
    ],
)
def test_its_parser_takes_the_command_line_of_every_preset(tmp_path: Path, launcher: str) -> None:
    asked = []
    for name in BUILTIN:
        made = plan(name, f"launcher.kind={launcher}")
        (tmp_path / name).mkdir()
        for file, text in made.files.items():
            (tmp_path / name / file).write_text(text)
        words = made.argv if launcher == "torchrun" else made.argv[3:]
        asked.append([word.replace(made.run_dir, str(tmp_path / name)) for word in words])
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "DS_IGNORE_CUDA_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import json, sys\nasked = json.load(sys.stdin){ASK[launcher]}"],
        input=json.dumps(asked), capture_output=True, text=True, env=env, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
