"""Every shipped preset with the example that ships, at the sizes that it has by itself: to a checkpoint and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.runs import EXAMPLES, Run, World

from distui.presets import rank_mesh
from distui.presets.finding import PlanError
from distui.presets.load import BUILTIN, load

from .cases import CASES, NOT_HERE

pytestmark = pytest.mark.torch
NOTHING_FITS = "the mesh of this preset needs other ranks"


@pytest.fixture(scope="module", name="place")
def _place() -> Iterator[World]:
    world = World()
    try:
        yield world
    finally:
        world.close()


def worlds() -> Iterator[tuple[str, int]]:
    """Each preset with 4 ranks, or with as many as it can have."""
    for name, case in CASES.items():
        for ranks in (1,) if case.world == 1 else (4, 2):
            try:
                rank_mesh.dimensions(load(name).preset, ranks)
            except PlanError:
                continue
            yield name, ranks
            break


def train(place: World, preset: str, ranks: int, *words: str) -> Run:
    """The example with nothing but steps, to its end."""
    script = "chargpt_moe.py" if preset == "moe" else "chargpt.py"
    options = ("--nproc-per-node", str(ranks), "--restarts", "0")
    run = place.run("launch", preset, *options, "--", str(EXAMPLES / script), "--log-every", "1", *words)
    try:
        assert run.wait("done", 120) == 0, run.describe() + run.distui("logs", "--stream", "err").out
    except BaseException:
        run.stop()  # the next test starts a run of this name
        raise
    return run


def checkpoint(run: Run) -> Path:
    """The file that it says it wrote last."""
    written = re.findall(r"checkpoint (\S+\.pt)", run.distui("logs").fine().out)
    assert written, run.distui("logs").out
    return Path(run.world.work, written[-1])


def losses(run: Run) -> dict[int, float]:
    return {
        int(step): float(loss)
        for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", run.distui("logs").out)
    }


def test_every_preset_has_ranks_at_which_it_is_tried() -> None:
    assert {name for name, _ in worlds()} | set(NOT_HERE) == set(BUILTIN), NOTHING_FITS


@pytest.mark.parametrize(("preset", "ranks"), worlds())
@pytest.mark.long
def test_to_a_checkpoint_and_back(place: World, preset: str, ranks: int) -> None:
    first = train(place, preset, ranks, "--steps", "3")
    saved = checkpoint(first)
    assert saved.parent == place.work / "checkpoints" / first.id, "each run has a folder of its own"
    again = train(place, preset, ranks, "--steps", "5", "--resume", str(saved.parent))
    assert "resumed from step 3" in again.distui("logs").out
    assert list(losses(first)) == [1, 2, 3]
    assert list(losses(again)) == [4, 5]
    assert checkpoint(again).parent != saved.parent
