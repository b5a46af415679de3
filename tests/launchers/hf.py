"""Whether Accelerate and DeepSpeed are here (dependency group `hf`), and runs of scripts on them through distui."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from e2e.runs import Run, World

HERE = Path(__file__).parent
MISSING = [name for name in ("accelerate", "deepspeed", "transformers") if find_spec(name) is None]

needs_hf = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install --group hf"
)
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="DeepSpeed on CPU compiles a part of itself: there is no g++"
)


def trained(world: World, preset: str, script: str, *options: str) -> tuple[Run, list[dict[str, Any]]]:
    """Train to the end with 2 ranks; the run, and what each rank wrote down.

    DeepSpeed keeps what it compiles for the next test.
    """
    folder = world.root / "results"
    folder.mkdir()
    built = HERE.parents[1] / ".pytest_cache" / "torch_extensions"
    env = ("--env", f"RESULTS={folder}", "--env", f"TORCH_EXTENSIONS_DIR={built}")
    words = ("--nproc-per-node", "2", "--restarts", "0", *options, *env)
    run = world.run("launch", preset, *words, "--", script)
    assert run.wait(timeout=240) == 0, output(run)
    return run, [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def output(run: Run) -> str:
    """The end of everything that the ranks printed."""
    files = [*sorted(run.path.glob("node-0/attempt-*/*.err")), run.path / "runner.log"]
    return run.describe() + "".join(f"\n== {path.name}\n{path.read_text()[-3000:]}" for path in files)
