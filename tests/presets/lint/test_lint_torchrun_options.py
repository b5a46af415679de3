"""The options that lint thinks torchrun has, against torchrun's own parser."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from patience import HANG_S

from distui.presets.launchers import torchrun_names as launcher
from distui.presets.lint.shell import Word
from distui.presets.lint.torchrun_options import read_options

pytestmark = [pytest.mark.real, pytest.mark.torch]

ASK = """
import contextlib, io, json, sys
from torch.distributed.run import get_args_parser
parser = get_args_parser()
takes = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}
answers = []
for line in json.load(sys.stdin):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            made = parser.parse_args(line)
        answers.append([made.training_script, {k: str(v) for k, v in vars(made).items()}])
    except SystemExit:
        answers.append(None)
print(json.dumps({"takes": takes, "answers": answers}))
"""

LINES = [
    ["--nprocs-per-node", "2", "t.py"],
    ["--nproc-per-node", "2", "t.py", "--nope"],
    ["--nproc_per", "2", "t.py"],
    ["--nproc", "2", "t.py"],
    ["--n", "2", "t.py"],
    ["--standalone", "--nproc-per-node=gpu", "-m", "pkg.train"],
    ["-r3", "-t", "0:3", "t.py"],
    ["--redirects=3", "t.py"],
    ["--rdzv-backend=c10d", "--rdzv_endpoint", "h:1", "--", "t.py"],
    ["--no-python", "--log_dir", "x", "train.sh"],
    ["--master-adr", "h", "t.py"],
    ["--use-env", "t.py"],
    ["--virtual-local-rank", "--shutdown-timeout", "3", "t.py"],
]


def torchrun() -> dict[str, object]:
    """What torch's own parser says."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(LINES),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_options_and_lines_are_read_as_torchrun_reads_them() -> None:
    said, known = torchrun(), launcher.known_options()
    takes, answers = said["takes"], said["answers"]
    assert isinstance(takes, dict)
    long = {name[2:].replace("_", "-"): value for name, value in takes.items() if name.startswith("--")}
    assert {name for name, value in long.items() if value} == known.values - known.newer
    assert {name for name, value in long.items() if not value} == known.switches - known.newer
    short = {name for name in takes if not name.startswith("--")}
    assert short == {"-h", "-m", *launcher.SHORT}
    assert isinstance(answers, list)
    assert len([one for one in answers if one is None]) >= 4
    for line, answer in zip(LINES, answers, strict=True):
        read = read_options([Word(text, 1) for text in line])
        assert bool(read.unknown) == (answer is None), line
        if answer is not None:
            script, values = answer
            assert read.script is not None
            assert read.script.text == script
            for name, word in read.values.items():
                assert values[name.replace("-", "_")] == word.text, line
