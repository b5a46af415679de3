"""What every verb prints with `--json` is what its schema in docs/schemas/ says, of real runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import jsonschema
import pytest
import schemas
from schema_files import schema_files

from distui.runners.hub.sky_process import Candidate
from distui.tui.cli import parser

from .runs import World, gone

VERBS = parser().verbs


def test_every_verb_has_a_schema_or_prints_no_json() -> None:
    assert schemas.DOCUMENTS.keys() | schemas.WITHOUT.keys() == VERBS.keys()
    for name, verb in VERBS.items():
        assert ("--json" in verb._option_string_actions) == (name in schemas.DOCUMENTS), name


def test_the_files_are_those_of_the_types() -> None:
    files = schema_files(schemas.DOCUMENTS, schemas.BY_LINE, schemas.OPEN)
    if os.environ.get("DISTUI_WRITE"):
        for name, text in files.items():
            (schemas.FOLDER / name).write_text(text)
    assert {path.name for path in schemas.FOLDER.iterdir()} == files.keys()
    for name, text in files.items():
        written = (schemas.FOLDER / name).read_text()
        jsonschema.Draft202012Validator.check_schema(json.loads(written))
        assert written == text, "DISTUI_WRITE=1 pytest tests/e2e/test_schemas.py writes it"


def test_a_field_that_no_schema_has_is_refused() -> None:
    good = {"ok": True, "text": ""}
    schemas.check("down", good)
    for bad in ({**good, "more": 1}, {"ok": True}, {"ok": "yes", "text": ""}, [good]):
        with pytest.raises(jsonschema.ValidationError):
            schemas.check("down", bad)


@pytest.fixture(scope="module")
def somebody() -> Iterator[World]:
    world = World()
    world.script("train.py", "import torch.distributed\n")
    world.script("bad.sh", "torchrun --nprocs-per-node 2 train.py\n")
    world.script("bad.log", "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: bad data\n")
    world.script("distui.toml", '[preset.ours]\nbase = "ddp"\n')
    yield world
    world.close()


@pytest.fixture
def printed(somebody: World) -> Callable[[str], Any]:
    """Check what a command line prints; the document, of several lines the last."""

    def check_line(line: str) -> Any:
        before, dashes, behind = line.partition(" -- ")
        words = [*before.split(), "--json", *(["--", *behind.split()] if dashes else [])]
        done = somebody.distui(*words)
        assert done.code in (0, 1), (line, done.err)
        documents = schemas.checked(words, done.out)
        assert documents, (line, done.err)
        return documents[-1]

    return check_line


def test_what_needs_no_run(printed: Callable[[str], Any]) -> None:
    for line in (
        "plan ddp --nproc-per-node 2 -- train.py", "launch ddp -n --nproc-per-node 2 -- train.py",
        "exec --dry-run -- sh train.sh", "lint bad.sh", "lint ddp --nproc-per-node 2 -- train.py", "presets",
        "presets show fsdp2", "presets nccl", "presets nccl IB_TIMEOUT", "presets new mine",
        "advise --params 7B --gpus 8xA100-80GB", "advise --params 7000B --gpus 1xA100-80GB",
        "diagnose bad.log", "metrics --list", "prune --failed -n", "ls", "notify", "settings", "settings --example",
        "trust", "trust --list", "trust --remove",
    ):  # fmt: skip
        printed(line)


@pytest.mark.real
@pytest.mark.torch
def test_what_a_run_has(somebody: World, printed: Callable[[str], Any]) -> None:
    run = somebody.ddp("--name", "night").healthy()
    for line in (
        "status", "ls", "logs", "events", "metrics", "metrics --list", "diagnose", "dump stacks",
        "diff", "diff night night@1",
        "dump memory", "dump flight",
        "nccl INFO", "signal CONT", "wait --until healthy", "profile --steps 1",
        "watch", "note night busy", "tag night keep", "restart -y",
        "notify log night",
        "export night night.tar.gz", "status night.tar.gz", "rerun night --name x --dry-run", "stop -y --grace 1",
        "status", "ls", "wait", "diagnose", "events", "prune --keep 0 -n", "tag night -keep", "rm night -y",
    ):  # fmt: skip
        verb, _, rest = line.partition(" ")
        assert verb != "rm" or gone(run.agent_pid()), "which keeps its run until it has left"
        given = rest if "night" in rest or verb in ("ls", "watch", "prune") else f"night {rest}".strip()
        document = printed(f"{verb} {given}".strip())
        assert document, line
    assert not run.path.exists()


@pytest.mark.real
def test_what_starts_and_what_asks_other_programs(somebody: World, printed: Callable[[str], Any]) -> None:
    printed("doctor --no-pairs")
    printed("notify test desktop")
    assert printed("exec --name short -- true")["state"] == "succeeded"
    started = printed("exec --name long --detach -- sleep 600")
    assert started.keys() == {"run", "name", "path"}
    assert somebody.distui("stop", "long", "-y", "--grace", "1").code == 0


def test_what_needs_a_cluster() -> None:
    """By their types: tests/cluster has the verbs themselves."""
    offer = Candidate("slurm/lab", "", "8", "64", "H100:8", None, True)
    schemas.check("candidates", [asdict(offer)])
    schemas.check("autostop", {"ok": False, "text": "cluster c is down"})
