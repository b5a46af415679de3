"""What a launch records beside its plan: git in real repositories, fingerprints of secrets, digests of scripts."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from distui.runners.agent.server import hardware
from distui.runners.inrank import script_files
from distui.runners.run import launch_record

PATIENT_S = 60.0
"""For git: how soon it answers says how busy the machine is."""


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit and a folder."""
    folder = tmp_path / "tree"
    (folder / "inner").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "night")
    (folder / "train.py").write_text("lr = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.mark.real
def test_the_state_of_a_repository(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = launch_record.git_state(str(tree / "inner"), PATIENT_S)
    assert state == launch_record.GitState(git(tree, "rev-parse", "HEAD"), "night", False, "")
    (tree / "train.py").write_text("lr = 2\n")
    changed = launch_record.git_state(
        str(tree / "inner"), PATIENT_S
    )  # also from a folder that has no change itself
    assert changed is not None
    assert changed.dirty
    (tree / "train.py").write_text("lr = 3\n")
    other = launch_record.git_state(str(tree), PATIENT_S)
    assert other is not None
    assert len({state.changes, changed.changes, other.changes}) == 3
    git(tree, "checkout", "-q", "--detach")
    detached = launch_record.git_state(str(tree), PATIENT_S)
    assert detached is not None
    assert detached.branch == ""

    # As inside a hook of git, where GIT_DIR is set.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert launch_record.git_state(str(tree), PATIENT_S) is not None

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert launch_record.git_state(str(empty), PATIENT_S) is None
    assert launch_record.git_state(str(tmp_path / "gone"), PATIENT_S) is None
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    git(empty, "init", "-q")
    assert launch_record.git_state(str(empty), PATIENT_S) is None, "no commit yet"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "git").chmod(0o755)
    assert launch_record.git_state(str(tree), 0.2) is None, "a slow git costs its time and no launch"
    (tmp_path / "git").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch_record.git_state(str(tree), PATIENT_S) is None, "no git at all"


@pytest.mark.real
def test_a_repository_executes_nothing_and_nothing_is_written(tree: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external", "diff.x.textconv", "diff.x.command"):
        git(tree, "config", name, str(trap))
    (tree / ".gitattributes").write_text("*.py diff=x\n")
    (tree / "train.py").write_text("lr = 2\n")
    index = tree / ".git" / "index"
    os.utime(tree / "train.py")
    before = index.stat().st_mtime_ns
    state = launch_record.git_state(str(tree), PATIENT_S)
    assert state is not None
    assert state.dirty
    assert not (tmp_path / "sprung").exists()
    assert index.stat().st_mtime_ns == before


# --- fingerprints ---

SECRETS = {"HF_TOKEN": "hf_" + "a" * 34, "DB_PASSWORD": "hunter2"}


def test_equal_secrets_have_equal_fingerprints(tmp_path: Path) -> None:
    first, again = (launch_record.fingerprints(SECRETS, tmp_path) for _ in range(2))
    assert first == again
    assert first.keys() == SECRETS.keys()
    changed = launch_record.fingerprints({"HF_TOKEN": "hf_" + "b" * 34}, tmp_path)
    assert launch_record.same_secret(first["HF_TOKEN"], again["HF_TOKEN"])
    assert launch_record.same_secret(first["HF_TOKEN"], changed["HF_TOKEN"]) is False
    assert (tmp_path / launch_record.KEY).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [launch_record.KEY]


def test_a_fingerprint_holds_no_secret_and_compares_under_its_key_alone(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here, there = (launch_record.fingerprints(SECRETS, folder) for folder in (tmp_path, tmp_path / "other"))
    assert here["HF_TOKEN"] != there["HF_TOKEN"]
    assert launch_record.same_secret(here["HF_TOKEN"], there["HF_TOKEN"]) is None
    assert launch_record.same_secret("", "") is None
    same = launch_record.fingerprints({"A": "x", "B": "x"}, tmp_path)
    assert same["A"] != same["B"]  # nor does it show that two variables have one value
    assert len(here["HF_TOKEN"].partition("-")[2]) == 6


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33, None])
def test_a_key_that_is_damaged_or_no_file_gives_no_fingerprints(
    tmp_path: Path, content: bytes | None
) -> None:
    key = tmp_path / launch_record.KEY
    if content is None:
        os.mkfifo(key)
    else:
        key.write_bytes(content)
    assert launch_record.fingerprints(SECRETS, tmp_path) == {}


def test_a_key_that_others_can_read_or_that_cannot_be_made_counts_not(tmp_path: Path) -> None:
    launch_record.fingerprints(SECRETS, tmp_path)
    (tmp_path / launch_record.KEY).chmod(0o644)
    assert launch_record.fingerprints(SECRETS, tmp_path) == {}
    assert launch_record.fingerprints(SECRETS, tmp_path / "no" / "folder") == {}
    assert launch_record.fingerprints({}, tmp_path / "other") == {}


# --- scripts of an attempt ---


def plan(cwd: Path, *command: str) -> dict[str, object]:
    return {"command": list(command), "cwd": str(cwd)}


def test_the_script_and_what_it_imports_beside_it(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(
        "import model, json\nfrom lib2 import loader\nfrom . import data\n"
    )
    for name in ("model", "lib2", "data"):
        (tmp_path / "src" / f"{name}.py").write_text(name)
    digests = script_files.digests(plan(tmp_path, "src/train.py", "--config", "x.py"))
    assert [*digests] == ["src/train.py", "src/model.py", "src/lib2.py", "src/data.py"]
    (tmp_path / "src" / "model.py").write_text("another")
    changed = script_files.digests(plan(tmp_path, "src/train.py"))
    assert {name for name in digests if digests[name] != changed[name]} == {"src/model.py"}


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("-m", "pkg.run"), ["pkg/run.py"]),
        (("-m", "pkg"), ["pkg/__main__.py"]),
        (("bash", "-c", "exit", "go.sh"), ["go.sh"]),
        (("gone.py",), []),
        (("/bin/true",), []),
        (("folder.py",), []),
        (("pipe.py",), []),
        (("broken.py",), ["broken.py"]),
        (("-m",), []),
        ((), []),
    ],
)
def test_what_is_no_script_has_no_digest(
    tmp_path: Path, command: tuple[str, ...], names: list[str]
) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("pkg/run.py", "pkg/__main__.py", "go.sh"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "broken.py").write_bytes(b"\xff\x00 def (")
    assert [*script_files.digests(plan(tmp_path, *command))] == names
    assert script_files.digests({"command": 3}) == {}


