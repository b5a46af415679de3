"""What `distui plan` prints is what runs: compared with /proc/PID/environ, and with the files that are written."""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .runs import World, until

pytestmark = pytest.mark.torch

SLEEPER = "import time\ntime.sleep(600)\n"
PRESET = '[preset.mine]\nbase = "ddp"\nenv = { OF_THE_FILE = "a b", HOSTILE = "\\u001b]0;x\\u0007" }\n'


def environ(pid: int) -> dict[str, str]:
    """The environment with which a process started."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def argv(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


def filled(value: str, rank: int, run: str, planned: str) -> re.Pattern[str]:
    """A printed value as a pattern: known placeholders filled, others anything; the plan's run id that of the run."""
    known = {
        "<rank>": str(rank), "<local rank>": str(rank), "<attempt>": "1", "<attempt, three digits>": "001",
        planned: run, planned.rsplit("-", 1)[1]: run.rsplit("-", 1)[1],
    }  # fmt: skip
    for text, other in known.items():
        value = value.replace(text, other)
    return re.compile(re.sub(r"<[^<>]+>", ".+", re.escape(value).replace(r"\ ", " ")), re.DOTALL)


def given(pid: int, *words: str) -> Callable[[], bool]:
    """Whether a process has these words at its end: it has its own only once it executes."""
    return lambda: argv(pid)[-len(words) :] == list(words)


def known(status: dict[str, Any]) -> bool:
    """Whether every rank has a pid."""
    return bool(status["ranks"]) and all(one["pid"] for one in status["ranks"])


def compare(plan: dict[str, Any], rank: int, got: dict[str, str], shell: dict[str, str], run: str) -> None:
    """Every variable that differs from the shell's is printed with its value, and nothing printed is missing."""
    printed = {name: (value, plan["origins"][name]) for name, value in plan["env"].items()}
    printed |= {one["name"]: (one["value"], one["origin"]) for one in plan["starts"]["env"]}
    hidden = {name for name in got if name not in printed and got[name] != shell.get(name)}
    assert not hidden
    for name, (value, origin) in printed.items():
        assert origin.split(",")[0] in ("shell", "preset", "command line", "distui", "torch"), (
            name,
            origin,
        )
        if name not in got:
            assert "only if" in origin, name
        elif name != "NCCL_RAS_ADDR":  # of two plans each has a port of its own
            assert filled(value, rank, run, plan["run"]).fullmatch(got[name]), (name, value, got[name])


def written(plan: dict[str, Any], folder: Path) -> set[str]:
    """Files of a run directory that the plan does not name."""
    named = [*plan["files"], *(one.removeprefix(plan["run_dir"] + "/") for one in plan["starts"]["files"])]
    globs = [re.sub(r"<[^<>]+>", "*", one) for one in named]
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return {file for file in files if not any(fnmatch.fnmatchcase(file, one) for one in globs)}


@pytest.fixture
def shell(world: World) -> dict[str, str]:
    """A shell with a project file, and with some of what changes a plan."""
    (world.work / "distui.toml").write_text(PRESET)
    (world.work / "t.py").write_text(SLEEPER)
    world.env |= {"PYTHONPATH": "/users/own", "NCCL_DEBUG_SUBSYS": "NET", "PLAIN": "inherited"}
    return dict(world.env)


@pytest.mark.real
def test_of_a_launch(world: World, shell: dict[str, str]) -> None:
    words, rest = (
        ("--nproc-per-node", "2", "--env", "GIVEN=1", "--set", "env.SET=2"),
        ("--", "t.py", "--lr", "1e-3"),
    )
    plan = world.distui("plan", "mine", *words, "--json", *rest).fine().json()
    run = world.run("launch", "mine", *words, *rest)
    status = run.eventually(known)
    assert len(status["ranks"]) == plan["nproc_per_node"]
    for one in status["ranks"]:
        assert until(given(one["pid"], "--lr", "1e-3")), run.describe()
        assert argv(one["pid"]) == plan["starts"]["ranks"]
        compare(plan, one["rank"], environ(one["pid"]), shell, run.id)
    runner = [word.replace(plan["run"], run.id) for word in plan["starts"]["runner"]]
    assert argv(status["runner_pid"]) == runner
    assert not written(plan, run.path)


@pytest.mark.real
def test_of_a_command(world: World, shell: dict[str, str]) -> None:
    rest = ("--", sys.executable, "-u", "t.py")
    plan = world.distui("exec", "--dry-run", "--env", "GIVEN=1", "--json", *rest).fine().json()
    run = world.run("exec", "--env", "GIVEN=1", *rest)
    status = run.eventually(known)
    pid = status["ranks"][0]["pid"]
    assert until(lambda: argv(pid) == plan["starts"]["ranks"]), run.describe()
    compare(plan, 0, environ(pid), shell, run.id)
    assert not written(plan, run.path)


def test_as_text_it_says_where_each_value_comes_from(world: World, shell: dict[str, str]) -> None:
    out = world.distui("plan", "mine", "--nproc-per-node", "2", "--env", "GIVEN=1", "--", "t.py").fine().out
    lines = out.splitlines()
    file = world.work / "distui.toml"
    assert f"preset       mine (project {file}): strategy ddp, launcher torchrun, backend gloo" in lines
    assert "  GIVEN=1  # command line" in lines
    assert f"  OF_THE_FILE='a b'  # preset, project {file}" in lines
    assert f"  HOSTILE=$'\\x1b]0;x\\x07'  # preset, project {file}" in lines
    assert "  NCCL_DEBUG_SUBSYS=NET  # shell" in lines
    assert "  NCCL_DEBUG=WARN  # distui" in lines
    assert "  MASTER_PORT=<port chosen at each attempt>  # torch" in lines
    assert "  RANK=<rank>  # torch" in lines
    assert any(
        line.startswith("  PYTHONPATH=") and line.endswith(":/users/own  # distui") for line in lines
    )
    assert not [c for c in out if not c.isprintable() and c != "\n"]
    assert os.fspath(world.state) in out


CANONICAL = """
import argparse
from accelerate import Accelerator
p = argparse.ArgumentParser()
p.add_argument("--cpu", action="store_true")
p.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16"])
args = p.parse_args()
acc = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
"""


@pytest.mark.parametrize("preset", ["ds-zero2", "ddp"])
def test_what_accelerates_own_examples_may_be_given_is_no_claim(world: World, preset: str) -> None:
    """The strategy is the script's own only where its arguments say so, and the precision likewise."""
    words = ("plan", preset, "--nproc-per-node", "2", "--", world.script("mini.py", CANONICAL))
    said = world.distui(*words).fine().out
    assert "with its own cpu" not in said
    assert "the precision is its own (" not in said
    assert "it obeys strategy and precision through the environment" in said
    assert "the precision is its own if --mixed_precision is given." in said
    assert ("unless --cpu is given" in said) == (preset == "ds-zero2"), "DDP on CPU is DDP"
    obeys = world.distui(*words[:2], "--json", *words[2:]).fine().json()["obeys"]
    assert obeys, "the screen does not say `flags and env only`"
    assert obeys in said
    given = world.distui(*words, "--mixed_precision", "fp16").fine().out
    assert "the precision is its own (mixed_precision in line 8)." in given
    given = world.distui(*words, "--cpu").fine().out
    claim = "with its own cpu (line 8): the preset's strategy does not change that."
    assert (claim in given) == (preset == "ds-zero2")
