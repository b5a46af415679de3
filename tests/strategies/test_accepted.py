"""What does not run on this machine: torchrun's parser is asked about the text of every preset."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from launchers.plans import plan

from distui.presets.load import BUILTIN

ASK = """
import json, sys
from torch.distributed.run import parse_args
for words in json.load(sys.stdin):
    found = parse_args(words)
    assert found.training_script == "train.py" and found.training_script_args == ["--lr", "1"], found
"""


@pytest.mark.real
def test_torchruns_parser_takes_the_command_line_of_every_preset() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK],
        input=json.dumps([plan(name).argv for name in BUILTIN]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
