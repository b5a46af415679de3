"""Whether Accelerate and DeepSpeed are here (dependency group `hf`), and runs of scripts on them through distui."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
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


def trained(
    world: World,
    preset: str,
    script: str,
    *options: str,
    args: tuple[str, ...] = (),
    env: Mapping[str, str] = {},
) -> tuple[Run, list[dict[str, Any]]]:
    """Train to the end with 2 ranks; the run, and what each rank wrote down."""
    with training(world, preset, script, *options, args=args, env=env) as run:
        assert run.wait(timeout=240) == 0, told(run)
    return run, results(world)


@contextlib.contextmanager
def training(
    world: World,
    preset: str,
    script: str,
    *options: str,
    args: tuple[str, ...] = (),
    env: Mapping[str, str] = {},
) -> Iterator[Run]:
    """Such a run, started; DeepSpeed keeps what it compiles for the tests after."""
    folder = world.root / "results"
    folder.mkdir(exist_ok=True)
    built = HERE.parents[1] / ".pytest_cache" / "torch_extensions"
    told = {"RESULTS": str(folder), "TORCH_EXTENSIONS_DIR": str(built), **env}
    pairs = (word for name, value in told.items() for word in ("--env", f"{name}={value}"))
    yield world.run(
        "launch", preset, "--nproc-per-node", "2", "--restarts", "0", *options, *pairs, "--", script, *args
    )


def results(world: World) -> list[dict[str, Any]]:
    """What the ranks wrote down, by rank."""
    return [json.loads(path.read_text()) for path in sorted((world.root / "results").glob("*.json"))]


def told(run: Run) -> str:
    """The end of everything the ranks said."""
    files = [*sorted(run.path.glob("node-0/attempt-*/*.err")), run.path / "runner.log"]
    return run.describe() + "".join(f"\n== {path.name}\n{path.read_text()[-3000:]}" for path in files)
