"""Every command of SKILL.md, run as printed by a shell, in the order of the page, on a real training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import HANG_S

from .runs import EXAMPLES, Done, World

SKILL = (Path(__file__).parents[2] / "tui/mcp/SKILL.md").read_text(encoding="utf-8")
TRAIN = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True))\n"
LOG = "[rank0]: Traceback (most recent call last):\n[rank0]: ZeroDivisionError: division by zero\n"
LINES = ("logs", "events")
"""Verbs whose --json is an object a line."""
CODES = {"distui diagnose job.log --json": 1}
"""Exit codes of commands that do not end with 0."""
EITHER = ("distui doctor --json",)
"""Commands that end with 1 where this machine has an error."""


def commands() -> list[str]:
    """Whole command lines, in code blocks and between backquotes."""
    blocks = re.findall(r"```sh\n(.*?)```", SKILL, re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`(distui [^`\n]+)`", re.sub(r"```.*?```", "", SKILL, flags=re.DOTALL))
    return [line for line in [*lines, *spans] if line and line != "distui VERB --help"]


@pytest.fixture(scope="module")
def desk() -> Iterator[World]:
    """A folder with the files that the page names."""
    world = World()
    source = (EXAMPLES / "plain_ddp.py").read_text().replace("from __future__ import annotations\n", "")
    world.script("train.py", TRAIN + source)
    world.script("job.log", LOG)
    world.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    yield world
    world.close()


def sh(world: World, line: str) -> Done:
    """A line in a shell; RUN is the training that the page starts."""
    done = subprocess.run(
        ["bash", "-c", line.replace("RUN", "night")], cwd=world.work, env=world.env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_page_has_the_form_of_a_skill() -> None:
    match = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", SKILL)
    assert match is not None
    assert re.fullmatch(r"[a-z0-9-]{1,64}", match[1])
    assert len(match[2]) <= 1024
    assert len(SKILL.splitlines()) < 120, "it is read whole by a model: short"


def test_its_exit_codes_are_those_of_the_command_line() -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+)", table, re.MULTILINE)}
    mine = {int(code) for code in re.findall(r"\b(\d+) [`\w]", SKILL.partition("## Exit codes")[2])}
    assert mine <= listed
    assert mine >= listed - {130}


@pytest.mark.long
@pytest.mark.torch
def test_every_command_does_what_it_says(desk: World) -> None:
    listed = commands()
    assert len(listed) > 25
    last = next(line for line in listed if " stop " in line)
    for line in [*(line for line in dict.fromkeys(listed) if line != last), last]:
        done = sh(desk, line)
        wanted = (0, 1) if line in EITHER else (CODES.get(line, 0),)
        assert done.code in wanted, (line, done.code, done.err, done.out[-500:])
        assert "Traceback" not in done.err, line
        if " --json" in line.partition(" -- ")[0]:
            verb = line.split()[1]
            for document in done.out.splitlines() if verb in LINES else [done.out]:
                json.loads(document)
    assert json.loads(sh(desk, "distui status night --json").out)["state"] == "stopped"