def test_huge_scripts_and_many_imports_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_bytes(b"#" * (script_files.MOST_BYTES + 1))
    assert script_files.digests(plan(tmp_path, "big.py")) == {}
    modules = [f"m{number}" for number in range(2 * script_files.MOST_FILES)]
    for name in modules:
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "many.py").write_text("".join(f"import {name}\n" for name in modules))
    assert len(script_files.digests(plan(tmp_path, "many.py"))) == script_files.MOST_FILES


class ParsesAtItsEnd:
    """Garbage that only the collector frees; its finalizer parses, as one does that prints a traceback."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        self.deep(10)

    def deep(self, calls: int) -> None:
        self.deep(calls - 1) if calls else ast.parse("1 + 1")


def test_a_finalizer_that_parses_does_not_disturb() -> None:
    """Python 3.11.0 to 3.11.7 says SystemError there (gh-106905)."""
    source = b"".join(b"import m%d\n" % number for number in range(1000))
    ParsesAtItsEnd()
    assert len(script_files.imported(source)) == 1000


# --- the node's driver and GPUs ---


def test_driver_and_gpus_by_the_kernels_files(tmp_path: Path) -> None:
    root = f"{tmp_path}/"
    assert hardware(root) == ("", ())
    proc = tmp_path / "proc" / "driver" / "nvidia"
    (proc / "gpus" / "0000:17:00.0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    (proc / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16)\n"
    )
    (proc / "gpus" / "0000:17:00.0" / "information").write_text(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: \t 18\n"
    )
    assert hardware(root) == ("570.124.06", ("NVIDIA H100 80GB HBM3",))
