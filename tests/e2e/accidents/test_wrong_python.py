"""A training environment that cannot train: said before anything is started, or by the run that failed."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from ..runs import World


def environment(home: Path, torch: str | None = None) -> str:
    """A virtual environment's interpreter; `torch` is the version whose metadata it has, without the library."""
    venv.create(home, symlinks=True, with_pip=False)
    if torch is not None:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        about = home / "lib" / version / "site-packages" / f"torch-{torch}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    return str(home / "bin" / "python")


def launch(world: World, python: str) -> list[str]:
    world.script("x.py", "print('hello')\n")
    return ["launch", "ddp", "--python", python, "--nproc-per-node", "1", "--", "x.py"]


def test_no_such_file(world: World) -> None:
    world.distui(*launch(world, "/nowhere/python")).refused(2, "/nowhere/python", "--python")
    assert not world.runs.exists(), "nothing was started"
    assert not world.sockets.exists()


def test_not_executable(world: World) -> None:
    plain = Path(world.work / "python")
    plain.write_text("#!/bin/sh\n")
    world.distui(*launch(world, str(plain))).refused(2, str(plain), "--python")


@pytest.mark.real
def test_what_is_asked_for_its_torch(world: World) -> None:
    """The interpreter itself is started: one that is none, without torch, or with an old one."""
    strange = world.work / "strange"
    strange.write_bytes(b"\x7fELF not really")
    strange.chmod(0o755)
    for program in ("/bin/true", "/bin/false", "/bin/cat", str(strange)):
        world.distui(*launch(world, program)).refused(2, program, "--python")
    python = environment(world.root / "bare")
    world.distui(*launch(world, python)).refused(2, python, "no torch", "--python")
    python = environment(world.root / "old", "2.6.0")
    world.distui(*launch(world, python)).refused(2, "2.6.0", python, "2.7")
    python = environment(world.root / "hollow", "2.13.0")
    run = world.run(*launch(world, python))  # only the run itself finds that it cannot be imported
    assert run.wait() == 1
    status = run.status()
    assert status["state"] == "failed"
    assert "no usable torch" in status["text"]
    assert python in status["text"]
    assert not run.marked()
